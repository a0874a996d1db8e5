"""The main job on real input: an agent's session over the sources of Python's standard library.

Six programs, as a model would write them, run in one kernel. The files are read by functions of
this process; the programs call them, keep what they learn, fail, run away, and go on.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import textwrap
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from anyio import to_thread

from ptc_kernel import (
    ImageOutput,
    JupyterPtcRuntime,
    PtcBindingErrorClass,
    PtcBindingNamespace,
    PtcRunRequest,
    PtcRunResult,
    StateOwner,
    TextOutput,
)

if TYPE_CHECKING:
    from ptc_kernel.types import PtcJsonValue

__all__ = ("TURNS", "Turn", "run_demo", "standard_library")

PLOT: Final = "ptc-demo.png"
SKIPPED: Final = frozenset({"test", "tests", "site-packages", "idlelib", "lib2to3", "__pycache__"})


class Turn(NamedTuple):
    """One turn of the session: what the agent wants, its program, and its budget."""

    aim: str
    program: str
    timeout_ms: float = 60_000


TURNS: Final = (
    Turn(
        "Read a few hundred modules at once and keep the facts",
        """\
import ast, asyncio

paths = await files.list({"suffix": ".py", "most": 300})
sources = await asyncio.gather(*[files.read({"path": path}) for path in paths])

facts = {}
for path, source in zip(paths, sources):
    nodes = list(ast.walk(ast.parse(source)))
    facts[path] = {
        "lines": source.count("\\n"),
        "functions": [n for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))],
        "imports": {a.name.split(".")[0] for n in nodes if isinstance(n, ast.Import) for a in n.names},
    }
print(f"{len(facts)} modules, {sum(f['lines'] for f in facts.values()):,} lines")""",
    ),
    Turn(
        "Compute over what was kept, and return JSON",
        """\
from collections import Counter

functions = [(path, f) for path, fact in facts.items() for f in fact["functions"]]
path, longest = max(functions, key=lambda item: item[1].end_lineno - item[1].lineno)
{
    "functions": len(functions),
    "async_functions": sum(isinstance(f, ast.AsyncFunctionDef) for _, f in functions),
    "longest_function": f"{longest.name} in {path}, {longest.end_lineno - longest.lineno + 1} lines",
    "most_imported": dict(Counter(m for fact in facts.values() for m in fact["imports"]).most_common(5)),
}""",
    ),
    Turn(
        "Draw what was found; the figure is an image among the output",
        """\
try:
    import matplotlib.pyplot as plt
except ImportError:
    print("no figure without matplotlib")
else:
    top = sorted(facts, key=lambda path: facts[path]["lines"])[-8:]
    plt.figure(figsize=(7, 3.5))
    plt.barh(top, [facts[path]["lines"] for path in top])
    plt.xlabel("lines")
    plt.tight_layout()
    print("the largest modules:")
    plt.show()""",
    ),
    Turn(
        "Make a mistake; the session goes on",
        """\
try:
    await files.read({"path": "../../etc/passwd"})
except FileError as error:
    print(f"{type(error).__name__} from {error.member}: {error}")
facts["no_such_module.py"]["lines"]""",
    ),
    Turn(
        "Run away; it is stopped after one second, and its variables are kept",
        """\
rounds = 0
while True:
    rounds += 1
    busiest = max(facts, key=lambda path: len(facts[path]["functions"]))""",
        1_000,
    ),
    Turn(
        "Show that everything was kept",
        """\
{"modules": len(facts), "rounds_before_the_stop": rounds, "busiest_module": busiest}""",
    ),
)


def standard_library(root: str) -> PtcBindingNamespace:
    """Host functions that list and read the files below `root`, and nothing else."""

    async def list_files(query: dict[str, PtcJsonValue]) -> list[str]:
        found = await to_thread.run_sync(_files_below, root, str(query.get("suffix", "")))
        most = query.get("most")
        return found[:most] if isinstance(most, int) else found

    async def read_file(query: dict[str, PtcJsonValue]) -> str:
        return await to_thread.run_sync(_read_below, root, str(query["path"]))

    error_class = PtcBindingErrorClass(name="FileError", member_name_property="member")
    functions = {"list": list_files, "read": read_file}
    return PtcBindingNamespace(global_name="files", functions=functions, error_class=error_class)


def _files_below(root: str, suffix: str) -> list[str]:
    found: list[str] = []
    for folder, folders, names in os.walk(root):
        folders[:] = set(folders) - SKIPPED
        paths = (os.path.join(folder, name) for name in names if name.endswith(suffix))
        found += [os.path.relpath(path, root) for path in paths]
    return sorted(found)


def _read_below(root: str, name: str) -> str:
    path = os.path.realpath(os.path.join(root, name))
    if not path.startswith(os.path.realpath(root) + os.sep):
        raise PermissionError("only files of the standard library can be read")
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


async def run_demo() -> bool:
    """Play the session and print each turn; True when every turn went as it should."""
    root = sysconfig.get_paths()["stdlib"]
    agent = StateOwner("demo agent")
    kinds = []
    _say(f"An agent's session over {root}, one kernel for all turns.\n")
    async with JupyterPtcRuntime() as runtime:
        for number, turn in enumerate(TURNS, 1):
            request = PtcRunRequest(
                program=turn.program,
                bindings=(standard_library(root),),
                state_owner=agent,
                timeout_ms=turn.timeout_ms,
            )
            began = time.perf_counter()
            result = await runtime.run(runtime.resolve(request))
            kinds.append(None if result.error is None else result.error.kind)
            _show(number, turn, result, time.perf_counter() - began)
            _save_images(runtime, result)
        await runtime.release(agent)
    _say("The owner was released: its kernel and everything that it started are gone.")
    return kinds == [None, None, None, "exception", "timeout", None]


def _show(number: int, turn: Turn, result: PtcRunResult, seconds: float) -> None:
    _say(f"--- Turn {number}: {turn.aim}")
    _say(textwrap.indent(turn.program, "  | ", lambda _: True))
    for item in result.output:
        if isinstance(item, TextOutput):
            _say(_labelled(item.channel, item.text))
        else:
            _say(_labelled("image", item.attachment.attachment_id))
    if result.has_value and result.value is not None:
        _say(_labelled("value", json.dumps(result.value, indent=2, ensure_ascii=False)))
    if result.error is not None:
        _say(_labelled(result.error.kind, result.error.message))
    calls = f"{result.calls_total} binding calls, " if result.calls_total else ""
    _say(f"  [{calls}{seconds:.2f} s, variables {result.state}]\n")


def _save_images(runtime: JupyterPtcRuntime, result: PtcRunResult) -> None:
    for item in result.output:
        if isinstance(item, ImageOutput):
            with open(PLOT, "wb") as file:
                file.write(runtime.attachments.get(item.attachment))
            size = f"{item.attachment.width}x{item.attachment.height}"
            _say(f"  The figure, {size} pixels, was saved as {os.path.abspath(PLOT)}\n")


def _labelled(label: str, text: str) -> str:
    """The text with its label before the first line, and the others aligned below it."""
    head = f"  {label}: "
    return head + text.rstrip("\n").replace("\n", "\n" + " " * len(head))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
