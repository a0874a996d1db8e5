"""What the worker needs of ipykernel, looked up before it is relied upon.

Another version then fails at start with one clear line, and not in the middle of a run.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Final

__all__ = ("check_internals", "check_version", "stub_debugger")

NEEDED: Final = (7, 4)  # 7.0 to 7.3 can strand shell requests


def check_version() -> None:
    """End this process with a clear line when ipykernel is missing or too old."""
    needed = ".".join(map(str, NEEDED))
    try:
        found = version("ipykernel")
    except PackageNotFoundError:
        sys.exit(f"ptc_kernel needs ipykernel >= {needed} in {sys.prefix}: pip install ipykernel")
    if tuple(int(part) for part in found.split(".")[:2]) < NEEDED:
        sys.exit(
            f"ptc_kernel needs ipykernel >= {needed} in {sys.prefix}, found {found}: pip install -U ipykernel"
        )


def stub_debugger() -> None:
    """`IPythonKernel.__init__` imports debugpy, for 50 ms; a hosted kernel has no debugger."""
    stub = ModuleType("ipykernel.debugger")
    vars(stub).update(_is_debugpy_available=False, Debugger=type("Debugger", (), {}))
    sys.modules["ipykernel.debugger"] = stub


def check_internals(relied_on: dict[type, tuple[str, ...]]) -> None:
    """End this process with a clear line when a class lacks an attribute that we rely on."""
    missing = [
        f"{cls.__name__}.{name}"
        for cls, names in relied_on.items()
        for name in names
        if not hasattr(cls, name)
    ]
    if missing:
        found = version("ipykernel")
        sys.exit(f"ptc_kernel does not know this ipykernel ({found}): it has no {', '.join(missing)}")
