"""The command line, as a user starts it: exit codes, what goes to which stream, tools, signals, the demo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from ptc_kernel import __version__
from ptc_kernel.cli import EXIT_CODES
from ptc_kernel.demo import TURNS
from ptc_kernel.types import FAILURE_KINDS

COMMAND = [sys.executable, "-m", "ptc_kernel"]
LIMIT = 55  # seconds; a test that needs them has failed

TOOLS = """
from ptc_kernel import PtcBindingErrorClass, PtcBindingNamespace

async def add(values):
    return values["a"] + values["b"]

def fail(_):
    raise ValueError("no such thing")

def loud(text):
    import sys
    print("from the host", file=sys.stderr)
    return text

TOOLS = {"add": add, "fail": fail, "loud": loud}
NAMESPACE = PtcBindingNamespace(
    global_name="calc",
    functions={"add": add, "fail": fail},
    error_class=PtcBindingErrorClass(name="CalcError", member_name_property="member"),
)
LIST = [NAMESPACE, PtcBindingNamespace(global_name="other", functions={"loud": loud})]
TUPLE = tuple(LIST)
EMPTY = []
NOTHING = None
NUMBER = 5
MIXED = [NAMESPACE, TOOLS]
NOT_CALLABLE = {"add": 5}
RESERVED = PtcBindingNamespace(global_name="class", functions={})
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with a module of tools in it, in which the command is started."""
    (tmp_path / "mytools.py").write_text(TOOLS)
    (tmp_path / "broken.py").write_text("import no_such_module_of_mine")
    return tmp_path


@pytest.fixture
def cli(folder):
    """Run the command line; returns exit code, stdout and stderr."""

    def run(*arguments, program=None, **options):
        options = {"cwd": folder, "capture_output": True, "text": True, "timeout": LIMIT, **options}
        done = subprocess.run([*COMMAND, *arguments], input=program, check=False, **options)
        return done.returncode, done.stdout, done.stderr

    return run


def run_code(cli, code, *arguments):
    """Run a program that is given with -c."""
    return cli("run", "-c", code, *arguments)


# ---------------------------------------------------------------------- exit codes and streams


def test_every_failure_kind_has_an_exit_code():
    """Exit codes are those of the contract, and every kind has one of its own."""
    codes = {None: 0, "exception": 1, "invalid-output": 3, "output-limit": 4, "protocol": 5}
    codes |= {"worker-exit": 6, "sandbox-unavailable": 7, "timeout": 124, "abort": 130}
    assert codes == EXIT_CODES
    assert {None, *FAILURE_KINDS} == set(EXIT_CODES)


VALUES = {
    "number": ("6 * 7", "42\n"),
    "text": ("'a \u20ac'", '"a \u20ac"\n'),
    "object": ("{'a': [1, None]}", '{\n  "a": [\n    1,\n    null\n  ]\n}\n'),
    "false": ("False", "false\n"),
    "zero": ("0", "0\n"),
    "empty": ("''", '""\n'),
    "null": ("None", ""),
    "none": ("x = 1", ""),
    "printed": ("print('hello')\n5", "hello\n5\n"),
    "awaited": ("import asyncio\nawait asyncio.sleep(0, 'slept')", '"slept"\n'),
    "displayed": ("from IPython.display import display\ndisplay([1, 2])\n3", "[1, 2]\n3\n"),
}


@pytest.mark.parametrize(("code", "stdout"), VALUES.values(), ids=VALUES)
def test_a_value_is_printed_as_json(cli, code, stdout):
    """What is printed and displayed comes first, then the value as JSON; a null and no value are silent."""
    assert (0, stdout, "") == run_code(cli, code)


FAILURES = {
    "exception": ("print('before')\nraise ValueError('no')", 1, "before\n", "ValueError: no"),
    "syntax": ("1 +", 1, "", "SyntaxError"),
    "exit": ("raise SystemExit(9)", 1, "", "SystemExit: 9"),
    "invalid-output": ("print('before')\n{1, 2}", 3, "before\n", "set is not a JSON value"),
    "output-limit": ("'x' * 70_000_000", 4, "", "max_output_bytes (67108864 bytes)"),
    "worker-exit": ("import os\nprint('before')\nos._exit(3)", 6, "before\n", "exit code 3"),
}


@pytest.mark.parametrize(("code", "exit_code", "stdout", "text"), FAILURES.values(), ids=FAILURES)
def test_failures(cli, code, exit_code, stdout, text):
    """A failure has its exit code; stderr names its kind and says why; what was printed before is kept."""
    found_code, found_stdout, stderr = run_code(cli, code)
    kind = next(kind for kind, number in EXIT_CODES.items() if number == exit_code)
    assert (exit_code, stdout, True) == (found_code, found_stdout, stderr.startswith(f"{kind}: "))
    assert text in stderr


def test_a_timeout(cli):
    """A program that is over its budget is a timeout."""
    code, stdout, stderr = run_code(cli, "print('on')\nwhile True: pass", "--timeout-ms", "1500")
    assert (124, "timeout: timed out after timeout_ms = 1500 ms.\n") == (code, stderr)
    assert stdout in ("", "on\n")


def test_no_timeout(cli):
    """The budget can be taken away."""
    assert (0, "5\n", "") == run_code(cli, "5", "--timeout-ms", "none")


def test_streams(cli):
    """The program's stdout goes to stdout, its stderr to stderr, that of its children too."""
    program = (
        "import os, sys\nprint('one')\nprint('two', file=sys.stderr)\nos.system('echo three; echo four >&2')"
    )
    assert (0, "one\nthree\n0\n", "two\nfour\n") == run_code(cli, program)


