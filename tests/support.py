"""What the live tests share: a session of one owner, namespaces, and looks at the machine."""

from __future__ import annotations

import os
from typing import Any

from ptc_kernel import (
    JupyterPtcRuntime,
    PtcBindingErrorClass,
    PtcBindingNamespace,
    PtcRunRequest,
    PtcRunResult,
    StateOwner,
    TextOutput,
)


def namespace(
    name: str = "tools", error: tuple[str, str] | None = ("ToolCallError", "toolName"), **functions: Any
) -> PtcBindingNamespace:
    """A namespace of these functions; exotic member names go through `**{"my-tool": f}`."""
    error_class = (
        None if error is None else PtcBindingErrorClass(name=error[0], member_name_property=error[1])
    )
    return PtcBindingNamespace(global_name=name, functions=functions, error_class=error_class)


async def echo(argument: Any) -> Any:
    """A handler that answers its argument."""
    return argument


class Session:
    """Runs programs for one owner; `owner=None` makes every run one-shot."""

    def __init__(self, runtime: JupyterPtcRuntime, owner: object | None = ..., bindings: Any = ()) -> None:
        self.runtime = runtime
        self.owner = StateOwner("test") if owner is ... else owner
        self.bindings = bindings

    async def run(self, program: str, *bindings: PtcBindingNamespace, **fields: Any) -> PtcRunResult:
        """Resolve and run one program."""
        request = PtcRunRequest(
            program=program, bindings=bindings or self.bindings, state_owner=self.owner, **fields
        )
        return await self.runtime.run(self.runtime.resolve(request))

    async def value(self, program: str, *bindings: PtcBindingNamespace, **fields: Any) -> Any:
        """The value of a program that must end well."""
        result = await self.run(program, *bindings, **fields)
        assert result.error is None, result.error
        return result.value

    async def pid(self) -> int:
        """The process id of the owner's kernel."""
        return await self.value("__import__('os').getpid()")


def kind(result: PtcRunResult) -> str | None:
    """The failure kind of a result, None when it ended well; checks that a failure has no value."""
    if result.error is None:
        return None
    assert not result.has_value
    return result.error.kind


def text(result: PtcRunResult, channel: str | None = None) -> str:
    """The text outputs joined, of one channel or of all."""
    return "".join(
        item.text
        for item in result.output
        if isinstance(item, TextOutput) and channel in (None, item.channel)
    )


def entries(result: PtcRunResult) -> list[tuple[str, str]]:
    """The text outputs as (channel, text)."""
    return [(item.channel, item.text) for item in result.output if isinstance(item, TextOutput)]


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def children() -> set[int]:
    """The living children of this process."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid() and fields[0] != b"Z":
                found.add(int(name))
    return found
