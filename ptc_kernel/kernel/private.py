"""What the worker stands on, kept out of the program's reach.

A program may set `builtins.len = None` or patch `time.time` and `json.dumps`, for good reasons or
bad ones. asyncio, ZMQ, Jupyter and the worker go on working, and the program's own code sees what
the program did:

- A module's functions look builtins up in the `__builtins__` of their globals, which the import
  system fills in when it is missing. While `BuiltinsKept` is active every module that is imported
  gets a copy instead.
- Afterwards `keep_modules` gives the modules that the kernel runs on their own copies of the
  standard modules that they name.

This module imports next to nothing: what it imported would not be protected.
"""

from __future__ import annotations

import builtins
import sys
from importlib.machinery import SourceFileLoader

__all__ = ("BuiltinsKept", "keep_modules")

RUNS_ON = (
    "asyncio",
    "comm",
    "concurrent",
    "ipykernel",
    "jupyter_client",
    "ptc_kernel",
    "selectors",
    "tornado",
    "zmq",
)
SHARED = ("builtins", "getpass", "sys", "threading")  # what the worker itself changes for the program


class BuiltinsKept:
    """A context in which every module that is imported keeps the builtins of now."""

    def __enter__(self) -> None:
        copy = dict(vars(builtins))
        execute = SourceFileLoader.exec_module

        def exec_module(loader, module):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            module.__dict__.setdefault("__builtins__", copy)
            execute(loader, module)

        SourceFileLoader.exec_module = exec_module  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        del SourceFileLoader.exec_module


def keep_modules() -> None:
    """Let what the kernel runs on name copies of the standard modules, made now."""
    module_type = type(sys)
    copies: dict[str, object] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in RUNS_ON:
            continue
        for key, value in list(vars(module).items()):
            if type(value) is not module_type or key == "__builtins__":
                continue
            original = value.__name__
            if original in SHARED or original.partition(".")[0] not in sys.stdlib_module_names:
                continue
            if original not in copies:
                copy = copies[original] = module_type(original)
                vars(copy).update(vars(value))
            if not _is_parent(name, original):
                setattr(module, key, copies[original])


def _is_parent(package: str, name: str) -> bool:
    """Whether `package.x` is how programs reach the module `package.x`: that one stays shared."""
    return name.startswith(f"{package}.")