def test_output_is_shown_as_it_is_printed(folder):
    """A line is there while the program that printed it still runs."""
    command = [*COMMAND, "run", "-c", "print('on')\nopen('go').read()"]
    os.mkfifo(folder / "go")
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert "on\n" == process.stdout.readline()
        (folder / "go").write_text("now")
        assert ('"now"\n', 0) == (process.stdout.read(), process.wait(LIMIT))


@pytest.mark.parametrize("code", ["'\\ud800'", "print('x')\n['a\\udfffb']"])
def test_a_value_with_a_lone_surrogate(cli, code):
    """A value that is JSON and cannot be UTF-8 is printed with an escape."""
    found, stdout, stderr = run_code(cli, code)
    assert (0, "") == (found, stderr)
    assert json.loads(stdout.removeprefix("x\n")) == eval(code.splitlines()[-1])


def test_a_reader_that_leaves(folder):
    """When nobody reads stdout any more the program is stopped, without a traceback of ours."""
    command = [*COMMAND, "run", "-c", "print('on')\nopen('go').read()\nwhile True: print('x' * 1000)"]
    os.mkfifo(folder / "go")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, text=True, **pipes) as process:
        process.stdout.readline()
        process.stdout.close()
        (folder / "go").write_text("now")
        stderr = process.stderr.read()
        assert 0 != process.wait(LIMIT)
    assert "Traceback" not in stderr


# ---------------------------------------------------------------------- where the program comes from


def test_a_file(cli, folder):
    """The program is read from a file, in UTF-8."""
    (folder / "program.py").write_text("x = '\u20ac'\nx * 2\n", encoding="utf-8")
    assert (0, '"\u20ac\u20ac"\n', "") == cli("run", "program.py")


def test_standard_input(cli):
    """The program is read from standard input where the file is a dash."""
    assert (0, "3\n", "") == cli("run", "-", program="x = 1\nx + 2\n")


def test_the_programs_own_standard_input(cli):
    """A program has no standard input, whatever the command's is."""
    code, _, stderr = cli("run", "-c", "input()", program="a line\n")
    assert (1, True) == (code, "has no stdin" in stderr)


