"""A worker's connection to the memory keeper of its node. Blocking, with timeouts; knows nothing of torch."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import threading
import time
from typing import Any, TypeVar

import msgspec

from robust_run.ckpt_io.errors import CheckpointError, MemoryUnavailable
from robust_run.ckpt_io.memory import place
from robust_run.ckpt_io.memory.frames import FrameRefused, frame, take
from robust_run.ckpt_io.memory.protocol import (
    Absent,
    AskFlush,
    Attach,
    Attached,
    Begin,
    Coming,
    Copied,
    Fetch,
    Flush,
    FlushState,
    FromKeeper,
    Held,
    Place,
    Read,
    Refused,
    Reserve,
    Reserved,
    Skip,
)
from robust_run.ckpt_io.memory.read_ahead import read_ahead
from robust_run.ckpt_io.memory.types import BUFFERS

#: To reserve takes 0.07 s per GiB and thread; all ranks of a node do so at the same time.
RESERVE_TIMEOUT_S = 120.0
#: How long a part is waited for that comes from another node, as long as the keeper says that it does.
COMING_TIMEOUT_S = 600.0
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromKeeper)
_Answer = TypeVar("_Answer")
_Other = TypeVar("_Other")


class Buffer(msgspec.Struct, frozen=True, kw_only=True):
    """Where a part goes."""

    view: memoryview
    """The whole buffer, writable. Each time the same one for the same id: what was made of it may be kept."""
    id: int
    step: int


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """The step is not kept. Nothing is wrong."""

    reason: str
    is_planned: bool = False
    """Not every step is kept: one that follows soon is."""


class HeldPart:
    """A part that is held, mapped so that it cannot be written. Its buffer is not used again until it is closed."""

    def __init__(self, client: MemoryClient, asked: Fetch, held: Held, memory: mmap.mmap) -> None:
        self.attempt, self.step, self._rank = asked.attempt, asked.step, asked.rank
        self.used_bytes, self.digest, self.created_s = held.used_bytes, held.digest, held.created_s
        self.view = memoryview(memory)
        """The whole buffer; for `segment.read`."""
        self._client = client
        read_ahead(memory, self.used_bytes)

    def close(self) -> None:
        """Say that it was read. Views that others made of it stay mapped, but what is there may change from now on."""
        # Let go of, not closed: what others look at must not lose its ground, nor keep this from being said.
        self.view = memoryview(b"")
        self._client.have_read(self.attempt, self.step, self._rank)

    def __enter__(self) -> HeldPart:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MemoryClient:
    """One connection. For one thread at a time; others wait."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        self._socket: socket.socket | None = connection
        self._timeout_s = timeout_s
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._came = bytearray()
        self._descriptors: list[int] = []
        self._views: dict[int, memoryview] = {}
        self._size_bytes = 0

    @classmethod
    def connect(cls, folder: str, *, rank: int, world_size: int, attempt: int, timeout_s: float = 5.0) -> MemoryClient:
        """Return a connection to the keeper in a folder.

        Raises:
            MemoryUnavailable: There is none, it does not answer, or serves another attempt.
        """
        try:
            connection = place.connect(folder, timeout_s)
        except OSError as error:
            raise MemoryUnavailable(f"the memory keeper in {folder} cannot be reached: {_why(error)}") from error
        client = cls(connection, timeout_s)
        client._ask(Attach(rank=rank, world_size=world_size, attempt=attempt), Attached, Attached)
        return client

    def begin(self, step: int, size_bytes: int, storage: str = "") -> Buffer | Skipped:
        """Return the buffer for a part of at most `size_bytes`, or why this step is not kept. `storage`: the folder it is for.

        Raises:
            MemoryUnavailable: There is too little memory, or the keeper does not answer.
        """
        with self._lock:
            if size_bytes > self._size_bytes or len(self._views) < BUFFERS:
                self._reserve(size_bytes, storage)
            answer = self._ask(Begin(step=step), Place, Skip)
            if isinstance(answer, Skip):
                return Skipped(reason=answer.reason, is_planned=answer.is_planned)
            if answer.is_new:
                (descriptor,) = self._take_descriptors(1)
                self._views[answer.buffer] = memoryview(self._mapped(descriptor, mmap.PROT_READ | mmap.PROT_WRITE))
            view = self._views.get(answer.buffer)
            if view is None:
                raise self._lost(f"named buffer {answer.buffer}, which it never handed out")
            return Buffer(view=view, id=answer.buffer, step=step)

    def copied(self, buffer: Buffer, used_bytes: int) -> None:
        """Say that a part was copied. Returns at once. Raises MemoryUnavailable."""
        with self._lock:
            self._send(Copied(step=buffer.step, buffer=buffer.id, used_bytes=used_bytes))

    def fetch(self, attempt: int, step: int, rank: int = -1) -> HeldPart | None:
        """Return a rank's part of a generation; None: it is not held. One that comes from another node is waited for.

        `rank`: of the world that saved it; -1: this one.

        Raises:
            MemoryUnavailable: The keeper does not answer.
            CheckpointError: It was to come from another node, and did not: why.
        """
        with self._lock:
            asked = Fetch(attempt=attempt, step=step, rank=rank)
            answer = self._fetched(asked)
            descriptors = self._take_descriptors(1 if isinstance(answer, Held) else 0)
            if isinstance(answer, Absent):
                if answer.was_due:
                    raise CheckpointError(answer.reason)
                return None
            memory = self._mapped(descriptors[0], mmap.PROT_READ)
            return HeldPart(self, asked, answer, memory)

    def _fetched(self, question: Fetch) -> Held | Absent:
        until_s = time.monotonic() + COMING_TIMEOUT_S
        answer = self._asked(question, self._timeout_s)
        while isinstance(answer, Coming):
            if time.monotonic() > until_s:
                self._hang_up()
                raise CheckpointError(
                    f"step {question.step} of another node is not here after {COMING_TIMEOUT_S:.0f} s: "
                    f"{answer.done_bytes} of {answer.of_bytes} bytes"
                )
            answer = self._asked(None, self._timeout_s)
        if isinstance(answer, (Held, Absent)):
            return answer
        raise self._unexpected(question, answer)

    def have_read(self, attempt: int, step: int, rank: int = -1) -> None:
        """Say that what was fetched has been read. One who cannot say so any more need not."""
        with self._lock, contextlib.suppress(MemoryUnavailable):
            self._send(Read(attempt=attempt, step=step, rank=rank))

    def asks_busy(self) -> bool:
        """Return whether this node is writing a step to storage. Raises MemoryUnavailable."""
        with self._lock:
            return self._ask(AskFlush(), FlushState, FlushState).is_busy

    def flush(self, step: int, run_dir: str) -> None:
        """Have a step of this attempt written to storage. Returns at once. Raises MemoryUnavailable."""
        with self._lock:
            self._send(Flush(step=step, run_dir=run_dir))

    def close(self) -> None:
        """Hang up. Buffers that were handed out stay mapped as long as something looks at them."""
        with self._lock:
            self._hang_up()

    def _reserve(self, size_bytes: int, storage: str) -> None:
        self._size_bytes = 0  # where it is refused, smaller buffers may be gone: they are asked for again
        answer = self._ask(Reserve(size_bytes=size_bytes, storage=storage), Reserved, Reserved, RESERVE_TIMEOUT_S)
        descriptors = self._take_descriptors(len(answer.buffers))
        views: dict[int, memoryview] = {}
        for number, descriptor in zip(answer.buffers, descriptors, strict=True):
            if number in self._views:
                views[number] = self._views[number]
                os.close(descriptor)
            else:
                views[number] = memoryview(self._mapped(descriptor, mmap.PROT_READ | mmap.PROT_WRITE))
        self._views, self._size_bytes = views, answer.size_bytes

    def _mapped(self, descriptor: int, protection: int) -> mmap.mmap:
        try:
            # All of it at once: a copy into memory that is not mapped yet takes several times as long.
            populate = mmap.MAP_POPULATE if protection & mmap.PROT_WRITE else 0  # what is read: beside its digest
            size_bytes = os.fstat(descriptor).st_size
            return mmap.mmap(descriptor, size_bytes, mmap.MAP_SHARED | populate, protection)
        except (OSError, ValueError) as error:
            raise self._lost(f"handed out a buffer that cannot be mapped: {error}") from error
        finally:
            os.close(descriptor)

    # --- messages

    def _ask(
        self, question: msgspec.Struct, kind: type[_Answer], or_kind: type[_Other], timeout_s: float | None = None
    ) -> _Answer | _Other:
        answer = self._asked(question, self._timeout_s if timeout_s is None else timeout_s)
        if isinstance(answer, (kind, or_kind)):
            return answer
        raise self._unexpected(question, answer)

    def _asked(self, question: msgspec.Struct | None, timeout_s: float) -> Any:
        """Ask, or wait for what else is answered to the question before."""
        try:
            if question is not None:
                self._send(question)
            return self._answer(timeout_s)
        except MemoryUnavailable:
            raise
        except BaseException:  # a signal's handler, in between: the answer would be taken for that of the next question
            self._hang_up()
            raise

    def _unexpected(self, question: msgspec.Struct, answer: Any) -> MemoryUnavailable:
        self._take_descriptors(0)
        if isinstance(answer, Refused):
            if isinstance(question, Attach):
                self._hang_up()
            return MemoryUnavailable(answer.reason)
        return self._lost(f"answered {type(question).__name__} with {type(answer).__name__}")

    def _send(self, message: msgspec.Struct) -> None:
        connection = self._connection()
        try:
            connection.settimeout(self._timeout_s)
            connection.sendall(frame(message))
        except OSError as error:
            raise self._lost(f"does not listen any more: {_why(error)}") from error

    def _answer(self, timeout_s: float) -> Any:
        connection, until_s = self._connection(), time.monotonic() + timeout_s
        try:
            while (body := take(self._came)) is None:
                connection.settimeout(max(0.001, until_s - time.monotonic()))
                content, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, BUFFERS, socket.MSG_CMSG_CLOEXEC)
                self._descriptors += descriptors
                if not content:
                    raise self._lost("has gone")
                self._came += content
            return _decoder.decode(body)
        except OSError as error:
            raise self._lost(f"does not answer: {_why(error)}") from error
        except (FrameRefused, msgspec.MsgspecError) as error:
            raise self._lost(f"sent no message of its own: {error}") from error

    def _connection(self) -> socket.socket:
        if self._socket is None:
            raise MemoryUnavailable("the connection to the memory keeper was closed")
        if self._pid != os.getpid():
            raise MemoryUnavailable(f"the connection to the memory keeper belongs to process {self._pid}")
        return self._socket

    def _take_descriptors(self, wanted: int) -> list[int]:
        """Return as many as belong to the answer. Raises MemoryUnavailable where they are others."""
        came, self._descriptors = self._descriptors, []
        if len(came) == wanted:
            return came
        for each in came:
            os.close(each)
        raise self._lost(f"sent {len(came)} descriptors in place of {wanted}")

    def _lost(self, what: str) -> MemoryUnavailable:
        """Hang up: an answer that comes later would be taken for another one's."""
        self._hang_up()
        return MemoryUnavailable(f"the memory keeper {what}")

    def _hang_up(self) -> None:
        for each in self._descriptors:
            os.close(each)
        self._descriptors = []
        self._views = {}
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _why(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
