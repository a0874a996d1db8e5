"""One live kernel: starts it, listens to it, stops it, sees it die, and cleans up after it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, assert_never, final

from ptc_kernel.host.background import Background
from ptc_kernel.host.images import Images
from ptc_kernel.host.launch import LaunchedKernel, LaunchError, launch
from ptc_kernel.host.process import describe_exit
from ptc_kernel.host.recovery import read_rest
from ptc_kernel.host.transport import Transport, ZmqTransport
from ptc_kernel.host.window import ReadWindow
from ptc_kernel.protocol.events import Died, LaunchFailed, Ready, Violation
from ptc_kernel.protocol.frames import Answer, CallsFrame, encode_answers
from ptc_kernel.protocol.messages import (
    Began,
    Busy,
    Frame,
    Idle,
    KernelEvent,
    Picture,
    Reply,
    Text,
    Visited,
)

if TYPE_CHECKING:
    import zmq

    from ptc_kernel.attachments import AttachmentStore
    from ptc_kernel.config import JupyterPtcConfig
    from ptc_kernel.host.run import Run
    from ptc_kernel.protocol.frames import KernelFrame
    from ptc_kernel.types import Channel

__all__ = ("CleanupError", "Environment")

logger = logging.getLogger(__name__)


class CleanupError(Exception):
    """Something of a kernel is left: a process that does not die, or a file that cannot be removed."""


@final
class Environment:
    """One kernel process, and the variables in it.

    Attributes:
        label: names the owner in logs.
        background: late output of earlier runs.
        lost: why the kernel is gone, unless the host killed it for a run.
        images: those that bindings gave to the program.
        window: what of the output was read.
        visited: whether an attached client ran code since this was last looked at.
    """

    def __init__(
        self,
        config: JupyterPtcConfig,
        context: zmq.Context[zmq.Socket[bytes]],
        store: AttachmentStore,
        label: str,
    ) -> None:
        self.label = label
        self.images = Images(store)
        self.background = Background()
        self.lost: str | None = None
        self.visited = False
        self._config, self._context = config, context
        self._loop = asyncio.get_running_loop()
        self._kernel: LaunchedKernel | None = None
        self._transport: Transport | None = None
        self._run: Run | None = None
        self._killed = False
        self._next_id = 1
        self.window = ReadWindow(lambda count: self._post({"ack": count}))
        self._answers: list[Answer] = []

    @property
    def alive(self) -> bool:
        """Whether the kernel can take a program."""
        kernel = self._kernel
        return self._transport is not None and kernel is not None and kernel.process.alive

    # ------------------------------------------------------------------ start

    async def start(self) -> None:
        """Start the kernel and connect to it.

        Raises:
            LaunchError: it could not be started, or died while it was starting.
        """
        config = self._config
        try:
            kernel = self._kernel = LaunchedKernel(config)
        except OSError as error:
            msg = f"the kernel could not be started: {error.strerror}"
            raise LaunchError(msg) from None
        transport: Transport = ZmqTransport(
            self._context,
            kernel.address,
            comm_id=kernel.comm_id,
            max_bytes=config.max_message_bytes,
            on_event=self._on_event,
            on_broken=self._on_broken,
        )
        hello = {
            "owner": transport.session,
            "max_pending_calls": config.max_pending_calls,
            "max_message_bytes": config.max_message_bytes,
            "max_memory_mb": config.max_memory_mb,
        }
        try:
            await launch(kernel, hello, self._on_exit)
        except LaunchError as error:
            tail = kernel.log_tail()
            msg = f"{error}. Its log ends with: {tail}" if tail else str(error)
            raise LaunchError(msg) from None
        self._transport = transport
        await transport.connect(kernel.process.dead)
        if not kernel.process.alive:
            raise LaunchError("the kernel process ended while it was starting")
        logger.debug("kernel started label=%s pid=%d", self.label, kernel.process.pid)

    # ------------------------------------------------------------------ a run

    def execute(self, run: Run) -> None:
        """Send the program of a run that has begun."""
        assert self._transport is not None
        assert self._kernel is not None
        self._kernel.mark_log()
        spec = run.spec
        options = {
            "cap": self._config.max_output_bytes,
            "names": run.dispatch.names,
            "errors": run.errors,
            "cwd": spec.cwd,
            "discard": spec.discard_completion,
            "display": spec.display_completion,
        }
        self._run = run
        run.id = self._transport.execute(
            {
                "code": spec.program,
                "silent": False,
                "store_history": False,
                "user_expressions": {},
                "allow_stdin": False,
                "stop_on_error": False,
                "ptc": options,
            }
        )
        run.feed(Ready())

    def leave(self, run: Run) -> None:
        """The run is over: what still comes of it is late."""
        if self._run is run:
            self._run = None

    def interrupt(self, run: Run) -> None:
        """One step of the stop ladder: a cancel message and SIGINT."""
        if self._kernel is not None:
            self._post({"cancel": run.id})
            self._kernel.process.interrupt()

    def kill(self) -> None:
        """Kill the kernel and everything that it started."""
        self._killed = True
        if self._kernel is not None:
            self._kernel.process.kill()

    # ------------------------------------------------------------------ what the kernel says

    def _on_event(self, event: KernelEvent) -> None:
        run = self._run
        match event:
            case Text() | Picture():
                self._on_output(event, run)
            case Frame(frame):
                self._on_frame(frame, run)
            case Visited():
                self.visited = True
            case Busy() | Began() | Idle() | Reply():
                if run is not None and event.run == run.id:
                    run.take(event)
            case _:
                assert_never(event)

    def _on_output(self, event: Text | Picture, run: Run | None) -> None:
        assert self._kernel is not None
        ring = self._kernel.ring
        ring.seen = max(ring.seen, event.ring)
        if run is not None and event.run == run.id:
            run.take(event)
            return
        if isinstance(event, Picture):
            self.background.add("display", event.plain)
        else:
            self.background.add(event.channel, event.text)
        self.window.read(event.count)

    def _on_frame(self, frame: KernelFrame, run: Run | None) -> None:
        if run is not None and frame.run == run.id:
            self._next_id = run.on_frame(frame, self._next_id)
        elif isinstance(frame, CallsFrame):
            self._next_id = frame.calls[-1].id + 1
            for call in frame.calls:
                self.answer(Answer(call.id, False, "the run that made this call is over"))

    def _on_broken(self, text: str) -> None:
        if self._run is not None:
            self._run.feed(Violation(text))
        else:
            self.lost = f"the kernel broke the protocol between runs: {text}"
            self.kill()

    # ------------------------------------------------------------------ what the host says

    def _post(self, data: dict[str, object], buffers: list[bytes] | None = None) -> None:
        if self._transport is not None and self._kernel is not None:
            self._transport.post({"comm_id": self._kernel.comm_id, "data": data}, buffers or [])

    def answer(self, answer: Answer) -> None:
        """Send the answer of a call, together with others of this turn of the loop."""
        if not self._answers:
            self._loop.call_soon(self._flush_answers)
        self._answers.append(answer)

    def _flush_answers(self) -> None:
        answers, self._answers = self._answers, []
        while answers:
            size, count = 0, 0
            for answer in answers:
                size += len(answer.text)
                if count and size > self._config.max_message_bytes:
                    break
                count += 1
            data, buffers = encode_answers(answers[:count])
            self._post(data, buffers)
            answers = answers[count:]

    # ------------------------------------------------------------------ death

    def _on_exit(self, code: int) -> None:
        """The process is dead: read what it left, then say so."""
        kernel = self._kernel
        assert kernel is not None
        if self._transport is not None:
            self._transport.drain()
            self._transport.close()
        self._recover(kernel)
        text = describe_exit(code, oom_before=kernel.process.oom_before)
        tail = kernel.log_tail()
        run = self._run
        if self.lost is None and not self._killed:
            self.lost = text if run is not None else f"{text}, between runs"
        if run is not None:
            run.take(Died(f"{text}. Its log ends with: {tail}" if tail else f"{text}."))

    def _recover(self, kernel: LaunchedKernel) -> None:
        for kind, data in kernel.ring.undelivered():
            if kind != "began":
                self._late(kind, data.decode("utf-8", "replace"))
            elif self._run is not None and self._run.id.encode() == data and not self._run.started:
                self._run.take(Began(self._run.id))
        self._late("stdout", read_rest(kernel.out_read, kernel.ring.partial("stdout")))
        self._late("stderr", read_rest(kernel.err_read, kernel.ring.partial("stderr")))

    def _late(self, channel: Channel, text: str) -> None:
        if text and self._run is not None:
            self._run.take(Text(self._run.id, channel, text, 0, 0))
        elif text:
            self.background.add(channel, text)

    def launch_failed(self, run: Run, error: LaunchError) -> None:
        """Tell a run that there is no kernel for it."""
        run.feed(LaunchFailed(f"{error}."))

    # ------------------------------------------------------------------ end

    async def close(self) -> None:
        """End the kernel and remove everything that belongs to it; may be called again.

        Raises:
            CleanupError: something is left.
        """
        kernel = self._kernel
        if kernel is None:
            return
        grace = self._config.grace_ms / 1000
        if hasattr(kernel, "process"):
            process = kernel.process
            if process.alive:
                self.lost = self.lost or "it was released"
            if not await (process.end(grace) if process.alive else process.all_gone(grace)):
                raise CleanupError("processes that a program started do not end")
        if self._transport is not None:
            self._transport.close()
        try:
            kernel.close()
        except OSError as error:
            msg = f"the private folder of a kernel cannot be removed: {error.strerror}"
            raise CleanupError(msg) from None
