"""The hosted kernel: takes requests, runs programs, replies.

A run is a task on the kernel's loop, in one context that lives as long as the kernel. A visitor's
request takes the same path and is then displayed as a notebook would.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from asyncio import CancelledError, wait
from binascii import b2a_base64
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from json.encoder import c_make_encoder, encode_basestring_ascii  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, cast

from ipykernel.ipkernel import IPythonKernel
from IPython.display import display
from traitlets import Type

from ptc_kernel.kernel.bridge import OVER, Bridge
from ptc_kernel.kernel.interrupts import InterruptedTask
from ptc_kernel.kernel.namespace import Namespaces
from ptc_kernel.kernel.processes import kill_new, living_descendants
from ptc_kernel.kernel.programs import Programs, repair_namespace
from ptc_kernel.kernel.render import program_traceback
from ptc_kernel.kernel.runs import Run
from ptc_kernel.kernel.shell import HostedShell
from ptc_kernel.kernel.streams import OutputLimitError, ProgramStream
from ptc_kernel.protocol.frames import pack_text
from ptc_kernel.protocol.ledger import json_size
from ptc_kernel.protocol.lossless import LossyValueError, encode

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    import zmq
    from jupyter_client.session import Session

    from ptc_kernel.kernel.app import HostedApp
    from ptc_kernel.kernel.programs import Parsed
    from ptc_kernel.kernel.shell import OrderedPublisher

__all__ = ("RELIED_ON", "HostedKernel")

RELIED_ON: dict[type, tuple[str, ...]] = {
    IPythonKernel: (
        "dispatch_control",
        "execute_request",
        "shutdown_request",
        "set_parent",
        "pre_handler_hook",
        "post_handler_hook",
        "_publish_execute_input",
    ),
    threading.Thread: ("start",),
    ThreadPoolExecutor: ("submit",),
}

NO_BEGIN = "stopped before the program began"
FAILED = "the worker failed; its log has the details"


# built before any program: it may replace what it likes in the json module
def _as_json(value: object) -> str:
    """What Jupyter's messages hold besides JSON: image bytes, dates."""
    return b2a_base64(value, newline=False).decode() if isinstance(value, bytes) else str(value)


_encode = c_make_encoder(None, _as_json, encode_basestring_ascii, None, ":", ",", False, False, True)
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def pack(value: object) -> bytes:
    """A part of a Jupyter message as JSON that any peer can read, lone surrogates escaped."""
    return "".join(_encode(value, 0)).encode()


def unpack(data: str | bytes) -> Any:
    """A part of a Jupyter message, from its JSON."""
    return _scan(data if isinstance(data, str) else data.decode("utf-8", "replace"), 0)[0]


