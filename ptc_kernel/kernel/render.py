"""The text of an uncaught exception: the program's own frames, no colours, no host paths."""

from __future__ import annotations

import linecache
import os
import sys
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any, Final

from ptc_kernel.kernel.interrupts import PROGRAM_FILE

if TYPE_CHECKING:
    import traceback
    from collections.abc import Iterator

__all__ = ("UNPRINTABLE", "program_traceback")


def _second_copy(name: str) -> Any:
    """A standard module of the worker's own, whatever a program does to the other one."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.__name__ = f"ptc_{name}"
    return module


if not TYPE_CHECKING:
    traceback = _second_copy("traceback")
    traceback.linecache = _second_copy("linecache")
    traceback.linecache.cache = linecache.cache  # where the sources of programs are

UNPRINTABLE: Final = "an exception that cannot be printed"
MOST_FRAMES: Final = 100
_PACKAGES: Final = ("site-packages", "dist-packages")
_FOLDERS: Final = [
    *((folder, "<packages>") for folder in sys.path if os.path.basename(folder) in _PACKAGES),
    (os.path.dirname(os.__file__), "<stdlib>"),
]


def program_traceback(error: BaseException) -> str:
    """The traceback as Python prints it, limited to program frames; never raises."""
    try:
        report = traceback.TracebackException(type(error), error, error.__traceback__, compact=True)
        for part in _parts(report):
            frames = [frame for frame in part.stack if frame.filename.startswith(PROGRAM_FILE)]
            part.stack = traceback.StackSummary.from_list(_middle_out(frames))
        return _without_folders("".join(report.format()).rstrip("\n"))
    except BaseException:  # noqa: BLE001 - __str__ and __notes__ are code of the program
        return UNPRINTABLE


def _without_folders(text: str) -> str:
    """The text without where this interpreter is installed (an ImportError names the file)."""
    for folder, name in _FOLDERS:
        text = text.replace(folder, name)
    return text


def _parts(report: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """The report with its causes, contexts and group members."""
    waiting = [report]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += [other for other in (part.__cause__, part.__context__) if other is not None]
        waiting += part.exceptions or []


def _middle_out(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The first and the last frames of a deep recursion."""
    if len(frames) <= MOST_FRAMES:
        return frames
    return frames[: MOST_FRAMES // 2] + frames[-MOST_FRAMES // 2 :]
