"""All queues of a job, with what is kept of them on disk: an orchestrator that is started again has every item.

A line is an event with its time, or a snapshot, as msgpack behind four bytes of length and four of CRC32. A torn or damaged end
is put aside. A file that has grown far beyond its items is written anew, and so is one that was read: its queue goes on with
other numbers. What was leased stays so for `RECONNECT_S`, until its consumer has come back. Writes are not forced to the disk:
what the kernel has outlives this process, not the machine.
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import msgspec

from robust_run.atomic_file import write_file
from robust_run.errors import PlatformError, UserError
from robust_run.orchestrator.model.queue_state import Answer, QueueState
from robust_run.orchestrator.rules.queue_core import leased_to, resume, step
from robust_run.roles.queue_words import MOST_NAMES, ConsumerGone, Put, QueueEvent, QueueLimits, Took

NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,63}")
#: A file smaller than this is never written anew.
LEAST_BYTES = 4 << 20
#: So long consumers may take to come back to an orchestrator that was started again.
RECONNECT_S = 30.0
#: A file that could not be written is tried again after so long.
TRY_AGAIN_S = 1.0
#: Numbers that no item gets after a file was read: its last ones may be lost, and somebody may still know them.
NUMBERS_LEFT_OUT = 1 << 20
_MAGIC = b"robust-run queue 1\n"
_HEADER_BYTES = 8


class Entry(msgspec.Struct, frozen=True, tag="event"):
    """What happened, and when."""

    at_s: float
    event: QueueEvent


class Snapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """All that came of what happened before."""

    state: QueueState


_encoder = msgspec.msgpack.Encoder()
_lines: msgspec.msgpack.Decoder[Entry | Snapshot] = msgspec.msgpack.Decoder(Entry | Snapshot)


class Queue:
    """One queue and its file. `say` is called with a line when the file cannot be written, and when it can be again."""

    def __init__(
        self, path: str, limits: QueueLimits, now_s: float, say: Callable[[str], None], identity: str = ""
    ) -> None:
        """`identity`: of a new queue. Raises PlatformError where the file is of another version, or cannot be read."""
        self._path = path
        self._say = say
        self._descriptor = -1
        self._bytes = self._anew_bytes = 0
        self._is_behind = False
        """The file lacks an event: nothing is appended, or numbers would mean other items; it has to be written anew."""
        self._try_at_s = 0.0
        data = self._read()
        self.state, good = recovered(data, limits)
        if good < len(data):
            self._keep_damaged(data, good)
        self.state.identity = self.state.identity or identity
        if data:
            self.state.next_number += NUMBERS_LEFT_OUT
        resume(self.state, now_s, RECONNECT_S, another_clock=False)
        self._write_anew(now_s)

    def tell(self, event: QueueEvent, now_s: float) -> Answer:
        """Take in an event; it is on record before it is answered."""
        answer = step(self.state, event, now_s)
        if matters(event, answer):
            self._append(Entry(now_s, event), now_s)
        return answer

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> bytes:
        try:
            with open(self._path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise PlatformError(f"the queue {self._path} cannot be read: {error.strerror}") from error
        if not data.startswith(_MAGIC[: len(data)]):
            raise PlatformError(f"the queue {self._path} is of another version of robust-run; use that one")
        return data

    def _keep_damaged(self, data: bytes, good: int) -> None:
        """What cannot be read is no longer in the queue; it is put aside for people."""
        aside = f"{self._path}.damaged"
        with suppress(OSError):
            write_file(aside, data[good:], mode=0o600)
        self._say(
            f"the queue {self._path} had {len(data) - good} bytes at its end that are damaged or not whole: what they say is"
            f" lost; they are in {aside}"
        )

    def _append(self, entry: Entry, now_s: float) -> None:
        if self._is_behind:
            if now_s >= self._try_at_s:
                self._write_anew(now_s)
            return
        line = _framed(entry)
        try:
            if os.write(self._descriptor, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._bytes += len(line)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._bytes)
            self._fall_behind(error, now_s)
            return
        if self._bytes > self._anew_bytes:
            self._write_anew(now_s)

    def _write_anew(self, now_s: float) -> None:
        try:
            write_file(
                self._path, _MAGIC + _framed(Snapshot(self.state)), mode=0o600, durable=bool(self.state.next_number)
            )
            self.close()
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            self._bytes = os.fstat(self._descriptor).st_size
        except OSError as error:
            if self._descriptor >= 0 and not self._is_behind:
                self._anew_bytes = 2 * self._bytes  # the old file is whole, and goes on for a while
            else:
                self._fall_behind(error, now_s)
            return
        self._anew_bytes = max(LEAST_BYTES, 3 * self._bytes)
        if self._is_behind:
            self._is_behind = False
            self._say(f"the queue {self._path} can be written again, and has all")

    def _fall_behind(self, error: OSError, now_s: float) -> None:
        self._try_at_s = now_s + TRY_AGAIN_S
        if not self._is_behind:
            self._is_behind = True
            self._say(
                f"the queue {self._path} cannot be written ({error.strerror}): until it can be, a restart of the orchestrator"
                " would lose items; make room"
            )


class Kept(Protocol):
    """A queue, wherever it is kept."""

    state: QueueState

    def tell(self, event: QueueEvent, now_s: float) -> Answer:
        """Take in an event; it is on record before it is answered."""

    def close(self) -> None:
        """Let go of it."""


class QueueBook:
    """The queues of a job: each is made when it is first named."""

    def __init__(
        self,
        folder: str,
        limits: QueueLimits,
        say: Callable[[str], None],
        make: Callable[[str, float], Kept] | None = None,
    ) -> None:
        """`make`: what makes a queue that is kept elsewhere than in `folder`."""
        self._folder = folder
        self._limits = limits
        self._say = say
        self._make = make or self._in_file
        self.queues: dict[str, Kept] = {}

    def open(self, name: str, now_s: float) -> Kept:
        """Return a queue. Raises UserError for a name that cannot be, PlatformError for a file of another version."""
        found = self.queues.get(name)
        if found is not None:
            return found
        if not NAME.fullmatch(name):
            raise UserError(
                f"{name[:80]!r} is no name of a queue: letters, digits, - and _, at most 64, a letter first"
            )
        if len(self.queues) >= MOST_NAMES:
            raise UserError(f"there are {MOST_NAMES} queues already; {name} is one too many")
        self.queues[name] = queue = self._make(name, now_s)
        return queue

    def _in_file(self, name: str, now_s: float) -> Queue:
        with suppress(OSError):  # it is in memory then, and that is said
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
        path = os.path.join(self._folder, f"{name}.queue")
        return Queue(path, self._limits, now_s, self._say, os.urandom(8).hex())

    def reopen(self, now_s: float) -> None:
        """Open those that have a file: an orchestrator that is started again goes on with them. Raises as `open`."""
        with suppress(FileNotFoundError):
            for entry in sorted(os.listdir(self._folder)):
                if entry.endswith(".queue"):
                    self.open(entry.removesuffix(".queue"), now_s)

    def consumer_gone(self, consumer: str, now_s: float) -> None:
        """A consumer ended: what is leased to it waits again."""
        for queue in self.queues.values():
            if leased_to(queue.state, consumer):
                queue.tell(ConsumerGone(consumer=consumer), now_s)

    def consumers(self) -> set[str]:
        """Return who works on anything."""
        held = (each for queue in self.queues.values() for each in queue.state.held.values())
        return {each.consumer for each in held if each.standing == "leased"}

    def close(self) -> None:
        """Let go of all files."""
        for queue in self.queues.values():
            queue.close()


def recovered(data: bytes, limits: QueueLimits) -> tuple[QueueState, int]:
    """Return the state that a file leads to, and how many of its bytes are whole: a torn or damaged end is left out."""
    state, at = QueueState(limits=limits), len(_MAGIC)
    if len(data) < at:
        return state, 0
    while True:
        size, check = (int.from_bytes(data[at + i : at + i + 4], "big") for i in (0, 4))
        payload = data[at + _HEADER_BYTES : at + _HEADER_BYTES + size]
        if len(data) < at + _HEADER_BYTES or len(payload) < size or zlib.crc32(payload) != check:
            return state, at
        try:
            line = _lines.decode(payload)
        except msgspec.MsgspecError:
            return state, at
        if isinstance(line, Snapshot):
            state = msgspec.structs.replace(line.state, limits=limits)
        else:
            step(state, line.event, line.at_s)
        at += _HEADER_BYTES + size


def matters(event: QueueEvent, answer: Answer) -> bool:
    """Whether an event changed what has to be known after a restart."""
    if isinstance(event, Put):
        return answer.accepted and not answer.is_again
    return not isinstance(event, Took) or bool(answer.items or answer.stale)


def _framed(line: Entry | Snapshot) -> bytes:
    payload = _encoder.encode(line)
    return len(payload).to_bytes(4, "big") + zlib.crc32(payload).to_bytes(4, "big") + payload