class HostedKernel(IPythonKernel):
    """Runs programs for the one host that owns this kernel."""

    shell_class = Type(HostedShell)
    if TYPE_CHECKING:  # traits that are always set here
        shell: HostedShell
        session: Session
        io_loop: Any

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        app = cast("HostedApp", self.parent)
        self._runs, self._interrupts = app.runs, app.interrupts
        self._output, self._reader = app.output, app.reader
        self._owner: str = app.hello["owner"]
        self._streams: tuple[ProgramStream, ...] = ()
        self.session.pack, self.session.unpack = pack, unpack
        cast("OrderedPublisher", self.shell.display_pub).output = app.output
        self._programs = Programs(self.shell, app.interrupts)
        self._bridge = Bridge(app.hello, app.runs, app.interrupts, app.output, self._send_comm)
        self._namespaces = Namespaces(self._bridge, app.interrupts)
        app.output.on_over = self._bridge.tell_over
        self.show_image = self._bridge.show_image

    def start(self) -> None:
        """Begin to take requests."""
        super().start()
        loop: asyncio.AbstractEventLoop = self.io_loop.asyncio_loop
        loop.set_task_factory(cast("Any", self._runs.task_factory))
        loop.set_exception_handler(self._on_loop_error)
        self._interrupts.attach(loop)

    @staticmethod
    def _on_loop_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Print what a task of the program raised and nobody took, as a program's traceback."""
        error = context.get("exception")
        stopped = isinstance(error, (InterruptedTask, OutputLimitError))
        if stopped or (isinstance(error, Exception) and error.args == (OVER,)):
            return
        report = "" if error is None else f"{program_traceback(error)}\n"
        sys.stderr.write(f"{context.get('message')}\n{report}")

    def pre_handler_hook(self) -> None:
        """Leave SIGINT alone: ipykernel would swap its handler around each message."""

    def post_handler_hook(self) -> None:
        """Leave SIGINT alone."""

    def _send_comm(self, kind: str, content: dict[str, Any], run: Run, buffers: list[bytes]) -> None:
        socket = self.iopub_socket
        self.session.send(socket, kind, content, parent=run.parent, ident=b"comm", buffers=list(buffers))

    # ------------------------------------------------------------------ control

    async def dispatch_control(self, msg: list[Any]) -> None:
        """Take our comm's messages without status messages and locks; pass on the others."""
        _, parts = self.session.feed_identities(msg, copy=False)
        header = unpack(bytes(cast("zmq.Frame", parts[1]).buffer))
        if header.get("msg_type") not in ("comm_msg", "comm_close"):
            await super().dispatch_control(msg)
            return
        try:
            message = self.session.deserialize(parts, content=True, copy=False)
        except ValueError:  # not signed with this kernel's key
            return
        if message["content"].get("comm_id") != self._bridge.comm_id:
            getattr(self.comm_manager, header["msg_type"])(self.control_stream, [], message)
        elif header.get("session") == self._owner:
            self._bridge.on_message(message["content"].get("data") or {}, list(message["buffers"]))

    async def shutdown_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Shut down for the owner; refuse anybody else."""
        if parent["header"].get("session") == self._owner:
            await super().shutdown_request(stream, ident, parent)
            return
        text = "this kernel belongs to its host, which alone shuts it down"
        refusal = {"status": "error", "ename": "Refused", "evalue": text, "traceback": [], "restart": False}
        self.session.send(stream, "shutdown_reply", refusal, parent, ident=ident)

    # ------------------------------------------------------------------ one request

    async def execute_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Run one program and reply with its outcome, whatever happens."""
        content = parent["content"]
        owned = parent["header"].get("session") == self._owner
        options: dict[str, Any] = content.get("ptc", {}) if owned else {}
        header = {"header": parent["header"], "parent_header": {}, "metadata": {}, "content": {}}
        run = Run(parent["header"]["msg_id"], header, owned=owned, cap=options.get("cap", 0))
        self.shell.execution_count += 1
        try:
            reply = await self._execute(run, ident, content["code"], options)
        except BaseException:  # noqa: BLE001 - no reply would cost the owner the whole environment
            self._reader.report(traceback.format_exc())
            reply = {"status": "exception", "text": FAILED}
        finally:
            self._runs.active, self._runs.last = None, run
            run.main = None  # a finished task keeps the program's value alive
            run.meter = None  # what comes late is not metered
            self._bridge.end_run(run)
        buffers: list[bytes] = []
        if "text" in reply:
            reply["text"] = pack_text(reply["text"], buffers)
        try:
            message = self._jupyter_reply(reply)
            self.session.send(stream, "execute_reply", message, parent, ident=ident, buffers=list(buffers))
        except BaseException:  # noqa: BLE001 - a kernel that cannot reply is better dead than silent
            self._reader.report(traceback.format_exc())
            os._exit(1)

    async def _execute(self, run: Run, ident: Any, program: str, options: dict[str, Any]) -> dict[str, Any]:
        self._restore()
        if "cwd" in options:
            try:
                os.chdir(options["cwd"])
            except OSError as problem:
                return {"status": "cwd", "text": f"the working directory cannot be used: {problem.strerror}"}
        context = self._programs.context
        context.run(self._runs.variable.set, run)
        context.run(self.set_parent, ident, run.parent, "shell")
        try:
            parsed = context.run(self._programs.compile, program)  # its warnings are output of this run
        except BaseException as wrong:  # noqa: BLE001 - compile raises more than SyntaxError
            return self._exception(run, wrong)
        if self._interrupts.take_early(run):
            return self._exception(run, KeyboardInterrupt(NO_BEGIN))
        self._publish_execute_input(program, run.parent, self.shell.execution_count)
        if run.owned:
            self._output.mark_begun(run)
            self._bridge.begin_run(run)
            self._namespaces.bind(run, options["names"], options["errors"], self.shell.user_ns)
        earlier = living_descendants()
        reply = await self._run(run, parsed, options)
        if run.step:
            kill_new(earlier)
        self._reader.barrier()
        return reply

    async def _run(self, run: Run, parsed: Parsed, options: dict[str, Any]) -> dict[str, Any]:
        context = self._programs.context
        self._runs.active = run
        context.run(self._trigger, "pre_execute")
        loop: asyncio.AbstractEventLoop = self.io_loop.asyncio_loop
        main = run.main = loop.create_task(self._perform(run, parsed, options), context=context)
        while not main.done():
            with suppress(CancelledError):  # of a program that cancels all tasks but its own
                await wait({main})
        if main.cancelled():  # before its first step
            return self._exception(run, CancelledError())
        context.run(self._trigger, "post_execute")
        for stream in self._streams:
            context.run(self._guard, stream.finish)
        self._restore()
        outcome: dict[str, Any] = main.result()
        return outcome

    async def _perform(self, run: Run, parsed: Parsed, options: dict[str, Any]) -> dict[str, Any]:
        """Run the program and take its value in the same turn of the loop, before a task can change it."""
        completion, error = await self._programs.run(parsed)
        try:
            if error is not None:
                return self._exception(run, error)
            return self._completion(run, completion, options)
        except BaseException:  # noqa: BLE001 - nothing may leave a task: it would end the loop
            self._reader.report(traceback.format_exc())
            return {"status": "exception", "text": FAILED}

    def _trigger(self, event: str) -> None:
        self._guard(lambda: self.shell.events.trigger(event))

    def _guard(self, function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException:  # noqa: BLE001 - a callback of the program, or one that was interrupted
            self._reader.report(traceback.format_exc())

    # ------------------------------------------------------------------ the outcome

    def _completion(self, run: Run, completion: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
        if not run.owned:
            if completion:  # as a notebook does
                self.shell.displayhook(completion[0])
            return {"status": "none"}
        if not completion or options["discard"]:
            return {"status": "none"}
        try:
            text = encode(completion[0])
        except LossyValueError as error:
            if options["display"]:
                return self._displayed(run, completion[0])
            return self._bounded(run, "lossy", str(error), json_size(str(error)))
        except BaseException as error:  # noqa: BLE001 - no memory for its text
            return self._exception(run, error)
        return self._bounded(run, "value", text, len(text.encode()))

    def _displayed(self, run: Run, value: object) -> dict[str, Any]:
        try:
            display(value)
        except BaseException as wrong:  # noqa: BLE001 - reprs are code of the program
            return self._exception(run, wrong)
        return {"status": "none"}

    def _exception(self, run: Run, error: BaseException) -> dict[str, Any]:
        text = program_traceback(error)
        return self._bounded(run, "exception", text, json_size(text))

    def _bounded(self, run: Run, status: str, text: str, size: int) -> dict[str, Any]:
        """The outcome, unless it does not fit beside the output: then its text stays here."""
        self._reader.barrier()
        if run.meter is not None and size > run.meter.room:
            return {"status": "limit"}
        return {"status": status, "text": text}

    def _jupyter_reply(self, outcome: dict[str, Any]) -> dict[str, Any]:
        """The outcome as the reply that Jupyter's clients know, with ours inside."""
        count = self.shell.execution_count
        if outcome["status"] in ("none", "value"):
            return {
                "status": "ok",
                "execution_count": count,
                "user_expressions": {},
                "payload": [],
                "ptc": outcome,
            }
        text = outcome.get("text") or outcome["status"]
        name = text.rsplit("\n", 1)[-1].partition(":")[0]
        error = {"ename": name, "evalue": text, "traceback": [text]}
        return {"status": "error", "execution_count": count, **error, "ptc": outcome}

    # ------------------------------------------------------------------ between programs

    def _restore(self) -> None:
        """Undo what a program did to what the next one, and the worker, stand on."""
        self._streams = ProgramStream(self._output, "stdout", 1), ProgramStream(self._output, "stderr", 2)
        sys.stdout, sys.stderr = self._streams  # new ones: a program may have patched the old
        if sys.stdin is None or sys.stdin.closed:
            sys.stdin = open(os.devnull)  # noqa: SIM115 - lives as long as the kernel
        self._interrupts.install()
        repair_namespace(self.shell.user_ns)
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):  # a failed program's variables would live on there
                delattr(sys, name)
