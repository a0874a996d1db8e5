"""`ptc-kernel doctor`: what this machine has, what works on it, and what does not."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Final, NamedTuple

from ptc_kernel import (
    JupyterPtcRuntime,
    PtcBindingNamespace,
    PtcRunRequest,
    PtcRunResult,
    StateOwner,
    __version__,
)

__all__ = ("Check", "examine")

PACKAGES: Final = ("ipykernel", "jupyter-client", "pyzmq", "ipython", "anyio", "pillow", "matplotlib")
LEAST_FILES: Final = 1024  # about 6 per owner


class Check(NamedTuple):
    """One finding: `good` is None where it is only a fact."""

    name: str
    text: str
    good: bool | None = None


async def examine() -> list[Check]:
    """Look at the machine, start a kernel, and time it."""
    checks = [
        Check("ptc_kernel", __version__),
        Check("Python", f"{platform.python_version()} at {sys.executable}"),
        *(Check(name, _version(name)) for name in PACKAGES),
        _kernelspec(),
        _open_files(),
    ]
    return checks + await _live()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _kernelspec() -> Check:
    path = os.path.join(sys.prefix, "share", "jupyter", "kernels", "ptc_python3", "kernel.json")
    if os.path.isfile(path):
        return Check("kernelspec", "ptc_python3 is installed; a notebook finds it", good=True)
    return Check("kernelspec", f"{path} is missing: notebooks do not find ptc_python3; reinstall", good=False)


def _open_files() -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} open files: room for about {max(soft - 50, 0) // 6} owners"
    return Check("descriptors", text, good=soft >= LEAST_FILES)


async def _live() -> list[Check]:
    """A kernel of this Python: its start, a run, a binding call, a stop."""
    runtime, owner = JupyterPtcRuntime(), StateOwner("doctor")
    echo = PtcBindingNamespace(global_name="tools", functions={"echo": lambda value: value})

    async def run(program: str, timeout_ms: float = 60_000) -> tuple[float, PtcRunResult]:
        request = PtcRunRequest(program=program, bindings=(echo,), state_owner=owner, timeout_ms=timeout_ms)
        began = time.perf_counter()
        result = await runtime.run(runtime.resolve(request))
        return (time.perf_counter() - began) * 1000, result

    async with runtime:
        spent, first = await run("1 + 1")
        if first.error is not None:
            return [Check("start", f"no kernel: {first.error.message}", good=False)]
        warm = sorted([(await run("1 + 1"))[0] for _ in range(20)])[10]
        call, called = await run("await tools.echo({'n': 1})")
        _, stopped = await run("while True: pass", 200)
        kept = stopped.state == "kept"
    limits = f"{runtime.timeout.default_ms:g} ms, at most {runtime.timeout.max_ms:g} ms"
    return [
        Check("start", f"a new owner's first result came after {spent:.0f} ms", good=True),
        Check("run", f"a run takes {warm:.1f} ms", good=True),
        Check("binding", f"a run with a call takes {call:.1f} ms", good=called.value == {"n": 1}),
        Check("stop", "a busy program is interrupted and keeps its variables", good=kept),
        Check("limits", f"{limits}; output {runtime.config.max_output_bytes} bytes"),
        Check("confinement", "none: programs run as this user (see Safety in the README)"),
    ]
