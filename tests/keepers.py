"""A real memory keeper, started as an agent starts it, and what its agent and its workers say to it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from robust_run.ckpt_io.memory import segment
from robust_run.ckpt_io.memory.agent_protocol import (
    AttemptBegins,
    CopyTo,
    KeeperNote,
    KeeperReady,
    KeeperSetup,
    LookInMemory,
    MemoryLook,
    TlsFiles,
    ToAgent,
)
from robust_run.ckpt_io.memory.client import Buffer, MemoryClient, Skipped
from robust_run.ckpt_io.memory.frames import frame, take
from robust_run.ckpt_io.memory.process import command
from robust_run.ckpt_io.memory.types import MemoryGeneration

#: Only ever waited for in full where something is broken.
LIMIT_S = 60.0
KEY = bytes(range(32))
"""Of a job whose keepers copy."""
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToAgent)
_Kind = TypeVar("_Kind")


class KeeperGround:
    """The agent's end of a keeper."""

    def __init__(
        self, folder: str, limit_bytes: int | None = None, key: bytes = b"", tls: TlsFiles | None = None
    ) -> None:
        """`key`: it copies to and from others."""
        self.folder = folder
        self.port = 0
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(command(theirs.fileno()), pass_fds=[theirs.fileno()], cwd="/")
        ours.settimeout(LIMIT_S)
        self.socket = ours
        self.notes: list[str] = []
        self._came = bytearray()
        self._looks = 0
        address = "127.0.0.1" if key else ""
        self.tell(KeeperSetup(folder=folder, limit_bytes=limit_bytes, address=address, key=key, tls=tls))

    def tell(self, message: msgspec.Struct) -> None:
        self.socket.sendall(frame(message))

    def ready(self) -> KeeperGround:
        self.port = self.next_of(KeeperReady).port
        return self

    def next_of(self, kind: type[_Kind]) -> _Kind:
        """The next message of that kind; notes before it are kept."""
        while True:
            while (body := take(self._came)) is None:
                content = self.socket.recv(1 << 16)
                if not content:
                    raise EOFError(f"the keeper has gone; notes: {self.notes}")
                self._came += content
            message = _decoder.decode(body)
            if isinstance(message, KeeperNote):
                self.notes.append(message.text)
            if isinstance(message, kind):
                return message

    def begin_attempt(
        self,
        attempt: int,
        ranks: tuple[int, ...],
        resumed_step: int | None = None,
        world: int = 0,
        resumed_attempt: int | None = None,
    ) -> None:
        """Once this returns the attempt has begun."""
        size = world or len(ranks)
        begins = AttemptBegins(
            attempt=attempt,
            ranks=ranks,
            world_size=size,
            resumed_step=resumed_step,
            resumed_attempt=resumed_attempt,
        )
        self.tell(begins)
        self.look()

    def look(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """What is whole: attempt, step, ranks."""
        return [(each.attempt, each.step, each.ranks) for each in self.generations() if each.ranks]

    def copies(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """What is whole of others: attempt, step, ranks."""
        return [(each.attempt, each.step, each.copies) for each in self.generations() if each.copies]

    def generations(self) -> tuple[MemoryGeneration, ...]:
        self._looks += 1
        self.tell(LookInMemory(number=self._looks))
        look = self.next_of(MemoryLook)
        assert look.number == self._looks
        return look.generations

    def look_until(self, is_right: Callable[[list[tuple[int, int, tuple[int, ...]]]], bool]) -> None:
        """Ask until it is so; the test's own limit ends what never is."""
        while not is_right(self.look()):
            time.sleep(0.01)

    def copies_until(self, is_right: Callable[[list[tuple[int, int, tuple[int, ...]]]], bool]) -> None:
        """Ask until it is so."""
        while not is_right(self.copies()):
            time.sleep(0.01)

    def noted(self, text: str) -> str:
        """Wait for a note that says this."""
        while not (found := [each for each in self.notes if text in each]):
            self.next_of(KeeperNote)
        return found[0]

    def copy_to(self, other: KeeperGround, attempt: int = 0, name: str = "node-1") -> None:
        self.tell(CopyTo(attempt=attempt, host="127.0.0.1", port=other.port, name=name))

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(LIMIT_S)

    def end(self) -> None:
        self.socket.close()
        try:
            self.process.wait(LIMIT_S)
        finally:
            self.process.kill()


def worker(folder: str, rank: int = 0, world_size: int = 1, attempt: int = 0) -> MemoryClient:
    return MemoryClient.connect(folder, rank=rank, world_size=world_size, attempt=attempt, timeout_s=LIMIT_S)


def contents(step: int, rank: int, size_bytes: int) -> bytes:
    """Bytes that no other step or rank has."""
    return (f"{step}/{rank};".encode() * (size_bytes // 4 + 1))[:size_bytes]


def save(
    client: MemoryClient, step: int, rank: int = 0, size_bytes: int = 10_000, attempt: int = 0, world: int = 1
) -> bool:
    """Save one tensor; whether it was placed."""
    layout = segment.layout([("w", "uint8", (size_bytes,), size_bytes)], b"values")
    buffer = client.begin(step, layout.used_bytes)
    if isinstance(buffer, Skipped):
        return False
    fill(buffer, layout, attempt, rank, world, size_bytes)
    client.copied(buffer, layout.used_bytes)
    return True


def fill(buffer: Buffer, layout: segment.PartLayout, attempt: int, rank: int, world: int, size_bytes: int) -> None:
    segment.write_head(buffer.view, layout, attempt, buffer.step, rank, world)
    at = layout.offsets[0]
    buffer.view[at : at + size_bytes] = contents(buffer.step, rank, size_bytes)


def load(client: MemoryClient, attempt: int, step: int) -> bytes | None:
    """The tensor of a part that is held, checked against its digest."""
    part = client.fetch(attempt, step)
    if part is None:
        return None
    with part:
        (entry,) = segment.read(part.view, part.used_bytes, part.digest).tensors
        return bytes(part.view[entry.offset : entry.offset + entry.nbytes])


def memory_of(pid: int) -> list[str]:
    """Buffers that a process has open."""
    found: list[str] = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that was listed through
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return [each for each in found if "robust-ckpt" in each]
