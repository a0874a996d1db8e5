"""The synchronous twin: the same REPL for scripts and notebooks, over one thread with an event loop.

    from ptc_kernel.blocking import open_repl

    with open_repl(tools={"double": lambda n: n * 2}) as repl:
        assert repl.run("await tools.double(21)").value == 42

It works inside a running event loop too, because the loop of the kernels is another one. Your
functions run in that thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from anyio.from_thread import BlockingPortal, start_blocking_portal

from ptc_kernel.repl import Repl
from ptc_kernel.repl import open_repl as _open_repl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

    from ptc_kernel.config import JupyterPtcConfig
    from ptc_kernel.types import (
        PtcBindingFunction,
        PtcBindingNamespace,
        PtcEvent,
        PtcJsonValue,
        PtcRunResult,
    )

__all__ = ("BlockingRepl", "open_repl")


@final
class BlockingRepl:
    """A `Repl` whose methods block; made by `open_repl`. Any thread may call it."""

    def __init__(self, repl: Repl, portal: BlockingPortal, thread: AbstractContextManager[Any]) -> None:
        self._repl = repl
        self._portal = portal
        self._thread = thread
        self._closed = False

    def run(self, program: str, **fields: Any) -> PtcRunResult:
        """Run a program; see `Repl.run`. A KeyboardInterrupt here stops the program first.

        Raises:
            UsageError: for the reasons that `Repl.run` has.
        """

        async def run() -> PtcRunResult:
            return await self._repl.run(program, **fields)

        future = self._portal.start_task_soon(run)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def stream(self, program: str, **fields: Any) -> Iterator[PtcEvent]:
        """Run a program and yield its events; see `Repl.stream`.

        Raises:
            UsageError: for the reasons that `Repl.stream` has.
        """

        async def begin() -> Any:
            return self._repl.stream(program, **fields)

        stream = self._portal.call(begin)
        try:
            while True:
                try:
                    yield self._portal.call(stream.__anext__)
                except StopAsyncIteration:
                    return
        finally:
            self._portal.call(stream.aclose)

    def put(self, name: str, value: PtcJsonValue) -> None:
        """Set a variable; see `Repl.put`.

        Raises:
            UsageValueError: the name is no identifier, or the value is not lossless JSON.
            PtcRunError: the program that sets it failed.
        """
        self._portal.call(self._repl.put, name, value)

    def get(self, name: str) -> PtcJsonValue:
        """The value of a variable; see `Repl.get`.

        Raises:
            UsageValueError: the name is no identifier.
            PtcRunError: there is no such variable, or its value is not lossless JSON.
        """
        return self._portal.call(self._repl.get, name)

    def reset(self) -> None:
        """End the kernel; the next program starts fresh.

        Raises:
            ReleaseError: something could not be cleaned up.
        """
        self._portal.call(self._repl.reset)

    def close(self) -> None:
        """End the kernel, the runtime and the thread; idempotent.

        Raises:
            ReleaseError: something could not be cleaned up.
        """
        if not self._closed:
            self._closed = True
            try:
                self._portal.call(self._repl.aclose)
            finally:
                self._thread.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_repl(
    tools: Mapping[str, PtcBindingFunction] | None = None,
    *,
    namespaces: Sequence[PtcBindingNamespace] = (),
    config: JupyterPtcConfig | Mapping[str, Any] | None = None,
    cwd: str | None = None,
    prelude: str | None = None,
    display_completion: bool = True,
) -> BlockingRepl:
    """A REPL for programs that call your functions; the arguments are those of `ptc_kernel.open_repl`.

    Raises:
        ConfigError: the configuration is not usable.
    """
    thread = start_blocking_portal("asyncio")
    portal = thread.__enter__()

    async def make() -> Repl:
        return _open_repl(
            tools,
            namespaces=namespaces,
            config=config,
            cwd=cwd,
            prelude=prelude,
            display_completion=display_completion,
        )

    try:
        return BlockingRepl(portal.call(make), portal, thread)
    except BaseException:
        thread.__exit__(None, None, None)
        raise
