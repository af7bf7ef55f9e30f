"""A file that is being written through a mount: a checkpoint of one logical file, there once it is committed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from robust_run.ckpt_io.address import Address
from robust_run.ckpt_io.errors import CheckpointError, CutShort, FailedBefore, NotWhole, OutOfOrder
from robust_run.ckpt_io.foreign.ends import End, Ends
from robust_run.ckpt_io.mount.wholeness import what_is_missing
from robust_run.ckpt_io.rules.types import Codec, LogicalFile
from robust_run.ckpt_io.saving import FileStream, SavePlan, abandon, begin_save, commit, open_file
from robust_run.ckpt_io.views.types import ViewSource

_ZEROS = bytes(1 << 20)
Keep = Callable[[SavePlan, LogicalFile], str]
"""Has what a save wrote, and did not commit, kept under another name, which it returns. Raises CheckpointError, StoreError."""


@dataclass(frozen=True)
class Saving:
    """How files are saved."""

    also: tuple[str, ...]
    """Roots of further targets, of the mount's top."""
    unit_bytes: int
    codec: Codec


class SavingFile:
    """One file. Safe to use from threads.

    Programs write from front to back and close; that is one save. Who writes on after `fsync` makes another save, which begins
    with a copy of what is there.
    """

    def __init__(self, address: Address, saving: Saving, again: Callable[[Address], ViewSource]) -> None:
        """`again`: opens what was committed."""
        self.address = address
        self.goal: Address | None = None
        """Where it goes when it is committed: it was renamed while it was being written."""
        self._written_bytes = 0
        self._ends = Ends()
        self.is_committed = False
        self.is_replaced = False
        """Another one was committed under its name since it was: what it wrote until then is gone."""
        self._is_forgotten = False
        self._length_bytes = 0
        """What it was set to: zeros follow what was written."""
        self._failure: BaseException | None = None
        self._saving = saving
        self._again = again
        self._plan: SavePlan | None = None
        self._stream: FileStream | None = None
        self._lock = threading.Lock()

    @property
    def has_failed(self) -> bool:
        """Whether it will never be there."""
        return self._failure is not None

    @property
    def size_bytes(self) -> int:
        """How long it is."""
        return max(self._written_bytes, self._length_bytes)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written."""
        return not self.size_bytes

    @property
    def end(self) -> End:
        """Whether its format shows that nothing is missing, or that something is."""
        with self._lock:
            return "unknown" if self._length_bytes > self._written_bytes else self._ends.end

    def write(self, data: memoryview, offset_bytes: int) -> int:
        """Take bytes. Raises OutOfOrder for any place but the end: the file has failed then, for all that close it."""
        with self._lock:
            if self._is_forgotten:
                return len(data)
            with self._failing():
                if offset_bytes != self._written_bytes:
                    raise OutOfOrder(f"a write at byte {offset_bytes} was refused, the end is at {self._written_bytes}")
                if self.is_committed:
                    self._continue()
                self._opened().write(data)
                self._ends.add(data)
            self._written_bytes += len(data)
            return len(data)

    def truncate(self, size_bytes: int) -> None:
        """Begin anew, for a size of 0; else announce a size. Raises CutShort for one below what was written."""
        with self._lock, self._failing():
            if not size_bytes and self._written_bytes:
                self._abort()
                self._written_bytes, self.is_committed, self._ends = 0, False, Ends()
            elif size_bytes < self._written_bytes:
                raise CutShort(f"a cut to {size_bytes} of {self._written_bytes} bytes was refused")
            self._length_bytes = size_bytes

    def commit(self, keep: Keep) -> bool:
        """Make it durable and visible; False if it was. Raises CheckpointError; then what was there before is.

        One that shows that it is not whole is kept under another name, by `keep`, and fails (NotWhole).
        """
        with self._lock:
            if self._is_forgotten:
                return False
            with self._failing():
                if self.is_committed:
                    return False
                plan, file = self._finished()
                if missing := what_is_missing(self._ends, plan, file):
                    raise NotWhole(missing, file.size_bytes, keep(plan, file))
                commit(plan, [file])
            self._stream = self._plan = None
            self.is_committed, self.is_replaced = True, False
            return True

    def keep_aside(self, keep: Keep) -> str:
        """Have what is not committed kept under another name, by `keep`, and return that. Raises CheckpointError, StoreError."""
        with self._lock:
            with self._failing():
                name = keep(*self._finished())
            self._failure = CheckpointError(f"it was kept as {name}")
            self._abort()
            return name

    def give_up(self, reason: str) -> None:
        """Drop what is not committed; what is written from now on is an error."""
        with self._lock:
            self._failure = self._failure or CheckpointError(reason)
            self._abort()

    def forget(self) -> None:
        """Drop what is not committed, and what is written from now on: its name was removed."""
        with self._lock:
            self._is_forgotten = True
            self._abort()

    def abort(self) -> None:
        """Drop what is not committed."""
        with self._lock:
            self._abort()

    def _finished(self) -> tuple[SavePlan, LogicalFile]:
        stream = self._opened()
        while self._written_bytes < self._length_bytes:
            self._written_bytes += stream.write(_ZEROS[: self._length_bytes - self._written_bytes])
        file = stream.finish()
        assert self._plan is not None
        return self._plan, file

    def _opened(self) -> FileStream:
        if self._stream is None:
            saving = self._saving
            self._plan = begin_save(
                self.address.url, self.address.also, unit_bytes=saving.unit_bytes, codec=saving.codec, durable=True
            )
            self._stream = open_file(self._plan, 0, self.address.name)
        return self._stream

    def _continue(self) -> None:
        """Begin a new save with what the last one wrote."""
        if self.is_replaced:
            raise CheckpointError(
                f"{self.address.name}: not saved: more was written after a sync, and another one has saved this name since. "
                "Have one process save it"
            )
        with closing(self._again(self.address)) as source:
            copy(source, self._opened())
        self.is_committed = False

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """After a failure nothing more can be said of the file than that it failed."""
        if self._failure is not None:
            raise FailedBefore(f"{self.address.name} failed before: {self._failure}") from self._failure
        try:
            yield
        except BaseException as error:
            self._failure = error
            self._abort()
            raise

    def _abort(self) -> None:
        stream, plan, self._stream, self._plan = self._stream, self._plan, None, None
        if stream is not None:
            stream.abort()
        if plan is not None:
            abandon(plan)


def copy(source: ViewSource, stream: FileStream) -> None:
    """Write the one logical file of a checkpoint into a stream."""
    from robust_run.ckpt_io.reading import Wanted

    file = source.manifest.files[0]
    buffer = memoryview(bytearray(min(file.unit_bytes, file.size_bytes)))
    for at in range(0, file.size_bytes, file.unit_bytes):
        part = buffer[: min(file.unit_bytes, file.size_bytes - at)]
        source.read([Wanted(0, at, part)])
        stream.write(part)
