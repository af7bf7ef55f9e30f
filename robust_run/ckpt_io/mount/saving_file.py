"""A file that is being written through a mount: a checkpoint of one logical file, there once it is closed."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from robust_run.ckpt_io.address import Address
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.saving import FileStream, SavePlan, abandon, begin_save, commit, open_file
from robust_run.ckpt_io.types import Codec
from robust_run.ckpt_io.views.types import Source

_ZEROS = bytes(1 << 20)


@dataclass(frozen=True)
class Saving:
    """How files are saved."""

    also: tuple[str, ...]
    """Roots of further targets, of the mount's top."""
    unit_bytes: int
    codec: Codec


class SavingFile:
    """One file. Safe to use from threads.

    Programs write from front to back and close; that is one save. Who writes on after `fsync`, or after a copy of the
    descriptor was closed (shells do), makes another save, which begins with a copy of what is there.
    """

    def __init__(self, address: Address, saving: Saving, writer_pid: int, again: Callable[[], Source]) -> None:
        """`writer_pid`: who closes it ends it. `again`: opens what was committed."""
        self.address = address
        self.writer_pid = writer_pid
        self._written_bytes = 0
        self.is_committed = False
        self.is_closed = False
        """Whether who wrote it closed it."""
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

    def write(self, data: memoryview, offset_bytes: int) -> int:
        """Take bytes. Raises OSError (ESPIPE) for any place but the end."""
        with self._lock:
            if offset_bytes != self._written_bytes:
                raise OSError(errno.ESPIPE, f"written at {offset_bytes}, and the end is at {self._written_bytes}")
            with self._failing():
                if self.is_committed:
                    self._continue()
                self._opened().write(data)
            self._written_bytes += len(data)
            return len(data)

    def truncate(self, size_bytes: int) -> None:
        """Begin anew, for a size of 0; else announce a size. Raises OSError (EINVAL) for one below what was written."""
        with self._lock:
            if not size_bytes and self._written_bytes:
                self._abort()
                self._written_bytes, self.is_committed = 0, False
            elif size_bytes < self._written_bytes:
                raise OSError(errno.EINVAL, f"cut to {size_bytes} of {self._written_bytes} bytes")
            self._length_bytes = size_bytes

    def commit(self) -> bool:
        """Make it durable and visible; False if it was. Raises CheckpointError; then what was there before is."""
        with self._lock:
            if self.is_committed:
                return False
            with self._failing():
                stream = self._opened()
                while self._written_bytes < self._length_bytes:
                    self._written_bytes += stream.write(_ZEROS[: self._length_bytes - self._written_bytes])
                file = stream.finish()
                assert self._plan is not None
                commit(self._plan, [file])
            self._stream = self._plan = None
            self.is_committed = True
            return True

    def abort(self) -> None:
        """Forget what is not committed."""
        with self._lock:
            self._abort()

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
        with closing(self._again()) as source:
            copy(source, self._opened())
        self.is_committed = False

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """After a failure nothing more can be said of the file than that it failed."""
        if self._failure is not None:
            raise CheckpointError(f"{self.address.name} failed before: {self._failure}")
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


def copy(source: Source, stream: FileStream) -> None:
    """Write the one logical file of a checkpoint into a stream."""
    from robust_run.ckpt_io.reading import Wanted

    file = source.manifest.files[0]
    buffer = memoryview(bytearray(min(file.unit_bytes, file.size_bytes)))
    for at in range(0, file.size_bytes, file.unit_bytes):
        part = buffer[: min(file.unit_bytes, file.size_bytes - at)]
        source.read([Wanted(0, at, part)])
        stream.write(part)
