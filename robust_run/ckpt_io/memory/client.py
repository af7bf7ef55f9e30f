"""A worker at the memory keeper of its node: buffers to save to, and parts to start from. Blocking, with timeouts; knows nothing
of torch.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time

import msgspec

from robust_run.ckpt_io.errors import CheckpointError, MemoryUnavailable
from robust_run.ckpt_io.memory.keeper_connection import KeeperConnection
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
    Held,
    Place,
    Read,
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

    def __init__(self, folder: str, timeout_s: float) -> None:
        """Connect to the keeper in a folder. Raises MemoryUnavailable."""
        self._keeper = KeeperConnection(folder, timeout_s, self._forget_views)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._views: dict[int, memoryview] = {}
        self._size_bytes = 0

    @classmethod
    def connect(cls, folder: str, *, rank: int, world_size: int, attempt: int, timeout_s: float = 5.0) -> MemoryClient:
        """Return a connection to the keeper in a folder.

        Raises:
            MemoryUnavailable: There is none, it does not answer, or serves another attempt.
        """
        client = cls(folder, timeout_s)
        client._keeper.ask(Attach(rank=rank, world_size=world_size, attempt=attempt), Attached, Attached)
        return client

    def begin(self, step: int, size_bytes: int, storage: str = "") -> Buffer | Skipped:
        """Return the buffer for a part of at most `size_bytes`, or why this step is not kept. `storage`: the folder it is for.

        Raises:
            MemoryUnavailable: There is too little memory, or the keeper does not answer.
        """
        with self._lock:
            if size_bytes > self._size_bytes or len(self._views) < BUFFERS:
                self._reserve(size_bytes, storage)
            answer = self._keeper.ask(Begin(step=step), Place, Skip)
            if isinstance(answer, Skip):
                return Skipped(reason=answer.reason, is_planned=answer.is_planned)
            if answer.is_new:
                (descriptor,) = self._keeper.take_descriptors(1)
                self._views[answer.buffer] = memoryview(self._mapped(descriptor, mmap.PROT_READ | mmap.PROT_WRITE))
            view = self._views.get(answer.buffer)
            if view is None:
                raise self._keeper.lost(f"named buffer {answer.buffer}, which it never handed out")
            return Buffer(view=view, id=answer.buffer, step=step)

    def copied(self, buffer: Buffer, used_bytes: int) -> None:
        """Say that a part was copied. Returns at once. Raises MemoryUnavailable."""
        with self._lock:
            self._keeper.send(Copied(step=buffer.step, buffer=buffer.id, used_bytes=used_bytes))

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
            descriptors = self._keeper.take_descriptors(1 if isinstance(answer, Held) else 0)
            if isinstance(answer, Absent):
                if answer.was_due:
                    raise CheckpointError(answer.reason)
                return None
            memory = self._mapped(descriptors[0], mmap.PROT_READ)
            return HeldPart(self, asked, answer, memory)

    def _fetched(self, question: Fetch) -> Held | Absent:
        until_s = time.monotonic() + COMING_TIMEOUT_S
        answer = self._keeper.ask_for_any(question, self._timeout_s)
        while isinstance(answer, Coming):
            if time.monotonic() > until_s:
                self._keeper.hang_up()
                raise CheckpointError(
                    f"step {question.step} of another node is not here after {COMING_TIMEOUT_S:.0f} s: "
                    f"{answer.done_bytes} of {answer.of_bytes} bytes"
                )
            answer = self._keeper.ask_for_any(None, self._timeout_s)
        if isinstance(answer, (Held, Absent)):
            return answer
        raise self._keeper.unexpected(question, answer)

    def have_read(self, attempt: int, step: int, rank: int = -1) -> None:
        """Say that what was fetched has been read. One who cannot say so any more need not."""
        with self._lock, contextlib.suppress(MemoryUnavailable):
            self._keeper.send(Read(attempt=attempt, step=step, rank=rank))

    def asks_busy(self) -> bool:
        """Return whether this node is writing a step to storage. Raises MemoryUnavailable."""
        with self._lock:
            return self._keeper.ask(AskFlush(), FlushState, FlushState).is_busy

    def flush(self, step: int, run_dir: str) -> None:
        """Have a step of this attempt written to storage. Returns at once. Raises MemoryUnavailable."""
        with self._lock:
            self._keeper.send(Flush(step=step, run_dir=run_dir))

    def close(self) -> None:
        """Hang up. Buffers that were handed out stay mapped as long as something looks at them."""
        with self._lock:
            self._keeper.hang_up()

    def _forget_views(self) -> None:
        self._views = {}

    def _reserve(self, size_bytes: int, storage: str) -> None:
        self._size_bytes = 0  # where it is refused, smaller buffers may be gone: they are asked for again
        answer = self._keeper.ask(
            Reserve(size_bytes=size_bytes, storage=storage), Reserved, Reserved, RESERVE_TIMEOUT_S
        )
        descriptors = self._keeper.take_descriptors(len(answer.buffers))
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
            raise self._keeper.lost(f"handed out a buffer that cannot be mapped: {error}") from error
        finally:
            os.close(descriptor)