def test_the_working_directory(cli, folder):
    """The program runs in the folder of the command, or in the one that is named."""
    (folder / "inside").mkdir()
    program = "import os\nos.getcwd()"
    assert (0, f'"{folder}"\n', "") == run_code(cli, program)
    assert (0, f'"{folder}/inside"\n', "") == run_code(cli, program, "--cwd", "inside")


def test_a_working_directory_that_is_not_there(cli):
    """A folder that cannot be entered is the worker's failure, before the program begins."""
    code, stdout, stderr = run_code(cli, "print(1)", "--cwd", "nowhere")
    assert (6, "") == (code, stdout)
    assert "worker-exit: the working directory cannot be used: No such file or directory" in stderr


# ---------------------------------------------------------------------- usage

USAGE = {
    "nothing": ([], "required"),
    "no-program": (["run"], "required"),
    "both": (["run", "file.py", "-c", "1"], "not allowed with"),
    "unknown-verb": (["walk"], "invalid choice"),
    "unknown-option": (["run", "-c", "1", "--fast"], "unrecognized arguments"),
    "no-file": (["run", "nowhere.py"], "nowhere.py cannot be read"),
    "a-folder": (["run", "."], ". cannot be read"),
    "timeout-zero": (["run", "-c", "1", "--timeout-ms", "0"], "timeout_ms"),
    "timeout-negative": (["run", "-c", "1", "--timeout-ms", "-5"], "timeout"),
    "timeout-nan": (["run", "-c", "1", "--timeout-ms", "nan"], "timeout_ms"),
    "timeout-text": (["run", "-c", "1", "--timeout-ms", "soon"], "--timeout-ms"),
    "no-module": (["run", "-c", "1", "--tools", "nowhere:TOOLS"], "--tools nowhere:TOOLS cannot be found"),
    "no-object": (
        ["run", "-c", "1", "--tools", "mytools:NOWHERE"],
        "--tools mytools:NOWHERE cannot be found",
    ),
    "no-colon": (["run", "-c", "1", "--tools", "mytools"], "--tools mytools cannot be found"),
    "no-tools-text": (["run", "-c", "1", "--tools", ""], "--tools"),
    "relative-module": (["run", "-c", "1", "--tools", ".mytools:TOOLS"], "--tools .mytools:TOOLS"),
    "broken-module": (["run", "-c", "1", "--tools", "broken:TOOLS"], "no_such_module_of_mine"),
    "none": (["run", "-c", "1", "--tools", "mytools:NOTHING"], "must be a dict of functions"),
    "number": (["run", "-c", "1", "--tools", "mytools:NUMBER"], "must be a dict of functions"),
    "mixed": (["run", "-c", "1", "--tools", "mytools:MIXED"], "must be a dict of functions"),
    "function": (["run", "-c", "1", "--tools", "mytools:add"], "must be a dict of functions"),
    "not-callable": (["run", "-c", "1", "--tools", "mytools:NOT_CALLABLE"], "must be callable"),
    "reserved": (["run", "-c", "1", "--tools", "mytools:RESERVED"], "reserved word"),
}


@pytest.mark.parametrize(("arguments", "text"), USAGE.values(), ids=USAGE)
def test_usage(cli, arguments, text):
    """A command line that asks for something that is not there is exit code 2, with one clear line."""
    code, stdout, stderr = cli(*arguments)
    assert (2, "", True, False) == (code, stdout, text in stderr, "Traceback" in stderr)


def test_a_program_file_that_is_not_utf8(cli, folder):
    """A file that is not UTF-8 is a matter of usage."""
    (folder / "latin.py").write_bytes(b"x = '\xe9'")
    code, _, stderr = cli("run", "latin.py")
    assert (2, True) == (code, stderr.startswith("ptc-kernel: latin.py cannot be read: "))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], ["run", "demo", "--version"]),
        (["run", "--help"], ["FILE", "-c CODE", "--tools MODULE:OBJECT", "--timeout-ms", "--cwd", "--json"]),
        (["run", "--help"], ["exit codes:", "124 timeout", "130 abort"]),
        (["--version"], [f"ptc-kernel {__version__}\n"]),
    ],
)
def test_help(cli, arguments, words):
    """Help and version go to stdout and are no error."""
    code, stdout, stderr = cli(*arguments)
    assert (0, "", []) == (code, stderr, [word for word in words if word not in stdout])


