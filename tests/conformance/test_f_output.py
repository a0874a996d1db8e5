"""Output and its account: conformance area F and section 10 of the contract, with real kernels."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from ptc_kernel import (
    AbortController,
    CallEvent,
    OutputEvent,
    PtcBindingNamespace,
    PtcRunRequest,
    ResultEvent,
    TextOutput,
)
from tests.support import Session, echo, entries, kind, namespace, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

    from ptc_kernel import JupyterPtcRuntime, PtcRunResult

MIB = 1024 * 1024
DEFAULT_CAP = 64 * MIB


def json_size(value: Any) -> int:
    """Bytes of the compact JSON of a value, as the contract counts them."""
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    paired = written.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    lone = sum("\ud800" <= character <= "\udfff" for character in paired)
    return len(paired.encode("utf-8", "surrogatepass")) + 3 * lone


def weight(result: PtcRunResult) -> int:
    """What a result weighs in the ledger."""
    texts = [item.text for item in result.output if isinstance(item, TextOutput)]
    assert len(texts) == len(result.output)
    total = 2 + sum(map(json_size, texts)) + max(len(texts) - 1, 0)
    if result.error is not None:
        return total + json_size(result.error.message)
    return total + json_size(result.value) if result.has_value else total


def is_longest_prefix(result: PtcRunResult, written: str, cap: int) -> bool:
    """Whether the result, of one channel, has as much of what was written as fits under the cap."""
    kept = text(result)
    assert len(result.output) == (1 if kept else 0)
    assert written.startswith(kept)
    assert weight(result) <= cap
    head = 0 if kept else 2
    return weight(result) + head + json_size(written[len(kept)]) - 2 > cap


def folded(outputs: Iterable[Any]) -> list[tuple[str, str]]:
    """Text outputs as (channel, text), neighbours of one channel joined."""
    pieces: list[tuple[str, list[str]]] = []
    for output in outputs:
        if not pieces or pieces[-1][0] != output.channel:
            pieces.append((output.channel, []))
        pieces[-1][1].append(output.text)
    return [(channel, "".join(texts)) for channel, texts in pieces]


def events_of(
    session: Session, program: str, *bindings: PtcBindingNamespace, **fields: Any
) -> AsyncIterator[Any]:
    """The stream of one program of the session's owner."""
    request = PtcRunRequest(program=program, bindings=bindings, state_owner=session.owner, **fields)
    return session.runtime.stream(session.runtime.resolve(request))


async def texts(session: Session, programs: dict[str, str]) -> dict[str, list[tuple[str, str]]]:
    """The outputs of programs that must end well, run one after the other."""
    outputs = {}
    for name, program in programs.items():
        result = await session.run(f"{program}\ndone = True")
        assert result.error is None, result.error
        outputs[name] = entries(result)
    return outputs


# ---------------------------------------------------------------------- capture


@pytest.mark.core
async def test_prints_are_one_entry(session: Session) -> None:
    """F01: neighbouring prints are one verbatim entry of stdout."""
    result = await session.run("print('a','b')\nprint()\nprint('c')")

    assert [("stdout", "a b\n\nc\n")] == entries(result)
    assert result.has_value
    assert result.value is None


@pytest.mark.core
async def test_channels_alternate(session: Session) -> None:
    """F02: writes to stdout, stderr and stdout are three entries in that order."""
    result = await session.run(
        "import sys\nsys.stdout.write('x')\nsys.stderr.write('y')\nsys.stdout.write('z')"
    )

    assert [("stdout", "x"), ("stderr", "y"), ("stdout", "z")] == entries(result)
    assert 1 == result.value


@pytest.mark.core
async def test_flush_splits_nothing(session: Session) -> None:
    """F03: a flush between two prints does not make two entries."""
    assert [("stdout", "ab\n")] == entries(await session.run("print('a',end='',flush=True)\nprint('b')"))


async def test_channels_keep_their_order(session: Session) -> None:
    """F04: alternating writes to both streams, with and without newlines, keep their exact order."""
    program = """\
import sys
for i in range(200):
    print('o', i, end='')
    print('e', i, file=sys.stderr, flush=i % 3 == 0)
"""
    wanted = [pair for i in range(200) for pair in (("stdout", f"o {i}"), ("stderr", f"e {i}\n"))]

    assert wanted == entries(await session.run(program))


PYTHON_LEVEL = {
    "writelines": ("import sys\nsys.stdout.writelines(['a\\n', 'b\\n'])", [("stdout", "a\nb\n")]),
    "stderr print": ("import sys\nprint('e', file=sys.stderr)", [("stderr", "e\n")]),
    "empty": ("import sys\nsys.stdout.write('')\nprint(end='')\nsys.stdout.flush()", []),
    "verbatim": (
        "print('tab\\tcr\\rbs\\bnul\\0esc\\x1b[31mred\\x1b[0m\\r\\nls\\u2028del\\x7f', end='')",
        [("stdout", "tab\tcr\rbs\bnul\0esc\x1b[31mred\x1b[0m\r\nls\u2028del\x7f")],
    ),
    "BOM": (
        "print('\\ufeffx')\nimport os\nos.write(1, b'\\xef\\xbb\\xbfy')",
        [("stdout", "\ufeffx\n\ufeffy")],
    ),
    "astral": ("print('\\U0001f600', 'é', '\\uffff')", [("stdout", "\U0001f600 é \uffff\n")]),
    "buffer": (
        "import sys\nsys.stdout.buffer.write(b'bytes\\n')\nprint('text')",
        [("stdout", "bytes\ntext\n")],
    ),
    "split in buffer": (
        "import sys\nfor byte in 'é\\u20ac\\U0001f600'.encode():\n    sys.stdout.buffer.write(bytes([byte]))",
        [("stdout", "é\u20ac\U0001f600")],
    ),
    "bytes-likes": (
        "import sys\nsys.stdout.buffer.write(bytearray(b'a'))\nsys.stdout.buffer.write(memoryview(b'b'))",
        [("stdout", "ab")],
    ),
    "str subclass": (
        (
            "class S(str):\n    def __str__(self): return 'lie'\n    def __len__(self): return 0\n"
            "import sys\nsys.stdout.write(S('truth'))"
        ),
        [("stdout", "truth")],
    ),
    "print_exc": (
        "import traceback\ntry:\n    1 / 0\nexcept Exception:\n    print(traceback.format_exc()[:9], end='')",
        [("stdout", "Traceback")],
    ),
    "redirect": (
        (
            "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as f:\n"
            "    print('caught')\n"
            "print('after', f.getvalue(), end='')"
        ),
        [("stdout", "after caught\n")],
    ),
    "redirect to stderr": (
        "import contextlib, sys\nwith contextlib.redirect_stdout(sys.stderr):\n    print('moved')",
        [("stderr", "moved\n")],
    ),
    "dunder streams": (
        "import sys\nfor f in (sys.__stdout__, sys.__stderr__):\n    print('x', file=f, flush=True)",
        [("stdout", "x\n"), ("stderr", "x\n")],
    ),
    "logging": ("import logging\nlogging.warning('careful')", [("stderr", "WARNING:root:careful\n")]),
    "pprint": ("from pprint import pprint\npprint({'a': 1})", [("stdout", "{'a': 1}\n")]),
    "many arguments": (
        "print(*range(1000), sep='\\n')",
        [("stdout", "".join(f"{i}\n" for i in range(1000)))],
    ),
}


async def test_python_level_writes(session: Session) -> None:
    """F01, contract 10.1: whatever is written through Python's streams arrives verbatim on its channel."""
    programs = {name: program for name, (program, _) in PYTHON_LEVEL.items()}

    assert {name: wanted for name, (_, wanted) in PYTHON_LEVEL.items()} == await texts(session, programs)


async def test_stream_objects(session: Session) -> None:
    """Contract 10.1: sys.stdout behaves as a text stream that is no terminal."""
    program = """\
import io, sys
refused = []
for value in (5, b'x', None):
    try:
        sys.stdout.write(value)
    except TypeError as e:
        refused.append(True)
[refused, sys.stdout.write('abc'), sys.stdout.isatty(), sys.stdout.writable(), sys.stdout.readable(),
 sys.stdout.fileno(), sys.stderr.fileno(), sys.stdout.encoding.lower(), isinstance(sys.stdout, io.TextIOBase),
 sys.stdout.closed]
"""

    result = await session.run(program)

    assert [[True] * 3, 3, False, True, False, 1, 2, "utf-8", True, False] == result.value
    assert [("stdout", "abc")] == entries(result)


