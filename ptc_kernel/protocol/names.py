"""Which names a caller may give to namespaces, error classes and error properties."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ptc_kernel.errors import UsageTypeError, UsageValueError
from ptc_kernel.types import PtcBindingErrorClass, PtcBindingNamespace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = (
    "PORTABLE_RESERVED_WORDS",
    "RESERVED_BINDING_GLOBALS",
    "RESERVED_ERROR_MEMBERS",
    "check_namespaces",
    "is_portable_identifier",
    "is_usable_error_member",
)

_ECMASCRIPT_WORDS: Final = (
    "await break case catch class const continue debugger default delete do else enum export "
    "extends false finally for function if import in instanceof new null return super switch "
    "this throw true try typeof var void while with yield let static implements interface "
    "package private protected public arguments eval"
)
_PYTHON_WORDS: Final = (
    "False None True and as assert async def del elif except from global is lambda nonlocal "
    "not or pass raise match type _"
)

PORTABLE_RESERVED_WORDS: Final = frozenset(_ECMASCRIPT_WORDS.split()) | frozenset(_PYTHON_WORDS.split())
"""Words that some language reserves: refused for globals and error classes everywhere."""

RESERVED_BINDING_GLOBALS: Final = frozenset(
    {"console", "inspect", "Image", "__dsh_main__", "__builtins__", "__name__", "__debug__"}
)
"""Globals that belong to a backend."""

RESERVED_ERROR_MEMBERS: Final = frozenset({"name", "message", "stack", "args", "with_traceback", "add_note"})
"""Attributes that an error object has of its own in some language."""

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DUNDER: Final = re.compile(r"__.+__")  # the dot stops at a newline, as in the other backends


def is_portable_identifier(name: str) -> bool:
    """True when every backend can bind this name: ASCII letters, digits, underscore."""
    return _IDENTIFIER.fullmatch(name) is not None and name not in PORTABLE_RESERVED_WORDS


def is_usable_error_member(name: str) -> bool:
    """True when an error object can carry this attribute in every language."""
    return bool(name) and name not in RESERVED_ERROR_MEMBERS and _DUNDER.fullmatch(name) is None


def check_namespaces(
    namespaces: Sequence[PtcBindingNamespace],
) -> dict[str, tuple[PtcBindingErrorClass | None, dict[str, Callable[[object], object]]]]:
    """Validate the bindings of a run and read each mapping of functions exactly once.

    Returns the error class and the captured functions by global name. Globals are checked
    before error classes (contract 4.5).

    Raises:
        UsageValueError: a name is malformed, reserved or used twice.
        UsageTypeError: something is not of the type that it must have.
    """
    captured: dict[str, tuple[PtcBindingErrorClass | None, dict[str, Callable[[object], object]]]] = {}
    for namespace in namespaces:
        if not isinstance(namespace, PtcBindingNamespace):
            msg = f"bindings must be PtcBindingNamespace objects, not {type(namespace).__name__}"
            raise UsageTypeError(msg)
        name = namespace.global_name
        _check_global(name, "binding global")
        if name in captured:
            msg = f"binding global {name!r} is declared twice"
            raise UsageValueError(msg)
        captured[name] = (namespace.error_class, {})
    _check_error_classes(namespaces, captured)
    for namespace in namespaces:
        captured[namespace.global_name][1].update(_capture(namespace.global_name, namespace.functions))
    return captured


def _check_global(name: object, what: str) -> None:
    if type(name) is not str:
        msg = f"{what} must be a str, not {type(name).__name__}"
        raise UsageTypeError(msg)
    if not is_portable_identifier(name):
        rule = "match [A-Za-z_][A-Za-z0-9_]* and be no reserved word of Python or ECMAScript"
        msg = f"{what} {name!r} must {rule}"
        raise UsageValueError(msg)
    if name in RESERVED_BINDING_GLOBALS:
        reserved = ", ".join(sorted(RESERVED_BINDING_GLOBALS))
        msg = f"{what} {name!r} belongs to the runtime; reserved are {reserved}"
        raise UsageValueError(msg)


def _check_error_classes(namespaces: Sequence[PtcBindingNamespace], globals_: Mapping[str, object]) -> None:
    seen: set[str] = set()
    for namespace in namespaces:
        error_class = namespace.error_class
        if error_class is None:
            continue
        if not isinstance(error_class, PtcBindingErrorClass):
            msg = f"error_class of {namespace.global_name!r} must be a PtcBindingErrorClass"
            raise UsageTypeError(msg)
        name, member = error_class.name, error_class.member_name_property
        _check_global(name, "error class")
        if name in globals_ or name in seen:
            msg = f"error class {name!r} has the name of another binding global or error class"
            raise UsageValueError(msg)
        seen.add(name)
        if type(member) is not str:
            msg = f"member_name_property of {name!r} must be a str, not {type(member).__name__}"
            raise UsageTypeError(msg)
        if not is_usable_error_member(member):
            msg = (
                f"member_name_property {member!r} of {name!r} is empty, a dunder, or what errors have anyway"
            )
            raise UsageValueError(msg)


def _capture(
    global_name: str, functions: Mapping[str, Callable[[object], object]]
) -> dict[str, Callable[[object], object]]:
    captured: dict[str, Callable[[object], object]] = {}
    for name in functions:
        function = functions[name]
        if type(name) is not str:
            msg = f"function names of {global_name!r} must be str, not {type(name).__name__}"
            raise UsageTypeError(msg)
        if not callable(function):
            msg = f"{global_name}[{name!r}] must be callable, not {type(function).__name__}"
            raise UsageTypeError(msg)
        captured[name] = function
    return captured
