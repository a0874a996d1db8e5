"""Messages to and from one kernel, over ZMQ.

Each channel is read by a callback on its socket's descriptor: nothing is ever cancelled between
a poll and a receive, so nothing is lost. Foreign exceptions end here.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import zmq
from jupyter_client.session import Session

from ptc_kernel.protocol.frames import ProtocolViolationError
from ptc_kernel.protocol.messages import parse_iopub, parse_reply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ptc_kernel.protocol.messages import KernelEvent

__all__ = ("KernelAddress", "Transport", "ZmqTransport", "new_context")

TURN: Final = 64  # messages per callback: a flood leaves the loop some air
PROBE_S: Final = 0.02
CHANNEL_PORTS: Final = {"shell": 1, "iopub": 2, "stdin": 3, "control": 4, "hb": 5}


class Transport(Protocol):
    """What the host needs of a way to a kernel."""

    @property
    def session(self) -> str:
        """The id that marks the owner's messages."""
        ...

    async def connect(self, dead: asyncio.Future[Any]) -> None:
        """Open the channels; returns when messages arrive, or when the kernel is dead."""
        ...

    def execute(self, content: Mapping[str, Any]) -> str:
        """Send a program; returns the id of the request."""
        ...

    def post(self, content: Mapping[str, Any], buffers: Sequence[bytes] = ()) -> None:
        """Send a comm message on control."""
        ...

    def drain(self) -> None:
        """Hand over what has arrived."""
        ...

    def close(self) -> None:
        """Close every channel; idempotent."""
        ...


def new_context() -> zmq.Context[zmq.Socket[bytes]]:
    """A ZMQ context for all kernels of a runtime."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 65_535)
    return context


@final
class KernelAddress:
    """Where a kernel listens, and the key that signs its messages."""

    def __init__(self, folder: str) -> None:
        self.base = f"{folder}/k"
        self.key = secrets.token_hex(32)

    def url(self, channel: str) -> str:
        """The ZMQ address of a channel."""
        return f"ipc://{self.base}-{CHANNEL_PORTS[channel]}"

    def connection_info(self) -> dict[str, object]:
        """The content of the connection file."""
        ports = {f"{channel}_port": port for channel, port in CHANNEL_PORTS.items()}
        signing = {"key": self.key, "signature_scheme": "hmac-sha256"}
        return {"transport": "ipc", "ip": self.base, "kernel_name": "ptc_python3", **signing, **ports}


class _Channel:
    """One socket."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        kind: int,
        url: str,
        on_parts: Callable[[list[bytes]], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_parts = on_parts
        self.socket = context.socket(kind)
        self.socket.linger = 0
        self.socket.rcvhwm = self.socket.sndhwm = 0
        if kind == zmq.SUB:
            self.socket.subscribe(b"")
        self.socket.connect(url)
        self._fd = int(self.socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self.on_readable)
        self._loop.call_soon(self.on_readable)

    def on_readable(self) -> None:
        if self.drain(TURN):
            self._loop.call_soon(self.on_readable)

    def drain(self, most: int = 1 << 30) -> bool:
        """Hand over what has arrived; True when there may be more."""
        for _ in range(most):
            if self.socket.closed:
                return False
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            except zmq.ZMQError:  # the context was closed under us
                return False
            self._on_parts(parts)
        return True

    def sent(self) -> None:
        """A send may have used up the descriptor's read edge: look once more."""
        self._loop.call_soon(self.on_readable)

    def close(self) -> None:
        if not self.socket.closed:
            self._loop.remove_reader(self._fd)
            self.socket.close(0)


def _pack(value: object) -> bytes:
    return json.dumps(value, default=str, separators=(",", ":")).encode()


@final
class ZmqTransport:
    """The channels to a kernel on this machine.

    `on_event` gets what the kernel says; `on_broken` gets the text of a protocol violation.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: KernelAddress,
        *,
        comm_id: str,
        max_bytes: int,
        on_event: Callable[[KernelEvent], None],
        on_broken: Callable[[str], None],
    ) -> None:
        self._session = Session(key=address.key.encode(), check_pid=False)
        self._session.pack, self._session.unpack = _pack, json.loads
        self._context, self._address = context, address
        self._on_event, self._on_broken = on_event, on_broken
        self._comm_id, self._max_bytes = comm_id, max_bytes
        self._channels: dict[str, _Channel] = {}
        self._heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def session(self) -> str:
        """The id that marks the owner's messages."""
        return str(self._session.session)

    async def connect(self, dead: asyncio.Future[Any]) -> None:
        """Open the channels and prove the subscription: any iopub message does.

        `iopub_welcome` is not waited for: a raw send in the kernel can strand it for ever.
        """
        self._open("iopub", zmq.SUB, lambda parts: self._receive(parts, self._parse_iopub))
        self._open("shell", zmq.DEALER, lambda parts: self._receive(parts, parse_reply))
        self._open("control", zmq.DEALER, lambda _: None)
        while not self._heard.done() and not dead.done():
            self._send("control", "kernel_info_request", {})
            await asyncio.wait({self._heard, dead}, timeout=PROBE_S, return_when=asyncio.FIRST_COMPLETED)

    def _open(self, channel: str, kind: int, on_parts: Callable[[list[bytes]], None]) -> None:
        self._channels[channel] = _Channel(self._context, kind, self._address.url(channel), on_parts)

    def _parse_iopub(self, message: Mapping[str, Any]) -> KernelEvent | None:
        if not self._heard.done():
            self._heard.set_result(None)
        return parse_iopub(message, session=self.session, comm_id=self._comm_id, max_bytes=self._max_bytes)

    def _receive(self, parts: list[bytes], parse: Callable[[Mapping[str, Any]], KernelEvent | None]) -> None:
        try:
            _, rest = self._session.feed_identities(parts)
            event = parse(self._session.deserialize(rest))
        except ProtocolViolationError as error:
            self._on_broken(str(error))
        except Exception as error:  # noqa: BLE001 - whatever a forged message makes of the parsers
            self._on_broken(f"a message cannot be read ({type(error).__name__})")
        else:
            if event is not None:
                self._on_event(event)

    def _send(
        self, channel: str, kind: str, content: Mapping[str, Any], buffers: Sequence[bytes] = ()
    ) -> str:
        target = self._channels[channel]
        message = self._session.send(target.socket, kind, dict(content), buffers=list(buffers) or None)
        assert message is not None
        target.sent()
        return str(message["header"]["msg_id"])

    def execute(self, content: Mapping[str, Any]) -> str:
        """Send a program; returns the id of the request."""
        return self._send("shell", "execute_request", content)

    def post(self, content: Mapping[str, Any], buffers: Sequence[bytes] = ()) -> None:
        """Send a comm message on control; nothing once closed."""
        if "control" in self._channels and not self._channels["control"].socket.closed:
            self._send("control", "comm_msg", content, buffers)

    def drain(self) -> None:
        """Hand over what has arrived."""
        for name in ("iopub", "shell"):
            if name in self._channels:
                self._channels[name].drain()

    def close(self) -> None:
        """Close every channel; idempotent."""
        for channel in self._channels.values():
            channel.close()
