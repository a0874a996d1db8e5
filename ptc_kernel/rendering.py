"""The output of a run as a terminal or a model would read it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ptc_kernel.types import TextOutput

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ptc_kernel.types import PtcOutput

__all__ = ("fold_terminal", "rendered_text")

_ESCAPES: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor moves, private modes
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\|$)"  # OSC: titles, links
    r"|[PX^_].*?(?:\x1b\\|$)"  # DCS, SOS, PM, APC
    r"|[ -/]*[0-~])",  # the rest
    re.DOTALL,
)


def rendered_text(output: Iterable[PtcOutput]) -> str:
    """The texts joined, escape sequences removed, lines folded to their last state.

    An image is a line that gives its media type and size in pixels.
    """
    parts: list[str] = []
    for item in output:
        if isinstance(item, TextOutput):
            parts.append(item.text)
        else:
            image = item.attachment
            break_ = "" if not parts or parts[-1].endswith("\n") else "\n"
            parts.append(f"{break_}[{image.media_type} {image.width}x{image.height}]\n")
    return fold_terminal("".join(parts))


def fold_terminal(text: str) -> str:
    """The text without escape sequences; a carriage return or backspace overwrites what it goes back over."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n")
    if "\r" not in text and "\b" not in text:
        return text
    return "\n".join(_fold_line(line) if "\r" in line or "\b" in line else line for line in text.split("\n"))


def _fold_line(line: str) -> str:
    cells: list[str] = []
    at = 0
    for piece in re.split(r"([\r\b])", line):
        if piece == "\r":
            at = 0
        elif piece == "\b":
            at = max(at - 1, 0)
        else:
            cells[at : at + len(piece)] = piece
            at += len(piece)
    return "".join(cells)
