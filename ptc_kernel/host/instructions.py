"""What a model is told about programs; the same bytes for the same configuration."""

from __future__ import annotations

from typing import Final

__all__ = ("EXECUTION_INSTRUCTIONS",)

EXECUTION_INSTRUCTIONS: Final = """\
The program is a cell of a persistent Python REPL: names, imports and functions stay for the next call.
The last expression is the result; a top-level `return` is a syntax error. Top-level `await` works; `asyncio.run` does not.
The result must be plain JSON types: convert tuples, sets, dates, numpy and pandas objects (list(), str(), .tolist(), .to_dict()).
Printed text is shown. Display figures and images, or call `inspect(value)`, to show them; all of it appears in the order in which it was made.
Host functions are members of namespaces: `await tools.name({{"key": value}})` or `await tools.name(key=value)`, one JSON value each; \
`asyncio.gather` runs up to {max_pending_calls} at once. In blocking code use `tools.name.sync(...)`.
When a call takes too long or is cancelled, the program is interrupted and variables are kept. Where it cannot be interrupted, \
or it crashes or prints without end, variables are lost and reset, and the result says so.
There is no stdin. Relative paths start at the working directory. The environment is scrubbed. Files can be read and written as the host's user.
"""