def test_help_names_every_exit_code(cli):
    """The help of `run` lists the exit codes as they are."""
    stdout = cli("run", "--help")[1]
    listed = " ".join(stdout[stdout.index("exit codes:") :].split())
    assert [] == [kind for kind, code in EXIT_CODES.items() if f"{code} {kind or 'ok'}" not in listed]


# ---------------------------------------------------------------------- tools


@pytest.mark.parametrize(
    ("tools", "code", "stdout"),
    [
        ("TOOLS", "await tools.add(a=1, b=2)", "3\n"),
        ("TOOLS", "await tools.add({'a': 'x', 'b': 'y'})", '"xy"\n'),
        ("NAMESPACE", "await calc.add(a=1, b=2)", "3\n"),
        ("LIST", "[await calc.add(a=1, b=2), await other.loud('x')][0]", "3\n"),
        ("TUPLE", "sorted(calc) + sorted(other)", '[\n  "add",\n  "fail",\n  "loud"\n]\n'),
        ("EMPTY", "'tools' in globals()", "false\n"),
    ],
)
def test_tools(cli, tools, code, stdout):
    """Functions of a module in the working directory: a dict, a namespace, or a sequence of namespaces."""
    found, output, _ = run_code(cli, code, "--tools", f"mytools:{tools}")
    assert (0, stdout) == (found, output)


def test_a_tool_that_fails(cli):
    """A function that fails raises the typed error in the program, which may catch it or not."""
    program = "try:\n    await tools.fail()\nexcept ToolCallError as e:\n    print(e.toolName, e)\n"
    program += "await tools.fail()"
    code, stdout, stderr = run_code(cli, program, "--tools", "mytools:TOOLS")
    assert (1, "fail no such thing\n") == (code, stdout)
    assert stderr.endswith("ToolCallError: no such thing\n")


def test_what_a_tool_prints_is_the_hosts(cli):
    """What a function prints is not the program's output."""
    assert (0, '"x"\n', "from the host\n") == run_code(
        cli, "await tools.loud('x')", "--tools", "mytools:TOOLS"
    )


def test_without_tools(cli):
    """Without --tools there is no namespace."""
    code, _, stderr = run_code(cli, "tools")
    assert (1, True) == (code, "NameError: name 'tools' is not defined" in stderr)


# ---------------------------------------------------------------------- json


def run_json(cli, code, *arguments):
    """Exit code and the one JSON object of `run --json`; nothing else is printed."""
    found, stdout, stderr = run_code(cli, code, "--json", *arguments)
    assert ("", 1) == (stderr, stdout.count("\n"))
    return found, json.loads(stdout)


def test_json_of_a_value(cli):
    """The whole result is one JSON object on one line."""
    program = "import sys\nprint('a')\nprint('b', file=sys.stderr)\nawait tools.add(a=1, b=2)"
    code, data = run_json(cli, program, "--tools", "mytools:TOOLS")
    (call,) = data["calls"]
    assert (0, True) == (code, call.pop("milliseconds") >= 0)
    assert {
        "output": [
            {"type": "text", "channel": "stdout", "text": "a\n"},
            {"type": "text", "channel": "stderr", "text": "b\n"},
        ],
        "error": None,
        "state": "none",
        "started": True,
        "calls_total": 1,
        "calls": [{"namespace": "tools", "member": "add", "outcome": "ok"}],
        "value": 3,
    } == data


@pytest.mark.parametrize(
    ("code", "expected"), [("None", {"value": None}), ("x = 1", {}), ("0", {"value": 0})]
)
def test_json_of_no_value(cli, code, expected):
    """A null is a value; where there is none, the field is left out."""
    rest = {"output": [], "error": None, "state": "none", "started": True, "calls_total": 0, "calls": []}
    assert (0, {**rest, **expected}) == run_json(cli, code)


