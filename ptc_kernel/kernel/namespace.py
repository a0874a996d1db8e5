"""What the program sees of the host's functions: namespaces, their members, their error classes."""

from __future__ import annotations

import asyncio
import collections.abc
from asyncio import CancelledError
from asyncio import get_running_loop as _running_loop
from typing import TYPE_CHECKING, Any, NoReturn

from ptc_kernel.kernel.bridge import RefusedCallError
from ptc_kernel.kernel.images import place_images
from ptc_kernel.kernel.interrupts import block
from ptc_kernel.protocol.lossless import LossyValueError, decode, encode

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from ptc_kernel.kernel.bridge import Bridge, Call
    from ptc_kernel.kernel.interrupts import Interrupts
    from ptc_kernel.kernel.runs import Run

__all__ = ("Namespace", "Namespaces")

_own = object.__getattribute__


class Namespace:
    """A global object whose attributes and items are the host's functions."""

    __slots__ = ("_members", "_name")

    _members: dict[str, Member]
    _name: str

    def __getattribute__(self, name: str) -> Any:
        members = _own(self, "_members")
        if name in members:
            return members[name]
        if name.startswith("__"):
            return _own(self, name)
        msg = f"{_own(self, '_name')} has no member {name!r}; it has {_listing(members)}"
        raise AttributeError(msg)

    def __getitem__(self, name: str) -> Member:
        members: dict[str, Member] = _own(self, "_members")
        if name not in members:
            raise KeyError(name)
        return members[name]

    def __setattr__(self, name: str, value: object) -> NoReturn:
        msg = f"{_own(self, '_name')} is read-only"
        raise AttributeError(msg)

    def __delattr__(self, name: str) -> NoReturn:
        msg = f"{_own(self, '_name')} is read-only"
        raise AttributeError(msg)

    def __dir__(self) -> list[str]:
        return sorted(_own(self, "_members"))

    def __iter__(self) -> Iterator[str]:
        return iter(list(_own(self, "_members")))

    def __contains__(self, name: object) -> bool:
        return name in _own(self, "_members")

    def __len__(self) -> int:
        return len(_own(self, "_members"))

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<{_own(self, '_name')}: {_listing(_own(self, '_members'))}>"


def _listing(members: Mapping[str, object]) -> str:
    shown = ", ".join(sorted(members)[:20])
    return (
        shown + (f" and {len(members) - 20} more" if len(members) > 20 else "") if members else "no members"
    )


