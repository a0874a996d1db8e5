"""Builtins that the program cannot change under the worker's feet.

A program may set `builtins.len = None`. A module's functions look builtins up in the
`__builtins__` of their globals; the import system fills that in when it is missing. While
`BuiltinsKept` is active every module that is imported gets a copy instead: asyncio, ZMQ, IPython
and the worker go on working, and the program's own code sees what the program did.

This module imports next to nothing: what it imported would not be protected.
"""

from __future__ import annotations

import builtins
from importlib.machinery import SourceFileLoader

__all__ = ("BuiltinsKept",)


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
