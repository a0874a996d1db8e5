"""A session in four lines: one runtime, one owner, one kernel."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast, final

from ptc_kernel.config import JupyterPtcConfig
from ptc_kernel.errors import UsageValueError
from ptc_kernel.protocol.lossless import LossyValueError, encode
from ptc_kernel.protocol.names import is_portable_identifier
from ptc_kernel.runtime import JupyterPtcRuntime
from ptc_kernel.types import (
    PtcBindingErrorClass,
    PtcBindingNamespace,
    PtcRunRequest,
    PtcRunResult,
    PtcRunSpec,
    StateOwner,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from ptc_kernel.types import PtcBindingFunction, PtcEvent, PtcJsonValue

__all__ = ("Repl", "open_repl")

TOOLS_ERROR: Final = PtcBindingErrorClass(name="ToolCallError", member_name_property="toolName")


@final
class Repl:
    """Programs of one owner, in one kernel; made by `open_repl`.

    Attributes:
        runtime: runs the programs.
        owner: the state owner of all of them.
    """

    def __init__(
        self,
        runtime: JupyterPtcRuntime,
        bindings: Sequence[PtcBindingNamespace],
        *,
        cwd: str | None,
        prelude: str | None,
        display_completion: bool,
    ) -> None:
        self.runtime: JupyterPtcRuntime = runtime
        self.owner: StateOwner = StateOwner("repl")
        self._bindings = tuple(bindings)
        self._cwd = cwd
        self._prelude = prelude
        self._display = display_completion
        self._prepared = False
        self._preparing = asyncio.Lock()

    def _spec(self, program: str, fields: Mapping[str, Any]) -> PtcRunSpec:
        defaults: dict[str, Any] = {
            "bindings": self._bindings,
            "cwd": self._cwd,
            "display_completion": self._display,
        }
        chosen: dict[str, Any] = {**defaults, **fields, "state_owner": self.owner}
        return self.runtime.resolve(PtcRunRequest(program=program, **chosen))

    async def run(self, program: str, **fields: Any) -> PtcRunResult:
        """Run a program; `fields` are those of `PtcRunRequest`.

        Where the environment is fresh, the prelude runs first; when that fails, its result is
        returned instead.

        Raises:
            UsageError: for the reasons that `JupyterPtcRuntime.resolve` and `run` have.
        """
        spec = self._spec(program, fields)
        prepared = await self._prepare()
        if prepared is None:
            return await self.runtime.run(spec)
        if prepared.error is not None:
            return prepared
        result = await self.runtime.run(spec)
        return replace(result, reset_reason=result.reset_reason or prepared.reset_reason)

    async def _prepare(self) -> PtcRunResult | None:
        """Run the prelude where the environment is fresh; None where there is nothing to do."""
        if self._prelude is None:
            return None
        async with self._preparing:
            if self._prepared and not self.runtime._is_fresh(self.owner):
                return None
            result = await self.runtime.run(self._spec(self._prelude, {}))
            self._prepared = result.error is None
            return result

    def stream(self, program: str, **fields: Any) -> AsyncIterator[PtcEvent]:
        """Run a program and yield its events; the prelude is not run.

        Raises:
            UsageError: for the reasons that `JupyterPtcRuntime.stream` has.
        """
        return self.runtime.stream(self._spec(program, fields))

    async def put(self, name: str, value: PtcJsonValue) -> None:
        """Set a variable to a JSON value.

        Raises:
            UsageValueError: the name is no identifier, or the value is not lossless JSON.
            PtcRunError: the program that sets it failed.
        """
        self._check_name(name)
        try:
            encode(value)
        except LossyValueError as error:
            msg = f"the value of {name} must be lossless JSON: {error}"
            raise UsageValueError(msg) from None
        source = PtcBindingNamespace(global_name="ptc_put", functions={"value": lambda _: value})
        result = await self.run(f"{name} = await ptc_put.value()", bindings=(source,))
        result.raise_for_error()

    async def get(self, name: str) -> PtcJsonValue:
        """The value of a variable.

        Raises:
            UsageValueError: the name is no identifier.
            PtcRunError: there is no such variable, or its value is not lossless JSON.
        """
        self._check_name(name)
        result = (await self.run(name, display_completion=False)).raise_for_error()
        value: Any = result.value
        return cast("PtcJsonValue", value)

    @staticmethod
    def _check_name(name: str) -> None:
        if not is_portable_identifier(name):
            msg = f"{name!r} is not the name of a variable"
            raise UsageValueError(msg)

    async def reset(self) -> None:
        """End the kernel; the next program starts fresh.

        Raises:
            ReleaseError: something could not be cleaned up.
        """
        await self.runtime.release(self.owner)

    async def aclose(self) -> None:
        """End the kernel and the runtime; idempotent.

        Raises:
            ReleaseError: something could not be cleaned up.
        """
        await self.runtime.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def open_repl(
    tools: Mapping[str, PtcBindingFunction] | None = None,
    *,
    namespaces: Sequence[PtcBindingNamespace] = (),
    config: JupyterPtcConfig | Mapping[str, Any] | None = None,
    cwd: str | None = None,
    prelude: str | None = None,
    display_completion: bool = True,
) -> Repl:
    """A REPL for programs that call your functions.

    Args:
        tools: functions that the program sees as the namespace `tools`.
        namespaces: further namespaces.
        config: a configuration, or its fields as a mapping.
        cwd: absolute working directory of the programs; None is the current one.
        prelude: a program that runs first whenever the environment is fresh.
        display_completion: show a last expression that is not JSON, instead of failing.

    Raises:
        ConfigError: the configuration is not usable.

    Example:
        async with open_repl(tools={"double": lambda n: n * 2}) as repl:
            result = await repl.run("await tools.double(21)")
            assert result.value == 42
    """
    if not isinstance(config, JupyterPtcConfig):
        config = JupyterPtcConfig(**(config or {}))
    bindings = list(namespaces)
    if tools is not None:
        bindings.insert(0, PtcBindingNamespace(global_name="tools", functions=tools, error_class=TOOLS_ERROR))
    return Repl(
        JupyterPtcRuntime(config), bindings, cwd=cwd, prelude=prelude, display_completion=display_completion
    )