class Member:
    """One host function: `await member({...})`, or `member.sync({...})` from blocking code."""

    __slots__ = ("_binder", "_name", "_namespace")

    def __init__(self, binder: Namespaces, namespace: str, name: str) -> None:
        self._binder = binder
        self._namespace = namespace
        self._name = name

    def __call__(self, /, *args: Any, **kwargs: Any) -> PendingCall:
        """Issue the call now; await what is returned for its answer.

        Raises:
            TypeError: anything but one positional JSON value or keyword arguments.
        """
        argument = self._argument(args, kwargs)
        try:
            loop = _running_loop()
        except RuntimeError:
            msg = f"no event loop runs in this thread; use {self!r}.sync(...)"
            raise RuntimeError(msg) from None
        return self._binder.issue(self._namespace, self._name, argument, loop)

    def sync(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call, and block this thread until the answer is there.

        Raises:
            TypeError: anything but one positional JSON value or keyword arguments.
        """
        pending = self._binder.issue(self._namespace, self._name, self._argument(args, kwargs), None)
        return pending.wait()

    def _argument(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) > 1 or (args and kwargs):
            msg = (
                f"{self!r} takes one JSON value or keyword arguments: "
                f"await {self!r}({{'name': value}}) or await {self!r}(name=value)"
            )
            raise TypeError(msg)
        return args[0] if args else kwargs

    def __repr__(self) -> str:
        if self._name.isidentifier():
            return f"{self._namespace}.{self._name}"
        return f"{self._namespace}[{self._name!r}]"


class PendingCall(collections.abc.Coroutine[Any, Any, Any]):
    """A call that was issued; a coroutine for `await`, `gather` and `create_task`."""

    __slots__ = ("_binder", "_call", "_generator", "_member", "_namespace", "_refusal")

    def __init__(
        self, binder: Namespaces, namespace: str, member: str, call: Call | None, refusal: str = ""
    ) -> None:
        self._binder = binder
        self._namespace = namespace
        self._member = member
        self._call = call
        self._refusal = refusal
        self._generator: Generator[Any, Any, Any] | None = None

    def wait(self) -> Any:
        """Block until the answer is there."""
        if self._call is not None:
            block(self._call.gate)
        return self._result()

    def __await__(self) -> Generator[Any, Any, Any]:
        call = self._call
        if call is not None and call.future is not None:
            if not call.future.done():
                yield from call.future
            elif call.future.cancelled():
                raise CancelledError
        return self._result()

    def _result(self) -> Any:
        call = self._call
        ok, text = (False, self._refusal) if call is None else call.answer
        if ok:
            value = decode(text)
            if call is not None and call.images:
                value = place_images(value, call.images)
            self._binder.interrupts.release()
            return value
        raise self._binder.rejection(self._namespace, self._member, text)

    def _running(self) -> Generator[Any, Any, Any]:
        if self._generator is None:
            self._generator = self.__await__()
        return self._generator

    def send(self, value: Any, /) -> Any:
        return self._running().send(value)

    def throw(self, *exception: Any) -> Any:
        return self._running().throw(*exception)

    def close(self) -> None:
        if self._generator is not None:
            self._generator.close()


class Namespaces:
    """Puts the bindings of each run into the program's globals, and takes those of earlier runs out."""

    def __init__(self, bridge: Bridge, interrupts: Interrupts) -> None:
        self.interrupts = interrupts
        self._bridge = bridge
        self._namespaces: dict[str, Namespace] = {}
        self._error_classes: dict[tuple[str, str, str], type[Exception]] = {}
        self._errors: dict[str, tuple[type[Exception], str]] = {}
        self._injected: dict[str, object] = {}

    def bind(
        self,
        run: Run,
        names: Mapping[str, list[str]],
        errors: Mapping[str, tuple[str, str]],
        globals_: dict[str, Any],
    ) -> None:
        """Declare the namespaces of a run; the same objects serve every run of this kernel."""
        injected: dict[str, object] = {}
        for name, members in names.items():
            run.names[name] = frozenset(members)
            namespace = self._namespaces.setdefault(name, Namespace())
            object.__setattr__(namespace, "_name", name)
            object.__setattr__(namespace, "_members", {m: Member(self, name, m) for m in members})
            injected[name] = namespace
            self._errors.pop(name, None)
            if name in errors:
                self._errors[name] = self._error_class(name, *errors[name])
                injected[errors[name][0]] = self._errors[name][0]
        for name, was in self._injected.items():
            if name not in injected and globals_.get(name) is was:
                del globals_[name]
        globals_.update(injected)
        self._injected = injected

    def _error_class(self, namespace: str, name: str, member: str) -> tuple[type[Exception], str]:
        key = (namespace, name, member)
        if key not in self._error_classes:
            doc = f"A call of a {namespace} member was rejected."
            self._error_classes[key] = type(name, (Exception,), {"__module__": "__main__", "__doc__": doc})
        return self._error_classes[key], member

    def issue(
        self, namespace: str, member: str, argument: Any, loop: asyncio.AbstractEventLoop | None
    ) -> PendingCall:
        """Issue a call; a refusal is raised when the call is awaited, like any other rejection."""
        try:
            call = self._bridge.call(namespace, member, encode(argument), loop)
        except LossyValueError as error:
            text = f"the argument must be lossless JSON: {error}"
            return PendingCall(self, namespace, member, None, text)
        except RefusedCallError as error:
            return PendingCall(self, namespace, member, None, f"{namespace}[{member!r}]: {error}")
        self.interrupts.release()
        return PendingCall(self, namespace, member, call)

    def rejection(self, namespace: str, member: str, text: str) -> Exception:
        """The exception of a rejected call: the namespace's own class, or RuntimeError."""
        known = self._errors.get(namespace)
        if known is None:
            return RuntimeError(text)
        error_class, member_property = known
        error = error_class(text)
        error.__dict__[member_property] = member
        return error