def test_json_of_a_failure(cli):
    """A failure is in the object, and the exit code is its kind's."""
    code, data = run_json(cli, "print('a')\nraise ValueError('no')")
    assert (1, "exception", False) == (code, data["error"]["kind"], "value" in data)
    assert data["error"]["message"].endswith("ValueError: no")
    assert [{"type": "text", "channel": "stdout", "text": "a\n"}] == data["output"]


def test_json_of_a_death(cli):
    """A kernel that dies is a failure like any other."""
    code, data = run_json(cli, "import os\nos._exit(3)")
    assert (6, "worker-exit", True) == (code, data["error"]["kind"], data["started"])


def test_json_of_a_lone_surrogate(cli):
    """A text that cannot be UTF-8 is still JSON."""
    code, data = run_json(cli, "'\\ud800'")
    assert (0, "\ud800") == (code, data["value"])


# ---------------------------------------------------------------------- signals

SPINNING = "print('on')\nwhile True: pass"
AWAITING = "import asyncio\nprint('on')\nawait asyncio.sleep(1000)"
STUBBORN = "print('on')\nwhile True:\n    try:\n        while True: pass\n    except BaseException: pass"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("program", [SPINNING, AWAITING], ids=["spinning", "awaiting"])
def test_signals_stop_the_program(folder, number, program):
    """SIGINT and SIGTERM stop the program: exit code 130, and what it printed was shown."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*COMMAND, "run", "-c", program], cwd=folder, text=True, **pipes) as process:
        assert "on\n" == process.stdout.readline()
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=LIMIT)
    assert (130, "", f"abort: {number.name} was received\n") == (process.returncode, stdout, stderr)


def test_a_signal_and_json(folder):
    """With --json a signal is in the object: what was printed before it, too."""
    os.mkfifo(folder / "ping")
    command = [*COMMAND, "run", "--json", "-c", "print('on')\nopen('ping', 'w').close()\nwhile True: pass"]
    with subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE) as process:
        (folder / "ping").read_text()
        process.send_signal(signal.SIGINT)
        data = json.loads(process.communicate(timeout=LIMIT)[0])
    assert (130, {"kind": "abort", "message": "SIGINT was received"}) == (process.returncode, data["error"])
    assert [{"type": "text", "channel": "stdout", "text": "on\n"}] == data["output"]


def test_a_program_that_cannot_be_interrupted(folder):
    """A program that swallows the interrupt is killed after the grace, and the exit code is the same."""
    with subprocess.Popen(
        [*COMMAND, "run", "-c", STUBBORN],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        stderr = process.communicate(timeout=LIMIT)[1]
    assert (130, True) == (process.returncode, stderr.startswith("abort: SIGTERM was received"))


# ---------------------------------------------------------------------- demo


def test_the_demo(cli):
    """The demo ends well and prints its six turns, in order, with their programs."""
    code, stdout, stderr = cli("demo")
    heads = [line for line in stdout.splitlines() if line.startswith("--- Turn ")]
    assert (0, "") == (code, stderr)
    assert [f"--- Turn {number}: {turn.aim}" for number, turn in enumerate(TURNS, 1)] == heads
    assert 6 == len(heads)
    assert [] == [line for turn in TURNS for line in turn.program.splitlines() if f"  | {line}" not in stdout]
    assert stdout.endswith("The owner was released: its kernel and everything that it started are gone.\n")


def test_doctor():
    """`ptc-kernel doctor` names versions and times a kernel, and finds nothing wrong here."""
    done = subprocess.run(
        [sys.executable, "-m", "ptc_kernel", "doctor"], capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert (0, "") == (done.returncode, done.stderr)
    assert ["start", "run", "binding", "stop"] == [
        line.split()[1] for line in lines if line.startswith("ok") and "installed" not in line
    ][-4:]
    assert any("ipykernel" in line for line in lines)
