"""The command line: `ptc-kernel run` for one program, `demo` for a session, `doctor` for the machine."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ptc_kernel import (
    ABSENT,
    UNSET,
    AbortController,
    JupyterPtcRuntime,
    OutputEvent,
    PtcBindingErrorClass,
    PtcBindingNamespace,
    PtcError,
    PtcRunRequest,
    PtcRunResult,
    ResultEvent,
    TextOutput,
    __version__,
)

if TYPE_CHECKING:
    from ptc_kernel.types import PtcOutput, Unset

__all__ = ("EXIT_CODES", "main")

EXIT_CODES: Final = {
    None: 0,
    "exception": 1,
    "invalid-output": 3,
    "output-limit": 4,
    "protocol": 5,
    "worker-exit": 6,
    "sandbox-unavailable": 7,
    "timeout": 124,
    "abort": 130,
}
USAGE: Final = 2

RUN_HELP: Final = """\
Runs one program in a fresh kernel. What it prints appears as it is printed; the value of its last
expression is printed as JSON at the end. With --tools the program can call functions of yours:

  ptc-kernel run -c 'await tools.add(a=1, b=2)' --tools mymodule:TOOLS

where mymodule.TOOLS is a dict of names and functions (one JSON value in, one out), a
PtcBindingNamespace, or a list of these.

exit codes: 0 ok, 1 exception, 2 usage, 3 invalid-output, 4 output-limit, 5 protocol,
            6 worker-exit, 7 sandbox-unavailable, 124 timeout, 130 abort
