"""What a job's guard and its leader say to each other, over a pair of sockets. No behaviour but the frames."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator

import msgspec

_HEADER_BYTES = 4


class Spawn(msgspec.Struct, frozen=True, kw_only=True, tag="spawn"):
    """The guard is to start a launcher. One whose name it knows is not started a second time."""

    name: str
    """Of its run directory: `rollout-3.1`. No other launcher ever has it."""
    argv: tuple[str, ...]
    env: dict[str, str]
    output: str
    """File that it prints into."""


class Send(msgspec.Struct, frozen=True, kw_only=True, tag="send"):
    """The guard is to send a signal to a launcher."""

    name: str
    number: int


class Shown(msgspec.Struct, frozen=True, kw_only=True, tag="shown"):
    """So much of what a launcher printed has been shown: a new leader goes on from there."""

    name: str
    offset: int


class Lease(msgspec.Struct, frozen=True, kw_only=True, tag="lease"):
    """Launchers may run until then; if no other lease comes, the guard kills them. A node that follows sends these."""

    until_s: float
    """Of the machine's monotonic clock, which all its processes share: one that is read late is not longer for it."""


class Note(msgspec.Struct, frozen=True, kw_only=True, tag="note"):
    """The guard is to hand this to the process that it starts in the leader's place."""

    data: bytes


class Over(msgspec.Struct, frozen=True, kw_only=True, tag="over"):
    """The job is over, or this node has left it; the leader is about to end."""

    code: int
    has_left: bool = False
    """The job goes on without this node."""


FromLeader = Spawn | Send | Shown | Lease | Note | Over


class Known(msgspec.Struct, frozen=True, kw_only=True, tag="known"):
    """A launcher that the guard has started. Its pid is no other process's until `code` is known: its end is not collected."""

    name: str
    pid: int = 0
    started_at: int = 0
    """Of the process, in the kernel's ticks: what tells it from a later one of the same pid."""
    code: int | None = None
    """As `subprocess` gives it; None: it runs."""
    why: str = ""
    """Why it could not be started."""
    shown: int = 0


class AllKnown(msgspec.Struct, frozen=True, kw_only=True, tag="all_known"):
    """First word to each leader: all launchers there ever were."""

    launchers: tuple[Known, ...]
    note: bytes = b""
    """What an earlier leader left; see `Note`."""


class Asked(msgspec.Struct, frozen=True, kw_only=True, tag="asked"):
    """The guard has received a signal."""

    number: int


FromGuard = Known | AllKnown | Asked


def left_running(said: Iterable[object]) -> bool:
    """Return whether what a guard said names launchers that run: an earlier process has started them."""
    known = [message for message in said if isinstance(message, AllKnown)]
    return any(launcher.code is None for message in known for launcher in message.launchers)


class Link:
    """One end of the pair. Blocking; whole messages."""

    def __init__(self, end: socket.socket, receives: object) -> None:
        self.socket = end
        self._decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(receives)
        self._encoder = msgspec.msgpack.Encoder()
        self._data = b""

    def send(self, message: FromLeader | FromGuard) -> None:
        """Send a message. Raises OSError: the other is gone."""
        payload = self._encoder.encode(message)
        self.socket.sendall(len(payload).to_bytes(_HEADER_BYTES, "big") + payload)

    def receive(self) -> Iterator[object]:
        """Read what is there, and yield what is whole. Raises EOFError once the other is gone, OSError."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise EOFError
        self._data += data
        while len(self._data) >= _HEADER_BYTES:
            end = _HEADER_BYTES + int.from_bytes(self._data[:_HEADER_BYTES], "big")
            if len(self._data) < end:
                return
            payload, self._data = self._data[_HEADER_BYTES:end], self._data[end:]
            yield self._decoder.decode(payload)