async def test_stream_can_be_reconfigured(session: Session) -> None:
    """Contract 10.1: sys.stdout.reconfigure, which scripts call at their start, is no failure."""
    program = """\
import sys
sys.stdout.reconfigure(encoding='utf-8', errors='replace', line_buffering=True)
sys.stderr.reconfigure(errors='backslashreplace')
print('é')
"""

    result = await session.run(program)

    assert kind(result) is None
    assert [("stdout", "é\n")] == entries(result)


async def test_descriptor_writes(session: Session) -> None:
    """F05: bytes written to descriptors 1 and 2 arrive on their channels, decoded as UTF-8."""
    result = await session.run(
        "import os\nos.write(1, 'o é\\u20ac\\n'.encode())\nos.write(2, 'e \\U0001f600\\n'.encode())\nd = 1"
    )

    assert {("stdout", "o é\u20ac\n"), ("stderr", "e \U0001f600\n")} == set(entries(result))
    assert 2 == len(result.output)


CHILDREN = {
    "run": ("import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(\"child\")'])", "child\n"),
    "system": ("import os\nos.system('echo child')", "child\n"),
    "bang": ("!echo child", "child\n"),
    "popen": ("import os\nprint(os.popen('echo child').read(), end='')", "child\n"),
    "asyncio": (
        "import asyncio\nchild = await asyncio.create_subprocess_exec('echo', 'child')\nawait child.wait()",
        "child\n",
    ),
    "fork": (
        (
            "import os\nprint('parent')\npid = os.fork()\n"
            "if not pid:\n    os.write(1, b'child\\n')\n    os._exit(0)\n"
            "_ = os.waitpid(pid, 0)"
        ),
        "parent\nchild\n",
    ),
    "libc": (
        "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.printf(b'child\\n')\nlibc.fflush(None)",
        "child\n",
    ),
    "fdopen": ("import os\nwith os.fdopen(os.dup(1), 'w') as f:\n    f.write('child\\n')", "child\n"),
    "stdout as file": (
        "import subprocess, sys\nsubprocess.run(['echo', 'child'], stdout=sys.stdout, stderr=sys.stderr)",
        "child\n",
    ),
}


async def test_children_are_captured(session: Session) -> None:
    """F06: what a child process or C code writes to the inherited stdout is captured."""
    outputs = await texts(session, {name: program for name, (program, _) in CHILDREN.items()})

    assert {name: [("stdout", wanted)] for name, (_, wanted) in CHILDREN.items()} == outputs


@pytest.mark.parametrize("how", ["os.fork", "multiprocessing"])
async def test_forked_children_print(how: str, session: Session) -> None:
    """F06: what a forked child prints is captured once, and what its parent had printed is not repeated."""
    programs = {
        "os.fork": """\
import os, sys
print('before', end=' ')
pid = os.fork()
if not pid:
    print('child', end=' ')
    sys.stdout.flush()
    os._exit(0)
os.waitpid(pid, 0)
print('after')
""",
        "multiprocessing": """\
import multiprocessing, warnings
warnings.simplefilter('ignore')
def job():
    print('child', end=' ')
print('before', end=' ')
process = multiprocessing.get_context('fork').Process(target=job)
process.start()
process.join()
print('after')
""",
    }

    result = await session.run(programs[how], timeout_ms=10_000)

    assert result.error is None
    assert [("stdout", "before child after\n")] == entries(result)


@pytest.mark.core
async def test_output_before_an_exception(session: Session) -> None:
    """F08: printed text is kept, and the traceback is in the error only."""
    result = await session.run(
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\nraise ValueError('kaboom')"
    )

    assert "exception" == kind(result)
    assert [("stdout", "out\n"), ("stderr", "err\n")] == entries(result)
    assert result.error is not None
    assert "kaboom" in result.error.message


@pytest.mark.parametrize("how", ["print('before')", "import os\nos.write(1, b'before\\n')"])
async def test_output_before_a_hot_loop(how: str, session: Session) -> None:
    """F09: what was written before a hot loop survives its timeout."""
    await session.run("x = 1")  # the kernel is up

    result = await session.run(f"{how}\nwhile True:\n    pass", timeout_ms=500)

    assert "timeout" == kind(result)
    assert "before\n" == text(result)