"""


class _UsageProblemError(Exception):
    """The command line asks for something that is not there."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a lone surrogate becomes its JSON escape
            stream.reconfigure(errors="backslashreplace")
    try:
        if options.command == "demo":
            from ptc_kernel.demo import run_demo  # noqa: PLC0415 - only this verb needs it

            return 0 if asyncio.run(run_demo()) else 1
        if options.command == "doctor":
            return asyncio.run(_doctor())
        bindings = () if options.tools is None else _namespaces(options.tools)
        return asyncio.run(_run(options, _program(options), bindings))
    except (PtcError, _UsageProblemError) as problem:
        sys.stderr.write(f"ptc-kernel: {problem}\n")
        return USAGE
    except BrokenPipeError:  # nobody reads; the interpreter's last flush must not fail either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_CODES["abort"]
    except KeyboardInterrupt:
        return EXIT_CODES["abort"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ptc-kernel", description="Programs that call your functions, in persistent Jupyter kernels."
    )
    parser.add_argument("--version", action="version", version=f"ptc-kernel {__version__}")
    verbs = parser.add_subparsers(dest="command", required=True, metavar="VERB")
    verbs.add_parser("demo", help="play an agent's session over the standard library's own sources")
    verbs.add_parser("doctor", help="say what this machine has, what works on it, and what does not")
    run = verbs.add_parser(
        "run",
        help="run one program",
        description=RUN_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = run.add_mutually_exclusive_group(required=True)
    source.add_argument("file", nargs="?", metavar="FILE", help="the program; - reads it from stdin")
    source.add_argument("-c", dest="code", metavar="CODE", help="the program itself")
    run.add_argument("--tools", metavar="MODULE:OBJECT", help="host functions for the program")
    run.add_argument("--timeout-ms", type=_timeout, default=UNSET, metavar="MS", help="a number, or none")
    run.add_argument("--cwd", type=os.path.abspath, help="working directory of the program")
    run.add_argument("--json", action="store_true", help="print the whole result as one JSON object")
    return parser


def _timeout(text: str) -> float | None:
    return None if text == "none" else float(text)


async def _doctor() -> int:
    from ptc_kernel.doctor import examine  # noqa: PLC0415 - only this verb needs it

    checks = await examine()
    marks = {True: "ok  ", False: "FAIL", None: "    "}
    for check in checks:
        sys.stdout.write(f"{marks[check.good]} {check.name:<15} {check.text}\n")
    return int(any(check.good is False for check in checks))


# ---------------------------------------------------------------------- run


async def _run(options: argparse.Namespace, program: str, bindings: Sequence[PtcBindingNamespace]) -> int:
    controller = AbortController()
    for number in (signal.SIGINT, signal.SIGTERM):
        name = signal.Signals(number).name
        asyncio.get_running_loop().add_signal_handler(number, controller.abort, f"{name} was received")
    timeout_ms: float | Unset | None = options.timeout_ms
    async with JupyterPtcRuntime() as runtime:
        request = PtcRunRequest(
            program=program,
            bindings=bindings,
            cwd=options.cwd,
            timeout_ms=timeout_ms,
            signal=controller.signal,
        )
        spec = runtime.resolve(request)
        if options.json:
            result = await runtime.run(spec)
            sys.stdout.write(json.dumps(_as_json(result), ensure_ascii=False) + "\n")
        else:
            result = await _show(runtime, spec)
    return EXIT_CODES[None if result.error is None else result.error.kind]


async def _show(runtime: JupyterPtcRuntime, spec: Any) -> PtcRunResult:
    """Print output as it comes, then the value or the failure."""
    result = PtcRunResult()
    async for event in runtime.stream(spec):
        match event:
            case OutputEvent(TextOutput(text, channel)):
                stream = sys.stderr if channel == "stderr" else sys.stdout
                stream.write(text)
                stream.flush()
            case ResultEvent(ended):
                result = ended
    if result.value is not ABSENT and result.value is not None:
        sys.stdout.write(json.dumps(result.value, indent=2, ensure_ascii=False) + "\n")
    if result.error is not None:
        sys.stderr.write(f"{result.error.kind}: {result.error.message}\n")
    return result


def _program(options: argparse.Namespace) -> str:
    if options.code is not None:
        return str(options.code)
    if options.file == "-":
        return sys.stdin.read()
    try:
        with open(options.file, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{options.file} cannot be read: {error}"
        raise _UsageProblemError(msg) from None


def _namespaces(name: str) -> Sequence[PtcBindingNamespace]:
    """The bindings behind MODULE:OBJECT."""
    module, _, attribute = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        found: object = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        msg = f"--tools {name} cannot be found: {error}"
        raise _UsageProblemError(msg) from None
    except Exception as error:  # noqa: BLE001 - the module's own code
        msg = f"--tools {name} fails when it is imported: {type(error).__name__}: {error}"
        raise _UsageProblemError(msg) from None
    if isinstance(found, Mapping):
        error_class = PtcBindingErrorClass(name="ToolCallError", member_name_property="toolName")
        return [PtcBindingNamespace(global_name="tools", functions=found, error_class=error_class)]
    if isinstance(found, PtcBindingNamespace):
        return [found]
    if isinstance(found, Sequence) and all(isinstance(item, PtcBindingNamespace) for item in found):
        return found
    msg = f"--tools {name} must be a dict of functions, a PtcBindingNamespace or a list of these"
    raise _UsageProblemError(msg)


def _as_json(result: PtcRunResult) -> dict[str, Any]:
    """The result with the field names of `PtcRunResult`; a value that is absent is left out."""
    error = result.error
    data: dict[str, Any] = {
        "output": [_output_as_json(item) for item in result.output],
        "error": None if error is None else {"kind": error.kind, "message": error.message},
        "state": result.state,
        "started": result.started,
        "calls_total": result.calls_total,
        "calls": [
            {
                "namespace": call.namespace,
                "member": call.member,
                "outcome": call.outcome,
                "milliseconds": round(call.milliseconds, 3),
            }
            for call in result.calls
        ],
    }
    if result.value is not ABSENT:
        data["value"] = result.value
    return data


def _output_as_json(item: PtcOutput) -> dict[str, Any]:
    if isinstance(item, TextOutput):
        return {"type": "text", "channel": item.channel, "text": item.text}
    return {"type": "image", "attachment": item.attachment.to_json()}
