"""Builtins that the program cannot change under the worker's feet.

A program may set `builtins.len = None`. A module's functions look builtins up in the
`__builtins__` of their globals; the import system fills that in when it is missing. While
`builtins_kept` is active every module that is imported gets a copy instead: asyncio, ZMQ, IPython
and the worker go on working, and the program's own code sees what the program did.
"""

from __future__ import annotations

import builtins
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

__all__ = ("builtins_kept",)


@contextmanager
def builtins_kept() -> Iterator[None]:
    """Give every module imported meanwhile its own view of the builtins of now."""
    copy = dict(vars(builtins))
    execute = SourceFileLoader.exec_module

    def exec_module(loader: SourceFileLoader, module: ModuleType) -> None:
        module.__dict__.setdefault("__builtins__", copy)
        execute(loader, module)

    SourceFileLoader.exec_module = exec_module  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del SourceFileLoader.exec_module
