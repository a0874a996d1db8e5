"""Compiles and runs programs in REPL form.

Plain Python first: a program that parses runs exactly as written. What does not parse is tried
with IPython's syntax. The last expression is the completion; it is returned, never displayed.
"""

from __future__ import annotations

import ast
import builtins
import collections
import contextvars
import inspect
import itertools
import linecache
import os
import re
import sys
import traceback
from inspect import CO_COROUTINE
from types import GeneratorType, ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

from ptc_kernel.kernel.interrupts import PROGRAM_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import CodeType, TracebackType

    from IPython.core.interactiveshell import InteractiveShell

    from ptc_kernel.kernel.interrupts import Interrupts

__all__ = ("Parsed", "Programs")

SOURCES_KEPT: Final = 200  # programs whose lines a traceback can still show
NO_RETURN: Final = "'return' outside a function: this is a REPL, end the program with the expression itself"
_FUTURE_FLAGS: Final = 0x1FF0000  # the CO_FUTURE_ flags of a code object
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_pid = os.getpid()


class Parsed:
    """A program that compiled: everything but the last expression, and that expression."""

    __slots__ = ("body", "last", "name")

    def __init__(self, name: str, body: CodeType | None, last: CodeType | None) -> None:
        self.name = name
        self.body = body
        self.last = last


class Programs:
    """Runs programs, all in one namespace and one persistent context."""

    def __init__(self, shell: InteractiveShell, interrupts: Interrupts) -> None:
        self._shell = shell
        self._interrupts = interrupts
        self._numbers = itertools.count(1)
        self._future = 0
        self._kept: collections.deque[str] = collections.deque()
        self.context = contextvars.copy_context()

    # ------------------------------------------------------------------ compile

    def compile(self, program: str) -> Parsed:
        """Compile a program without running any of it.

        Raises:
            Exception: a SyntaxError, or what else `compile` finds wrong with the source.
        """
        name = f"{PROGRAM_FILE} {next(self._numbers)}>"
        source, tree = self._parse(program.removeprefix("\ufeff"), name)
        self._keep_source(name, source)
        body = tree.body
        last = ast.Expression(body[-1].value) if body and isinstance(body[-1], ast.Expr) else None
        if last is not None:
            del body[-1]
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | self._future
        compiled = None
        if body:
            compiled = compile(tree, name, "exec", flags, dont_inherit=True)
            flags |= compiled.co_flags & _FUTURE_FLAGS
        final = None if last is None else compile(last, name, "eval", flags, dont_inherit=True)
        self._future = flags & _FUTURE_FLAGS
        return Parsed(name, compiled, final)

    def _parse(self, program: str, name: str) -> tuple[str, ast.Module]:
        try:
            tree = ast.parse(program, name)
        except SyntaxError as error:
            other = self._as_ipython(program)
            if other is None:
                raise
            try:
                program, tree = other, ast.parse(other, name)
            except SyntaxError:
                raise error from None
        if "return" in program:
            _refuse_return(tree, program, name)
        return program, tree

    def _as_ipython(self, program: str) -> str | None:
        """The program with IPython's syntax turned into Python, or None when there is none in it."""
        try:
            other = str(self._shell.transform_cell(program))  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 - the first SyntaxError is the one to report
            return None
        return None if other.strip() == program.strip() else other

    def _keep_source(self, name: str, source: str) -> None:
        linecache.cache[name] = (len(source), None, source_lines(source), name)
        self._kept.append(name)
        if len(self._kept) > SOURCES_KEPT:
            linecache.cache.pop(self._kept.popleft(), None)

    # ------------------------------------------------------------------ run

    async def run(self, program: Parsed) -> tuple[tuple[Any, ...], BaseException | None]:
        """Run to the end; returns the completion, if there is one, and what was raised.

        Catches everything: a KeyboardInterrupt that leaves a task ends the event loop.
        """
        namespace = self._shell.user_ns
        error: BaseException | None = None
        completion: tuple[Any, ...] = ()
        try:
            self._interrupts.release()
            if program.body is not None:
                result = eval(program.body, namespace)  # noqa: S307 - this is what a kernel is for
                if program.body.co_flags & CO_COROUTINE:
                    await result
            if program.last is not None:
                value = eval(program.last, namespace)  # noqa: S307
                if program.last.co_flags & CO_COROUTINE:
                    value = await value
                if is_awaitable(value):
                    value = await value
                completion = (value,)
        except BaseException as raised:  # noqa: BLE001
            error = raised
            trace = _traceback_of(raised)
            if trace is not None:  # without this frame, which holds the exception: no cycle keeps it alive
                BaseException.with_traceback(raised, trace.tb_next)
        if os.getpid() != _pid:
            _end_fork(error)
        return completion, error


_traceback_of: Callable[[BaseException], TracebackType | None]
_traceback_of = vars(BaseException)["__traceback__"].__get__  # a subclass may hide the attribute


def source_lines(source: str) -> list[str]:
    """The lines as Python counts them: `str.splitlines` knows more line ends than the tokenizer."""
    return _LINES.findall(source)


_LINES: Final = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def is_awaitable(value: object) -> bool:
    """Whether `await` takes this value; asks its type only, never code of the program."""
    kind = type(value)
    if kind is GeneratorType:
        return bool(
            cast("GeneratorType[Any, Any, Any]", value).gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE
        )
    return any("__await__" in _namespace_of(base) for base in _mro_of(kind))


_mro_of: Callable[[type], tuple[type, ...]] = vars(type)["__mro__"].__get__
_namespace_of: Callable[[type], Mapping[str, object]] = vars(type)["__dict__"].__get__


def _refuse_return(tree: ast.Module, program: str, name: str) -> None:
    for node in _own_nodes(tree):
        if isinstance(node, ast.Return):
            line = source_lines(program)[node.lineno - 1].rstrip("\r\n")
            raise SyntaxError(NO_RETURN, (name, node.lineno, node.col_offset + 1, line))


def _own_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of the program itself, without the bodies of functions and classes."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, (ast.Module, ast.stmt, ast.ExceptHandler, ast.match_case)) and not isinstance(
            node, _SCOPES
        ):
            waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]


def _end_fork(error: BaseException | None) -> None:
    """A forked child came back out of the program: it must never run the kernel's loop."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        code = 1
        traceback.print_exception(error, file=sys.stderr)
    os._exit(code)


def repair_namespace(namespace: dict[str, Any]) -> None:
    """Give a namespace that a program cleared what Python needs in it."""
    if not isinstance(namespace.get("__builtins__"), ModuleType):
        namespace["__builtins__"] = builtins
    namespace.setdefault("__name__", "__main__")


def leave(code: object = None) -> None:
    """Raise SystemExit, as `exit()` does; the kernel lives on."""
    raise SystemExit(code)


def refuse_stdin(what: str) -> Callable[..., Any]:
    """A stand-in for a function that would read from a terminal."""

    def refused(*_args: Any, **_kwargs: Any) -> Any:
        msg = (
            f"{what} needs a person at a terminal; a program has no stdin: pass the data in, or use a binding"
        )
        raise RuntimeError(msg)

    return refused