async def test_output_before_an_abort(session: Session) -> None:
    """F09: what was written before an abort survives it."""
    controller, begun = AbortController(), asyncio.Event()

    async def begin(argument: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    program = "print('before')\nimport sys\nsys.stderr.write('too')\nawait tools.begin({})"
    running = asyncio.create_task(session.run(program, namespace(begin=begin), signal=controller.signal))
    await begun.wait()
    controller.abort()

    result = await running

    assert "abort" == kind(result)
    assert [("stdout", "before\n"), ("stderr", "too")] == entries(result)


async def test_many_lines(session: Session) -> None:
    """F11: 100,000 quick lines are all there, in order, and nothing comes after the result."""
    result = await session.run("for i in range(100_000):\n    print(i)")

    assert [("stdout", "".join(f"{i}\n" for i in range(100_000)))] == entries(result)
    assert () == (await session.run("1")).background


@pytest.mark.parametrize(
    "last",
    [
        "print({i})",
        "import os\nos.write(1, b'{i}\\n')\ndone = True",
        "import sys\nsys.stdout.write('{i}\\n')\nraise ValueError",
    ],
)
async def test_last_output_is_never_lost(last: str, session: Session) -> None:
    """F12: what is written right before the end is in the result, 200 times of 200."""
    results = [await session.run(last.format(i=i)) for i in range(200)]

    assert [f"{i}\n" for i in range(200)] == [text(result) for result in results]


async def test_last_output_of_a_child_is_never_lost(session: Session) -> None:
    """F12: what a child writes right before the end is in the result, 60 times of 60."""
    results = [await session.run(f"import os\nos.system('echo {i}')\ndone = True") for i in range(60)]

    assert [f"{i}\n" for i in range(60)] == [text(result) for result in results]


BROKEN_STREAMS = {
    "None": "sys.stdout = sys.stderr = None\nprint('lost')",
    "closed": "sys.stdout.close()\nsys.stderr.close()",
    "StringIO": "sys.stdout = io.StringIO()\nprint('kept elsewhere')",
    "closed StringIO": "sys.stdout = io.StringIO()\nsys.stdout.close()",
    "deleted": "del sys.stdout, sys.stderr",
    "object": "sys.stdout = sys.stderr = object()",
    "devnull": "sys.stdout = open(os.devnull, 'w')",
    "buffer closed": "sys.stdout.buffer.close()",
    "detached": "try:\n    sys.stdout.detach()\nexcept io.UnsupportedOperation:\n    pass",
    "dunder closed": "sys.__stdout__.close()",
    "patched write": "sys.stdout.write = None",
    "tee": (
        "class Tee:\n    def __init__(self, *streams): self.streams = streams\n"
        "    def write(self, text):\n        for stream in self.streams: stream.write(text)\n"
        "    def flush(self): pass\n"
        "sys.stdout = Tee(sys.stdout, io.StringIO())\nsys.stdout.write('')"
    ),
}


async def test_broken_streams(session: Session) -> None:
    """F14: a program that replaces or closes its streams ends well; the next one's prints are captured."""
    outcomes = {}
    for name, program in BROKEN_STREAMS.items():
        first = await session.run(f"import io, os, sys\n{program}\n'value'")
        second = await session.run("import sys\nprint('out')\nprint('err', file=sys.stderr)\n'next'")
        outcomes[name] = [
            first.error,
            first.value,
            entries(first),
            second.error,
            second.value,
            entries(second),
        ]

    next_entries = [("stdout", "out\n"), ("stderr", "err\n")]
    assert {name: [None, "value", [], None, "next", next_entries] for name in BROKEN_STREAMS} == outcomes


async def test_string_io_in_place_of_stdout(session: Session) -> None:
    """F14: a StringIO that a program puts in the place of stdout gets its prints, and no other's."""
    result = await session.run(
        "import io, sys\nmine = sys.stdout = io.StringIO()\nprint('x')\nmine.getvalue()"
    )

    assert "x\n" == result.value
    assert [] == result.output
    assert "x\n" == await session.value("print('y')\nmine.getvalue()")


DISPLAYS = {
    "repr": ("class P:\n    def __repr__(self): return 'plain P'\ndisplay(P())", "plain P"),
    "table": (
        (
            "class Frame:\n    def __repr__(self): return '   a  b\\n0  1  2'\n"
            "    def _repr_html_(self): return '<table></table>'\ndisplay(Frame())"
        ),
        "   a  b\n0  1  2",
    ),
    "several": ("display(1, 'two', [3])", "1\n'two'\n[3]"),
    "html": (
        "from IPython.display import HTML\ndisplay(HTML('<b>x</b>'))",
        "<IPython.core.display.HTML object>",
    ),
    "mimebundle": (
        (
            "class M:\n    def _repr_mimebundle_(self, **_):\n"
            "        return {'text/html': '<i>', 'text/plain': 'bundle'}\n"
            "display(M())"
        ),
        "bundle",
    ),
    "raw": ("display({'text/plain': 'raw'}, raw=True)", "raw"),
    "array": ("import numpy as np\ndisplay(np.arange(3))", "array([0, 1, 2])"),
    "empty": ("display({'text/plain': ''}, raw=True)", ""),
}


@pytest.mark.core
async def test_displays(session: Session) -> None:
    """F15: a display, on the very first run already, is its text/plain form on channel `display`."""
    outputs = await texts(session, {name: program for name, (program, _) in DISPLAYS.items()})

    assert {name: [("display", wanted)] for name, (_, wanted) in DISPLAYS.items() if wanted} == {
        name: [(channel, shown.rstrip("\n")) for channel, shown in output]
        for name, output in outputs.items()
        if name != "empty"
    }


@pytest.mark.core
async def test_displays_stand_in_order(session: Session) -> None:
    """F15: displays stand at their place between the texts of stdout and stderr."""
    program = """\
import sys
print('a', end='')
display('one')
print('b', file=sys.stderr)
display('two')
display('three')
print('c')
"""

    assert [
        ("stdout", "a"),
        ("display", "'one'\n"),
        ("stderr", "b\n"),
        ("display", "'two'\n'three'\n"),
        ("stdout", "c\n"),
    ] == entries(await session.run(program))


async def test_completion_is_not_displayed(session: Session) -> None:
    """F15: the completion itself is a value and never output."""
    result = await session.run("'value'")

    assert ("value", []) == (result.value, result.output)


async def test_broken_displays(session: Session) -> None:
    """F15: an object whose representations raise or lie fails softly; the run goes on and ends well."""
    program = """\
class Bad:
    def _repr_html_(self): raise ValueError('html')
    def __repr__(self): return 'still shown'
class Odd:
    def _repr_png_(self): return 'no png'
    def __repr__(self): return 'odd'
display(Bad())
display(Odd())
print('on')
'end'
"""

    result = await session.run(program)

    assert "end" == result.value
    assert "still shown\nodd" in text(result, "display")
    assert "on\n" == text(result, "stdout")


async def test_updates_and_clears(session: Session) -> None:
    """Contract 10.1: `output` has everything that was written, whatever was updated or cleared later."""
    program = """\
from IPython.display import clear_output, display, update_display
handle = display('first', display_id='d')
print('printed')
clear_output()
handle.update('second')
update_display('third', display_id='d')
print('end')
"""

    result = await session.run(program)

    assert result.error is None
    assert "printed\nend\n" == text(result, "stdout")
    for shown in ("first", "second", "third"):
        assert shown in text(result, "display")


async def test_warnings_are_stderr_text(session: Session) -> None:
    """F16: warnings.warn is text on stderr and no failure."""
    result = await session.run("import warnings\nwarnings.warn('careful')\n'end'")

    assert "end" == result.value
    assert "UserWarning: careful" in text(result, "stderr")
    assert "" == text(result, "stdout")


async def test_uncaught_exception_in_a_thread(session: Session) -> None:
    """Contract 10.1: an exception that ends a thread is shown on stderr, without frames of the worker."""
    program = "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()\n'end'"

    result = await session.run(program)

    assert "end" == result.value
    assert "ZeroDivisionError" in text(result, "stderr")
    assert "ptc_kernel" not in text(result)


# ---------------------------------------------------------------------- order and bytes


async def test_order_of_prints_and_children(session: Session) -> None:
    """Contract 10.1: print, subprocess, print keep their order, 50 times."""
    program = """\
import subprocess
for i in range(50):
    print('print', i)
    subprocess.run(['echo', 'child', str(i)])
"""

    assert [("stdout", "".join(f"print {i}\nchild {i}\n" for i in range(50)))] == entries(
        await session.run(program)
    )


async def test_order_of_children_on_both_channels(session: Session) -> None:
    """Contract 10.1: what children write to stderr stands between the prints around them."""
    program = """\
import os
for i in range(20):
    print('print', i)
    os.system(f'echo child {i} >&2')
"""
    wanted = [pair for i in range(20) for pair in (("stdout", f"print {i}\n"), ("stderr", f"child {i}\n"))]

    assert wanted == entries(await session.run(program))


async def test_order_of_everything(session: Session) -> None:
    """Contract 10.1: stdout, os.write(1), stderr, os.write(2) and display keep their order, 50 times."""
    program = """\
import os, sys
for i in range(50):
    sys.stdout.write(f'o{i} ')
    os.write(1, f'w{i} '.encode())
    sys.stderr.write(f'e{i} ')
    os.write(2, f'x{i} '.encode())
    display(i)
"""
    wanted = []
    for i in range(50):
        wanted += [("stdout", f"o{i} w{i} "), ("stderr", f"e{i} x{i} "), ("display", f"{i}\n")]

    assert wanted == entries(await session.run(program))


async def test_dev_stdout(session: Session) -> None:
    """Contract 10.1: a child that opens /dev/stdout or /dev/stderr for writing truncates nothing."""
    program = """\
import os
for i in range(20):
    print('print', i)
    os.system(f'echo stdout {i} > /dev/stdout')
    os.system(f'echo append {i} >> /dev/stdout')
    print('between')
    os.system(f'echo stderr {i} > /dev/stderr')
"""
    wanted = []
    for i in range(20):
        wanted.append(("stdout", f"print {i}\nstdout {i}\nappend {i}\nbetween\n"))
        wanted.append(("stderr", f"stderr {i}\n"))

    assert wanted == entries(await session.run(program))


async def test_writers_keep_their_own_order(session: Session) -> None:
    """Contract 10.1: lines of threads and tasks that write at once are whole, each writer's in order."""
    program = """\
import asyncio, sys, threading
def job(name):
    for i in range(500):
        sys.stdout.write(f'{name} {i}\\n')
threads = [threading.Thread(target=job, args=(name,)) for name in 'abcd']
for thread in threads:
    thread.start()
async def task(name):
    for i in range(500):
        sys.stdout.write(f'{name} {i}\\n')
        await asyncio.sleep(0)
await asyncio.gather(task('x'), task('y'))
for thread in threads:
    thread.join()
"""
    lines = text(await session.run(program), "stdout").splitlines()

    assert 6 * 500 == len(lines)
    for name in "abcdxy":
        assert [f"{name} {i}" for i in range(500)] == [line for line in lines if line.startswith(name)]


SPLITS = {
    "os.write": (
        "for byte in data:\n    os.write(1, bytes([byte]))\n    time.sleep(0.01)",
        "é\u20ac\U0001f600",
    ),
    "between channels": (
        "for byte in data:\n    os.write(1, bytes([byte]))\n    os.write(2, b'.')\n    time.sleep(0.01)",
        "é\u20ac\U0001f600",
    ),
    "child": (
        "subprocess.run(['sh', '-c', r\"printf '\\303'; sleep 0.05; printf '\\251'\"])",
        "é",
    ),
    "two children": (
        "for half in (r\"printf '\\303'\", r\"printf '\\251'\"):\n    subprocess.run(['sh', '-c', half])",
        "é",
    ),
    "large": ("os.write(1, ('\\u20ac' * 100_000).encode())", "\u20ac" * 100_000),
    "invalid": ("os.write(1, b'a\\xffb\\xc3(')", "a\ufffdb\ufffd("),
    "surrogate bytes": ("os.write(1, b'a\\xed\\xa0\\x80b')", "a\ufffd\ufffd\ufffdb"),
    "incomplete": ("os.write(1, b'a\\xe2\\x82')", "a\ufffd"),
    "not continued": ("os.write(1, b'\\xacb')", "\ufffdb"),
    "incomplete buffer": ("sys.stdout.buffer.write(b'a\\xe2\\x82')", "a\ufffd"),
    "buffer not continued": ("sys.stdout.buffer.write(b'\\xacb')", "\ufffdb"),
}


async def test_split_characters(session: Session) -> None:
    """F05, contract 10.1: split characters are joined, broken ones are U+FFFD in their own run."""
    outputs = {}
    for name, (program, _) in SPLITS.items():
        result = await session.run(
            f"import os, subprocess, sys, time\ndata = 'é\\u20ac\\U0001f600'.encode()\n{program}\ndone = True"
        )
        assert result.error is None, result.error
        outputs[name] = text(result, "stdout")

    assert {name: wanted for name, (_, wanted) in SPLITS.items()} == outputs


@pytest.mark.parametrize("channel", ["stdout", "stderr"])
async def test_lone_surrogates(channel: str, session: Session) -> None:
    """F32: a printed lone surrogate is replaced or escaped, and what stands around it is kept."""
    program = f"import sys\nprint('a' + chr(0xD800) + 'b' + chr(0xDFFF) + 'c', file=sys.{channel})\n'end'"

    result = await session.run(program)

    assert "end" == result.value
    printed = text(result, channel)
    assert printed.startswith("a")
    assert "b" in printed
    assert printed.endswith("c\n")
    assert printed.encode().decode() == printed


async def test_lone_surrogate_in_a_display(session: Session) -> None:
    """F32: a lone surrogate in a display is no crash."""
    result = await session.run("display({'text/plain': 'a\\ud800b'}, raw=True)\n'end'")

    assert "end" == result.value
    assert text(result, "display").startswith("a")
    assert "b" in text(result, "display")
    text(result).encode()


async def test_lone_surrogate_in_an_exception(session: Session) -> None:
    """F32: a lone surrogate in the text of an exception is no crash."""
    result = await session.run("raise ValueError('a\\ud800b')")

    assert "exception" == kind(result)
    assert result.error is not None
    assert "ValueError: a" in result.error.message


# ---------------------------------------------------------------------- a program that dies

DEATHS = {
    "exit": "os._exit(7)",
    "kill": "os.kill(os.getpid(), signal.SIGKILL)",
    "segfault": "ctypes.string_at(0)",
    "abort": "os.abort()",
}


@pytest.mark.parametrize("death", DEATHS)
async def test_output_before_a_death(death: str, session: Session) -> None:
    """Contract 10.1: what was printed before the process dies arrives exactly, one line or many."""
    outcomes = []
    for count in (1, 100, 50_000):
        program = f"for i in range({count}):\n    print('line', i)\n{DEATHS[death]}"
        result = await session.run(f"import ctypes, os, signal\n{program}")
        outcomes.append([kind(result), result.state, text(result, "stdout"), text(result, "display")])

    assert [
        ["worker-exit", "lost", "".join(f"line {i}\n" for i in range(count)), ""]
        for count in (1, 100, 50_000)
    ] == outcomes


@pytest.mark.parametrize("death", ["exit", "kill"])
async def test_order_before_a_death(death: str, session: Session) -> None:
    """Contract 10.1: stdout, stderr and displays before a death keep their order; bytes arrive too."""
    program = """\
import os, signal, sys
for i in range(200):
    sys.stdout.write(f'o{i} ')
    sys.stderr.write(f'e{i} ')
    display(i)
os.write(1, b'bytes')
"""
    wanted = []
    for i in range(200):
        wanted += [("stdout", f"o{i} "), ("stderr", f"e{i} "), ("display", f"{i}\n")]

    result = await session.run(program + DEATHS[death])

    assert "worker-exit" == kind(result)
    assert [*wanted, ("stdout", "bytes")] == entries(result)


@pytest.mark.parametrize("death", ["exit", "kill"])
async def test_descriptor_bytes_before_a_death(death: str, session: Session) -> None:
    """Contract 10.1: bytes of os.write and of children before a death arrive exactly."""
    program = f"""\
import os, signal
for i in range(2000):
    os.write(1, f'{{i}} é\\n'.encode())
os.system('echo child')
os.write(1, 'half \\u20ac'.encode()[:-1])
{DEATHS[death]}
"""

    result = await session.run(program)

    assert "worker-exit" == kind(result)
    assert "".join(f"{i} é\n" for i in range(2000)) + "child\nhalf \ufffd" == text(result)


async def test_split_character_before_a_death(runtime: JupyterPtcRuntime) -> None:
    """Contract 10.1: a character whose bytes are read in two parts survives a death, 8 times of 8."""
    program = """\
import os, time
os.write(1, b'a\\xe2')
time.sleep(0.05)
os.write(1, b'\\x82\\xacb')
os._exit(7)
"""
    results = [await Session(runtime, None).run(program) for _ in range(8)]

    assert ["a\u20acb"] * 8 == [text(result) for result in results]


async def test_death_behind_a_paused_reader(session: Session) -> None:
    """Contract 10.1: a stream whose reader pauses while the process dies still has all of its output."""
    ended = asyncio.Event()

    async def last(argument: Any) -> None:
        ended.set()
        await asyncio.Event().wait()

    program = """\
import os, threading
def job():
    try:
        tools.last.sync({})
    finally:
        pass
for i in range(5_000):
    print(i, 'x' * 1000)
threading.Thread(target=job, daemon=True).start()
import time
time.sleep(0.1)
os._exit(7)
"""
    pieces: list[TextOutput] = []
    async for event in events_of(session, program, namespace(last=last)):
        if isinstance(event, OutputEvent):
            if not pieces:
                await ended.wait()
            assert isinstance(event.output, TextOutput)
            pieces.append(event.output)
        if isinstance(event, ResultEvent):
            assert "worker-exit" == kind(event.result)

    assert [("stdout", "".join(f"{i} {'x' * 1000}\n" for i in range(5_000)))] == folded(pieces)


async def test_dead_process_tells_nothing_of_it_in_output(session: Session) -> None:
    """Contract 10.1: what the process leaves on its own log is in the message, never in output."""
    result = await session.run("import os\nprint('mine')\nos.abort()")

    assert [("stdout", "mine\n")] == entries(result)


# ---------------------------------------------------------------------- the ledger


@pytest.mark.parametrize(
    ("program", "cap"),
    [
        pytest.param("'\u20ac'", 7, marks=pytest.mark.core, id="F17"),
        pytest.param("print('abc', end='')\n'xy'", 11, marks=pytest.mark.core, id="F18"),
        pytest.param("print('\\0' * 100, end='')\nx = 1", 604, id="F26"),
        pytest.param("'x' * 96", 100, id="F33"),
        pytest.param("'a'", 5, id="smallest"),
    ],
)
async def test_cap_is_exact(program: str, cap: int, make_runtime: Callable[..., JupyterPtcRuntime]) -> None:
    """F17, F18, F26, F33: a result that weighs exactly the cap is fine, one byte more is output-limit."""
    fitting = await Session(make_runtime(max_output_bytes=cap), None).run(program)
    failing = await Session(make_runtime(max_output_bytes=cap - 1), None).run(program)

    assert kind(fitting) is None
    assert cap == weight(fitting)
    assert "output-limit" == kind(failing)
    assert weight(failing) <= cap - 1
    assert text(fitting).startswith(text(failing))


PADDED_CAP = 700
STDOUT_FIRST, NO_TEXT, OTHER_FIRST = 0, 2, 3  # what padding on stdout costs besides its letters
WEIGHTS = [
    ("x = 1", NO_TEXT, 2),
    ("None", NO_TEXT, 6),
    ("''", NO_TEXT, 4),
    ("12", NO_TEXT, 4),
    ("1.0", NO_TEXT, 5),
    ("1e22", NO_TEXT, 2 + len("1e+22")),
    ("10**22", NO_TEXT, 25),
    ("[1,[2],{'a': None}]", NO_TEXT, 2 + len('[1,[2],{"a":null}]')),
    ("'\\0' * 10", NO_TEXT, 64),
    ("'\"\\\\\\b\\t\\n\\f\\r'", NO_TEXT, 2 + 2 + 14),
    ("'\\x7f\\u2028'", NO_TEXT, 2 + 2 + 4),
    ("'\\U0001f600'", NO_TEXT, 8),
    ("chr(0xD800)", NO_TEXT, 2 + 2 + 6),
    ("{'é': chr(0xD800) + chr(0xDE00)}", NO_TEXT, 2 + len('{"":""}') + 2 + 4),
    ("print('abc', end='')\n'xy'", STDOUT_FIRST, 11),
    ("print('\\x1b\\x7f\\n', end='')\nx = 1", STDOUT_FIRST, 2 + 2 + 6 + 1 + 2),
    ("print('é\u20ac\U0001f600', end='')\nx = 1", STDOUT_FIRST, 2 + 2 + 9),
    ("print('a', end='')\nprint('b', end='', file=sys.stderr)\n1", STDOUT_FIRST, 2 + 3 + 1 + 3 + 1),
    ("print('a', end='')\nprint('b', end='')\n1", STDOUT_FIRST, 2 + 4 + 1),
    ("os.write(1, b'abc')\nx = 1", STDOUT_FIRST, 2 + 5),
    ("print('b', end='', file=sys.stderr)\n1", OTHER_FIRST, 2 + 3 + 1),
    ("display({'text/plain': 'abc\\n'}, raw=True)\nx = 1", OTHER_FIRST, 2 + 2 + 3 + 2),
]


async def test_weights(make_session: Callable[..., Session]) -> None:
    """F17, F33: every kind of text and value weighs what the contract says, to the byte."""
    session = make_session(max_output_bytes=PADDED_CAP)
    wrong = []
    for program, cost, wanted in WEIGHTS:
        for extra, outcome in ((0, None), (1, "output-limit")):
            letters = PADDED_CAP - wanted - cost + extra
            result = await session.run(f"import os, sys\nprint('p' * {letters}, end='')\n{program}")
            if kind(result) != outcome or weight(result) > PADDED_CAP:
                wrong.append((program, extra, result))

    assert [] == wrong


async def test_message_at_the_cap(make_runtime: Callable[..., JupyterPtcRuntime]) -> None:
    """F19: text and a failure message fit under exactly their weight; one byte less is output-limit."""
    program = "print('abc', end='')\nraise ValueError('short')"
    free = await Session(make_runtime(), None).run(program)
    assert "exception" == kind(free)
    exact = weight(free)

    at_cap = await Session(make_runtime(max_output_bytes=exact), None).run(program)
    under = await Session(make_runtime(max_output_bytes=exact - 1), None).run(program)

    assert (free.error, free.output) == (at_cap.error, at_cap.output)
    assert "output-limit" == kind(under)
    assert weight(under) <= exact - 1
    assert "abc".startswith(text(under))


async def test_many_lines_over_the_cap(make_session: Callable[..., Session]) -> None:
    """F20: under a cap of 300 bytes, 1,000 lines give their longest fitting prefix; the message names 300."""
    session = make_session(max_output_bytes=300)
    result = await session.run("for i in range(1000):\n    print('line', i)\ndone = True")

    assert "output-limit" == kind(result)
    assert result.error is not None
    assert "300" in result.error.message
    assert text(result)
    assert is_longest_prefix(result, "".join(f"line {i}\n" for i in range(1000)), 300)


@pytest.mark.parametrize("cap", [60, 96, 97, 1000])
async def test_one_huge_line(cap: int, make_session: Callable[..., Session]) -> None:
    """F21: one huge line is cut to a true prefix, at a code point, as long as fits."""
    session = make_session(max_output_bytes=cap)
    result = await session.run("print('\\U0001f600\"\\\\é' * 100_000)\ndone = True")

    assert "output-limit" == kind(result)
    assert 1 == len(result.output)
    assert is_longest_prefix(result, '\U0001f600"\\é' * 100_000, cap)


async def test_value_over_the_cap(make_session: Callable[..., Session]) -> None:
    """F22: a value over the cap fails without value and output; the environment is kept."""
    session = make_session(max_output_bytes=64)
    result = await session.run("big = 'y' * 10000\nbig")

    assert "output-limit" == kind(result)
    assert [] == result.output
    assert "kept" == result.state
    assert 10_000 == await session.value("len(big)")
    assert weight(result) <= 64


async def test_text_is_kept_beside_a_value_over_the_cap(make_session: Callable[..., Session]) -> None:
    """F22: output before a value that is too big is kept."""
    session = make_session(max_output_bytes=400)
    result = await session.run("print('kept')\n'y' * 10000")

    assert "output-limit" == kind(result)
    assert [("stdout", "kept\n")] == entries(result)
    assert "kept" == result.state


async def test_message_over_the_cap(make_session: Callable[..., Session]) -> None:
    """F23: an exception text of 1 MB under 64 bytes is output-limit; the environment is kept."""
    session = make_session(max_output_bytes=64)
    result = await session.run("x = 41\nraise ValueError('z' * 1_000_000)")

    assert "output-limit" == kind(result)
    assert weight(result) <= 64
    assert [] == result.output
    assert "kept" == result.state
    assert 42 == await session.value("x + 1")


async def test_big_exception_under_the_default_cap(session: Session) -> None:
    """F23: an exception text that fits under the cap is not cut."""
    result = await session.run("raise ValueError('z' * 1_000_000)")

    assert "exception" == kind(result)
    assert result.error is not None
    assert "z" * 1_000_000 in result.error.message


async def test_default_cap(session: Session) -> None:
    """F25: the default cap admits a string of 67,108,860 letters, and not one letter more."""
    value = await session.value("'x' * 67_108_860")
    assert 67_108_860 == len(value)
    assert "x" * 67_108_860 == value
    del value

    result = await session.run("'x' * 67_108_861")

    assert "output-limit" == kind(result)
    assert [] == result.output
    assert "kept" == result.state


@pytest.mark.parametrize("cap", [4, 6, 20])
async def test_tiny_caps(cap: int, make_session: Callable[..., Session]) -> None:
    """F17: under the tiniest caps every failure is output-limit and weighs no more than the cap."""
    session = make_session(max_output_bytes=cap)
    for program in (
        "'long' * 20",
        "raise ValueError",
        "print('long' * 20)",
        "while True:\n    print()",
        "1 +",
    ):
        result = await session.run(program)
        assert "output-limit" == kind(result), program
        assert weight(result) <= cap, program
    assert kind(await session.run("x = 1")) is None


async def test_abort_reason_over_the_cap(make_session: Callable[..., Session]) -> None:
    """F28: a reason of 1,000 characters under 64 bytes makes an aborted run output-limit, without output."""
    controller = AbortController()
    controller.abort("r" * 1000)
    session = make_session(max_output_bytes=64)

    result = await session.run("1", signal=controller.signal)

    assert "output-limit" == kind(result)
    assert [] == result.output
    assert weight(result) <= 64
    assert not result.started


FLOODS = {
    "blank": ("while True:\n    print()", "\n"),
    "one char": ("while True:\n    sys.stdout.write('x')", "x"),
    "stderr": ("while True:\n    sys.stderr.write('x')", "x"),
    "awaiting": ("import asyncio\nwhile True:\n    print()\n    await asyncio.sleep(0)", "\n"),
    "big": ("while True:\n    print('x' * 1_000_000, end='')", "x"),
    "bytes": ("while True:\n    os.write(1, b'x')", "x"),
    "big bytes": ("block = b'x' * 100_000\nwhile True:\n    os.write(1, block)", "x"),
    "buffer": ("while True:\n    sys.stdout.buffer.write(b'x')", "x"),
    "child": ("os.system('yes')", "y\n"),
    "display": ("while True:\n    display({'text/plain': '\\n'}, raw=True)", "\n"),
    "thread": (
        (
            "import threading, time\ndef flood():\n    while True:\n        print()\n"
            "threading.Thread(target=flood).start()\nwhile True:\n    time.sleep(1)"
        ),
        "\n",
    ),
    "task": (
        (
            "import asyncio\nasync def flood():\n"
            "    while True:\n        print()\n        await asyncio.sleep(0)\n"
            "task = asyncio.create_task(flood())\nawait asyncio.Event().wait()"
        ),
        "\n",
    ),
    "swallowing": (
        "while True:\n    try:\n        print()\n    except BaseException:\n        pass",
        "\n",
    ),
}


async def test_floods(make_session: Callable[..., Session]) -> None:
    """F29, F30: every endless flood ends in output-limit, with the longest fitting prefix; state is lost."""
    session = make_session(max_output_bytes=1000)
    outcomes = {}
    for flood, (program, unit) in FLOODS.items():
        result = await session.run(f"import os, sys\n{program}", timeout_ms=None)
        following = await session.run("1 + 1")
        assert result.error is not None
        outcomes[flood] = [
            *(kind(result), is_longest_prefix(result, unit * 1000, 1000), "1000" in result.error.message),
            *(result.state, following.value, bool(following.reset_reason), following.background),
        ]

    assert {flood: ["output-limit", True, True, "lost", 2, True, ()] for flood in FLOODS} == outcomes


async def test_flood_that_ends_at_the_cap(make_session: Callable[..., Session]) -> None:
    """F30: a program that crosses the cap and catches everything cannot end well."""
    session = make_session(max_output_bytes=100)
    program = """\
try:
    for _ in range(1000):
        print('x')
except BaseException:
    pass
'fine'
"""

    result = await session.run(program)

    assert "output-limit" == kind(result)
    assert weight(result) <= 100


async def test_flood_of_100_mb(session: Session) -> None:
    """F25: 100 MB of prints under the default cap end in output-limit with exactly the fitting prefix."""
    result = await session.run("line = 'x' * 999\nfor i in range(100_000):\n    print(line)\ndone = True")

    assert "output-limit" == kind(result)
    assert result.error is not None
    assert str(DEFAULT_CAP) in result.error.message
    printed = text(result)
    assert printed == (("x" * 999 + "\n") * (len(printed) // 1000 + 1))[: len(printed)]
    assert DEFAULT_CAP - 7 <= weight(result) <= DEFAULT_CAP
    assert "lost" == result.state


# ---------------------------------------------------------------------- late output


async def test_late_output_of_a_thread(session: Session) -> None:
    """Contract 10.1: what a thread of run 1 writes during run 2 is run 2's background, and not its output."""
    first = """\
import sys, threading
gate = threading.Event()
def late():
    gate.wait()
    print('late out')
    print('late err', file=sys.stderr)
    display('late display')
thread = threading.Thread(target=late)
thread.start()
print('first')
"""
    one = await session.run(first)
    two = await session.run("print('second')\ngate.set()\nthread.join()\nprint('end')")
    three = await session.run("print('third')")

    assert [("stdout", "first\n")] == entries(one)
    assert [("stdout", "second\nend\n")] == entries(two)
    assert [("stdout", "late out\n"), ("stderr", "late err\n"), ("display", "'late display'\n")] == [
        (item.channel, item.text) for item in two.background if isinstance(item, TextOutput)
    ]
    assert [("stdout", "third\n")] == entries(three)
    assert ((), ()) == (one.background, three.background)


async def test_late_output_of_a_task(session: Session) -> None:
    """Contract 10.1: what a task of run 1 writes during run 2 is background, its own task's writes too."""
    first = """\
import asyncio, sys
gate = asyncio.Event()
async def inner():
    print('inner')
async def late():
    await gate.wait()
    print('late', end=' ')
    await asyncio.create_task(inner())
    await asyncio.to_thread(print, 'thread')
task = asyncio.create_task(late())
"""
    await session.run(first)
    two = await session.run("print('second')\ngate.set()\nawait task\nprint('end')")

    assert [("stdout", "second\nend\n")] == entries(two)
    assert (TextOutput("late inner\nthread\n", "stdout"),) == two.background
    assert () == (await session.run("1")).background


async def test_late_output_of_an_executor(session: Session) -> None:
    """Contract 10.1: work that run 1 queued is late; work that run 2 hands to the same thread is run 2's."""
    await session.run(
        "import threading\nfrom concurrent.futures import ThreadPoolExecutor\ngate = threading.Event()\n"
        "pool = ThreadPoolExecutor(1)\npool.submit(gate.wait)\nlate = pool.submit(print, 'late')\ndone = True"
    )

    two = await session.run("gate.set()\nlate.result()\npool.submit(print, 'mine').result()")

    assert [("stdout", "mine\n")] == entries(two)
    assert (TextOutput("late\n", "stdout"),) == two.background


async def test_late_output_between_runs(session: Session, tmp_path: Path) -> None:
    """Contract 10.1: what is written while no run is active is the next run's background, and comes once."""
    lines: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    path = str(tmp_path / "line")
    program = f"""\
import os, socket, threading
def late():
    line = socket.socket(socket.AF_UNIX)
    line.connect({path!r})
    line.recv(1)
    print('late')
    os.write(2, b'late bytes\\n')
    os.system('echo late child')
    line.close()
thread = threading.Thread(target=late)
thread.start()
print('first')
"""
    server = await asyncio.start_unix_server(lambda *ends: lines.put_nowait(ends), path)
    one = await session.run(program)
    reader, writer = await lines.get()
    writer.write(b"x")
    assert b"" == await reader.read()
    writer.close()
    server.close()
    two = await session.run("thread.join()\nprint('second')")
    three = await session.run("print('third')")

    background = [item for item in two.background if isinstance(item, TextOutput)]
    assert ["first\n", "second\n", "third\n"] == [text(one), text(two), text(three)]
    assert "late\nlate child\n" == "".join(item.text for item in background if item.channel == "stdout")
    assert "late bytes\n" == "".join(item.text for item in background if item.channel == "stderr")
    assert ((), ()) == (one.background, three.background)


async def test_late_output_is_bounded(session: Session) -> None:
    """Contract 10.1: at most 64 KiB of late output are kept, the newest, and how much was dropped is said."""
    first = """\
import threading
gate = threading.Event()
def late():
    gate.wait()
    for i in range(20_000):
        print(f'{i:09}')
thread = threading.Thread(target=late)
thread.start()
"""
    await session.run(first)
    two = await session.run("gate.set()\nthread.join()\nprint('second')")

    everything = "".join(f"{i:09}\n" for i in range(20_000))
    kept = "".join(item.text for item in two.background if item.channel == "stdout")
    said = "".join(item.text for item in two.background if item.channel != "stdout")
    assert [("stdout", "second\n")] == entries(two)
    assert everything.endswith(kept)
    assert 32 * 1024 < len(kept) <= 64 * 1024
    assert str(len(everything) - len(kept)) in said
    assert () == (await session.run("1")).background


async def test_late_output_is_not_metered(make_session: Callable[..., Session]) -> None:
    """Contract 1.3: background does not count against the output cap of the run that hands it over."""
    session = make_session(max_output_bytes=100)
    await session.run(
        "import threading\ngate = threading.Event()\ndef late():\n    gate.wait()\n    print('x' * 5000)\n"
        "thread = threading.Thread(target=late)\nthread.start()\ndone = True"
    )

    two = await session.run("gate.set()\nthread.join()\nx = 'y' * 50\nx")

    assert "y" * 50 == two.value
    assert (TextOutput("x" * 5000 + "\n", "stdout"),) == two.background


async def test_late_output_with_a_failure(session: Session) -> None:
    """Contract 10.1: a run that fails hands over background too, and the next one does not repeat it."""
    await session.run(
        "import threading\ngate = threading.Event()\ndef late():\n    gate.wait()\n    print('late')\n"
        "thread = threading.Thread(target=late)\nthread.start()\ndone = True"
    )

    two = await session.run("gate.set()\nthread.join()\nraise ValueError")

    assert "exception" == kind(two)
    assert [] == two.output
    assert (TextOutput("late\n", "stdout"),) == two.background
    assert () == (await session.run("1")).background


async def test_late_output_stays_with_its_owner(runtime: JupyterPtcRuntime) -> None:
    """Contract 10.1: late output is handed to its own owner only."""
    session, other = Session(runtime), Session(runtime)
    await session.run(
        "import threading\ngate = threading.Event()\ndef late():\n    gate.wait()\n    print('late')\n"
        "thread = threading.Thread(target=late)\nthread.start()\ndone = True"
    )
    await other.run("x = 1")

    mine, others = await asyncio.gather(session.run("gate.set()\nthread.join()"), other.run("x"))
    more = await other.run("x")

    assert (TextOutput("late\n", "stdout"),) == mine.background
    assert ((), ()) == (others.background, more.background)


async def test_late_flood_does_not_end_the_next_run(make_session: Callable[..., Session]) -> None:
    """Contract 10.1: an earlier run's thread that floods does not bring a later run over its cap."""
    session = make_session(max_output_bytes=2000)
    await session.run(
        "import threading\ngate = threading.Event()\ndef late():\n    gate.wait()\n"
        "    for _ in range(300):\n        print('x' * 999)\n"
        "thread = threading.Thread(target=late)\nthread.start()\ndone = True"
    )

    two = await session.run("gate.set()\nthread.join()\nprint('second')\n'value'")

    assert "value" == two.value
    assert [("stdout", "second\n")] == entries(two)
    assert "kept" == two.state


async def test_threads_of_this_run_are_not_late(session: Session) -> None:
    """Contract 10.1: threads, tasks and executors of the current run write into its own output."""
    program = """\
import asyncio, threading
from concurrent.futures import ThreadPoolExecutor
thread = threading.Thread(target=print, args=('thread',))
thread.start()
thread.join()
with ThreadPoolExecutor(1) as pool:
    pool.submit(print, 'pool').result()
await asyncio.to_thread(print, 'to_thread')
async def job():
    print('task')
await asyncio.create_task(job())
loop, future = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
loop.call_soon(lambda: (print('callback'), future.set_result(1)))
await future
"""
    await session.run("x = 1")

    result = await session.run(program)

    assert [("stdout", "thread\npool\nto_thread\ntask\ncallback\n")] == entries(result)
    assert () == (await session.run("1")).background


# ---------------------------------------------------------------------- stream


async def test_stream_events_in_order(session: Session) -> None:
    """Contract 10.1: a stream has output and calls in their order, and the result last, without output."""
    program = """\
import sys
print('a')
await tools.echo(1)
print('b', file=sys.stderr)
tools.echo.sync(2)
display('c')
'value'
"""
    events = [event async for event in events_of(session, program, namespace(echo=echo))]

    last = events.pop()
    assert isinstance(last, ResultEvent)
    assert "value" == last.result.value
    assert [] == list(last.result.output)
    assert 2 == last.result.calls_total
    assert [
        OutputEvent(TextOutput("a\n", "stdout")),
        CallEvent(call_id=1, namespace="tools", member="echo", phase="started"),
        CallEvent(call_id=1, namespace="tools", member="echo", phase="ok"),
        OutputEvent(TextOutput("b\n", "stderr")),
        CallEvent(call_id=2, namespace="tools", member="echo", phase="started"),
        CallEvent(call_id=2, namespace="tools", member="echo", phase="ok"),
        OutputEvent(TextOutput("'c'\n", "display")),
    ] == events


FOLDED = {
    "nothing": "x = 1",
    "value": "print('a')\n42",
    "channels": "import sys\nfor i in range(300):\n    print(i, file=[sys.stdout, sys.stderr][i % 2])",
    "large": "for i in range(2000):\n    print(i, 'x' * 999)",
    "exception": "print('a')\nraise ValueError('kaboom')",
    "syntax": "1 +",
    "lossy": "print('a')\nobject()",
    "value over the cap": "print('a')\n'x' * 5_000_000",
    "death": "print('a')\nimport os\nos._exit(7)",
    "flood": "while True:\n    print('x' * 999)",
    "timeout": "print('a')\nwhile True:\n    pass",
}


async def test_run_is_the_fold_of_stream(make_runtime: Callable[..., JupyterPtcRuntime]) -> None:
    """Contract 10.1: the fold of the events of stream is what run returns, however the program ends."""
    runtime = make_runtime(max_output_bytes=4_000_000)
    one, other = Session(runtime), Session(runtime)
    streamed, run = {}, {}
    for name, program in FOLDED.items():
        timeout_ms = 1_000 if name == "timeout" else 60_000
        events = [event async for event in events_of(one, program, timeout_ms=timeout_ms)]
        last = events.pop()
        assert isinstance(last, ResultEvent)
        outputs = [event.output for event in events if isinstance(event, OutputEvent)]
        assert len(outputs) == len(events)
        streamed[name] = [folded(outputs), last.result.value, last.result.error, last.result.state]
        result = await other.run(program, timeout_ms=timeout_ms)
        run[name] = [entries(result), result.value, result.error, result.state]

    assert run == streamed


async def test_stream_is_live(session: Session) -> None:
    """Contract 10.1: output is handed out while the program runs: it waits for its own output to be read."""
    go = asyncio.Event()

    async def wait(argument: Any) -> None:
        await go.wait()

    seen = []
    for how in (
        "print('x')",
        "import os\nos.write(1, b'x\\n')",
        "import os\nos.system('echo x')",
        "display(1)",
    ):
        go.clear()
        async for event in events_of(session, f"{how}\nawait tools.wait({{}})", namespace(wait=wait)):
            if isinstance(event, OutputEvent):
                seen.append(event.output.text)
                go.set()

    assert ["x\n", "x\n", "x\n", "1\n"] == seen


async def test_stream_is_live_during_a_hot_loop(session: Session) -> None:
    """Contract 10.1: output before a loop that never yields is handed out while it runs."""
    controller = AbortController()
    kinds = []
    async for event in events_of(session, "print('x')\nwhile True:\n    pass", signal=controller.signal):
        if isinstance(event, OutputEvent):
            controller.abort("seen")
        if isinstance(event, ResultEvent):
            kinds.append(kind(event.result))

    assert ["abort"] == kinds


async def test_stream_ends_after_its_result(session: Session) -> None:
    """Contract 10.1: after the result the stream is over, and stays so."""
    stream = events_of(session, "1")

    assert isinstance(await anext(stream), ResultEvent)
    for _ in range(2):
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_stream_raises_misuse_at_the_call(runtime: JupyterPtcRuntime) -> None:
    """Contract 10.1: misuse raises when stream is called, not when it is read."""
    request = PtcRunRequest(program="1")
    with pytest.raises(TypeError):
        runtime.stream(request)  # type: ignore[arg-type]
    bad = PtcRunRequest(program="1", bindings=(namespace("console"),))
    with pytest.raises(ValueError, match="console"):
        runtime.stream(runtime.resolve(bad))
    spec = runtime.resolve(request)
    await runtime.aclose()
    with pytest.raises(RuntimeError):
        runtime.stream(spec)


HELD = """\
import asyncio
log = []
try:
    print('begun')
    await tools.begun({})
    await asyncio.sleep(3600)
finally:
    log.append('stopped')
"""


@pytest.mark.parametrize("how", ["aclose", "break", "cancel"])
async def test_early_close_stops_the_program(how: str, session: Session) -> None:
    """Contract 10.1: closing the iterator early, dropping it or cancelling its reader stops the program."""
    begun = asyncio.Event()

    async def begin(argument: Any) -> None:
        begun.set()

    stream = events_of(session, HELD, namespace(begun=begin))
    match how:
        case "aclose":
            assert isinstance(await anext(stream), OutputEvent)
            await stream.aclose()  # type: ignore[attr-defined]
        case "break":
            async for _ in stream:
                break
            del stream
        case "cancel":

            async def read() -> list[Any]:
                return [event async for event in stream]

            reader = asyncio.create_task(read())
            await begun.wait()
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader

    result = await session.run("log")

    assert ["stopped"] == result.value
    assert result.reset_reason is None


async def test_close_before_the_first_event(session: Session) -> None:
    """Contract 10.1: closing an iterator that was never read stops its program too."""
    begun = asyncio.Event()

    async def begin(argument: Any) -> None:
        begun.set()

    stream = events_of(session, HELD, namespace(begun=begin))
    await begun.wait()
    await stream.aclose()  # type: ignore[attr-defined]

    async with asyncio.timeout(10):
        result = await session.run("log")

    assert ["stopped"] == result.value


async def test_dropping_an_unread_stream(session: Session) -> None:
    """Contract 10.1: an iterator that is dropped without having been read stops its program too."""
    begun = asyncio.Event()

    async def begin(argument: Any) -> None:
        begun.set()

    stream = events_of(session, HELD, namespace(begun=begin))
    await begun.wait()
    del stream

    async with asyncio.timeout(10):
        result = await session.run("log")

    assert ["stopped"] == result.value


async def test_early_close_of_a_queued_stream(session: Session) -> None:
    """Contract 10.1: closing the stream of a run that waits for its turn means that it never runs."""
    go, begun = asyncio.Event(), asyncio.Event()

    async def wait(argument: Any) -> None:
        begun.set()
        await go.wait()

    first = asyncio.create_task(session.run("log = ['first']\nawait tools.wait({})", namespace(wait=wait)))
    await begun.wait()
    stream = events_of(session, "log.append('queued')")
    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    go.set()
    await first

    assert ["first"] == await session.value("log")


async def test_early_close_with_unread_output(session: Session) -> None:
    """Contract 10.1: closing a stream with a window of unread output stops the program, variables kept."""
    program = "log = []\ntry:\n    while True:\n        print('x' * 999)\nfinally:\n    log.append('stopped')"
    stream = events_of(session, program)
    assert isinstance(await anext(stream), OutputEvent)
    await stream.aclose()  # type: ignore[attr-defined]

    result = await session.run("print('next')\nlog")

    assert ["stopped"] == result.value
    assert [("stdout", "next\n")] == entries(result)


async def test_two_streams_of_one_owner(session: Session) -> None:
    """Contract 8.5, 10.1: streams of one owner run one after the other, in call order."""
    first = events_of(session, "print('a')\nlog = ['a']\nlog")
    second = events_of(session, "print('b')\nlog.append('b')\nlog")

    seconds = [event async for event in second]
    firsts = [event async for event in first]

    assert [["a"], ["a", "b"]] == [firsts[-1].result.value, seconds[-1].result.value]
    assert ["a\n", "b\n"] == [firsts[0].output.text, seconds[0].output.text]


async def test_stream_of_a_closed_runtime(make_runtime: Callable[..., JupyterPtcRuntime]) -> None:
    """Contract 8.7: a stream whose runtime is closed has its output and an abort as its result."""
    runtime = make_runtime()
    events = []
    closing = None
    async for event in events_of(Session(runtime), "print('x')\nwhile True:\n    pass"):
        events.append(event)
        if isinstance(event, OutputEvent):
            closing = asyncio.create_task(runtime.aclose())

    assert closing is not None
    await closing
    assert "abort" == kind(events[-1].result)
    assert "runtime disposed" in events[-1].result.error.message
    assert ["x\n"] == [event.output.text for event in events[:-1]]


FLOOD_WITH_WATCH = """\
import threading, time
written, over = 0, False
def watch():
    seen, same = -1, 0
    while not over and same < 10:
        time.sleep(0.02)
        same = same + 1 if written == seen else 0
        seen = written
    tools.stalled.sync(written)
watcher = threading.Thread(target=watch)
watcher.start()
for i in range(LINES):
    WRITE
    written += 1000
over = True
watcher.join()
'end'
"""
WRITES = {
    "print": "print(f'{i:09}', 'x' * 989)",
    "bytes": "os.write(1, f'{i:09} {\"x\" * 989}\\n'.encode())",
    "child": "os.system(f'yes {i:09}{\"x\" * 990} | head -n 1000')",
}


@pytest.mark.parametrize(("how", "lines"), [("print", 100_000), ("bytes", 30_000)])
async def test_slow_reader_holds_the_program_back(
    how: str, lines: int, make_session: Callable[..., Session]
) -> None:
    """Contract 10.1: a reader that pauses stops the writer near its window; then all arrives whole."""
    stalled = asyncio.Event()
    written: list[int] = []

    async def note(argument: int) -> None:
        written.append(argument)
        stalled.set()

    session = make_session(max_output_bytes=256 * MIB)
    program = "import os\n" + FLOOD_WITH_WATCH.replace("LINES", str(lines)).replace("WRITE", WRITES[how])
    pieces: list[str] = []
    last: Any = None
    async for event in events_of(session, program, namespace(stalled=note)):
        if isinstance(event, OutputEvent):
            assert isinstance(event.output, TextOutput)
            assert "stdout" == event.output.channel
            pieces.append(event.output.text)
            if not stalled.is_set():
                await stalled.wait()
        last = event

    assert isinstance(last, ResultEvent)
    assert "end" == last.result.value
    assert written[0] < 12 * MIB
    printed = "".join(pieces)
    assert lines * 1000 == len(printed)
    rest = "x" * 989
    assert printed == "".join([f"{i:09} {rest}\n" for i in range(lines)])


async def test_paused_reader_and_children(make_session: Callable[..., Session]) -> None:
    """Contract 10.1: a reader that pauses holds a child process back too, and loses none of its bytes."""
    first = asyncio.Event()

    async def note(argument: Any) -> None:
        first.set()

    session = make_session(max_output_bytes=256 * MIB)
    program = """\
import asyncio
child = await asyncio.create_subprocess_shell('yes 123456789 | head -n 3000000')
await asyncio.sleep(0.3)
await tools.note(child.returncode)
await child.wait()
"""
    size, calls, last = 0, [], None
    async for event in events_of(session, program, namespace(note=note)):
        if isinstance(event, OutputEvent):
            size += event.output.text.count("123456789\n") * 10
            await first.wait()
        if isinstance(event, CallEvent):
            calls.append(event.phase)
        last = event

    assert isinstance(last, ResultEvent)
    assert 0 == last.result.value
    assert 30_000_000 <= size + 10 * 2000
    assert ["started", "ok"] == calls


async def test_stopping_a_held_back_program(session: Session) -> None:
    """Contract 10.1: a program that waits for a reader can be stopped; its variables are kept."""
    stalled, controller = asyncio.Event(), AbortController()

    async def note(argument: int) -> None:
        stalled.set()

    program = FLOOD_WITH_WATCH.replace("LINES", "10**9").replace("WRITE", WRITES["print"])
    last: Any = None
    async for event in events_of(session, program, namespace(stalled=note), signal=controller.signal):
        if isinstance(event, OutputEvent) and not controller.signal.aborted:
            await stalled.wait()
            controller.abort("enough")
        last = event

    assert isinstance(last, ResultEvent)
    assert "abort" == kind(last.result)
    assert "kept" == last.result.state
    assert await session.value("written > 0")


async def test_bindings_go_on_while_a_writer_waits(session: Session) -> None:
    """Contract 10.1: while one thread waits for the reader, calls of other threads are answered."""
    answered = asyncio.Event()
    count = 0

    async def add(argument: int) -> int:
        nonlocal count
        count += 1
        if count == 50:
            answered.set()
        return argument

    program = """\
import threading
def flood():
    for i in range(20_000):
        print('x' * 999)
thread = threading.Thread(target=flood)
thread.start()
answers = [await tools.add(i) for i in range(50)]
thread.join()
answers == list(range(50))
"""
    last: Any = None
    lines = 0
    async for event in events_of(session, program, namespace(add=add)):
        if isinstance(event, OutputEvent):
            lines += event.output.text.count("\n")
            await answered.wait()
        last = event

    assert isinstance(last, ResultEvent)
    assert last.result.value is True
    assert 20_000 == lines
