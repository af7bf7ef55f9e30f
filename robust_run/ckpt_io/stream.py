"""Streaming writer of a logical file whose length is not known yet: cut into units as it comes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue

from robust_run.ckpt_io.errors import TargetLost
from robust_run.ckpt_io.parts import UnitsRecord
from robust_run.ckpt_io.rules.layout import part_path, target_of
from robust_run.ckpt_io.rules.types import LogicalFile, SavePlan
from robust_run.ckpt_io.units import encode
from robust_run.store import paths
from robust_run.store.errors import StoreError
from robust_run.store.types import Store, Writer

#: Units in memory at most, beyond one per target.
_SPARE_UNITS = 4


class FileStream:
    """A logical file that is being written. For one thread; behind it one thread per target encodes, hashes and writes."""

    def __init__(self, plan: SavePlan, index: int, name: str, stores: Sequence[Store], item_bytes: int) -> None:
        self._plan = plan
        self._record = UnitsRecord(plan, index, name, item_bytes)
        self._stores = stores
        self._lanes = [_Lane(plan, index, target, store, self) for target, store in enumerate(stores)]
        self._room = threading.Semaphore(len(stores) + _SPARE_UNITS)
        self._free: list[bytearray] = []
        self._unit: bytearray | None = None
        self._filled = 0
        self._units = 0
        self.size_bytes = 0
        """Written so far."""
        self._closed = False
        self.failure: BaseException | None = None

    def write(self, buffer: bytes | bytearray | memoryview) -> int:
        """Take bytes; they may be changed when this returns. Waits when the targets are slower.

        Raises:
            TargetLost: A target failed.
        """
        if self._closed:
            raise ValueError("write to a file that is finished or aborted")
        if not memoryview(buffer).nbytes:  # which cannot even be cast
            return 0
        view, at = memoryview(buffer).cast("B"), 0
        while at < len(view):
            if self._unit is None:
                self._room.acquire()
                self._unit = self._free.pop() if self._free else bytearray(self._plan.unit_bytes)
            self._raise_failure()
            count = min(len(view) - at, self._plan.unit_bytes - self._filled)
            self._unit[self._filled : self._filled + count] = view[at : at + count]
            at, self._filled, self.size_bytes = at + count, self._filled + count, self.size_bytes + count
            if self._filled == self._plan.unit_bytes:
                self._pass_on()
        return len(view)

    def finish(self) -> LogicalFile:
        """Write what is left, make all parts durable, and return the file's description for `commit`.

        Raises:
            TargetLost: A target failed. Nothing more is left of the file than parts that were finished.
        """
        if self._filled and not self._closed:
            self._pass_on()
        self._end(is_whole=True)
        self._raise_failure()
        return self._record.result(self.size_bytes)

    def abort(self) -> None:
        """Give it up; unfinished parts are removed. Never raises."""
        self._end(is_whole=False)

    def _pass_on(self) -> None:
        assert self._unit is not None
        target = target_of(self._units, self._record.first_target, len(self._lanes))
        self._lanes[target].put(self._units, self._unit, self._filled)
        self._unit, self._filled, self._units = None, 0, self._units + 1

    def _end(self, *, is_whole: bool) -> None:
        if self._closed:
            return
        self._closed = True
        for lane in self._lanes:
            lane.end(is_whole=is_whole)
        for lane in self._lanes:
            lane.join()
        for store in self._stores:
            store.close()

    def _raise_failure(self) -> None:
        if self.failure is not None:
            self._end(is_whole=False)
            raise self.failure

    def store_unit(self, writer: Writer, offset_bytes: int, unit: int, buffer: bytearray, filled: int) -> int:
        """Called by lanes: encode, write and note a unit; return what is stored of it."""
        with memoryview(buffer) as view:
            encoded = encode(self._plan.codec, self._record.item_bytes, [view[:filled]])
            writer.write_at(offset_bytes, [memoryview(stored) for stored in encoded.buffers])
            self._record.note(unit, encoded)
        return encoded.stored_bytes

    def give_back(self, buffer: bytearray) -> None:
        """Called by lanes: a buffer is free again."""
        self._free.append(buffer)
        self._room.release()


class _Lane:
    """One target's part: its thread takes units in order, all of them, also after a failure: so the writer is never blocked."""

    def __init__(self, plan: SavePlan, index: int, target: int, store: Store, stream: FileStream) -> None:
        self._plan, self._path, self._store, self._stream = plan, part_path(plan.uuid, index, target), store, stream
        self._queue: SimpleQueue[tuple[int, bytearray, int] | bool] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._name = f"rrck-lane-{target}"

    def put(self, unit: int, buffer: bytearray, filled: int) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._queue.put((unit, buffer, filled))

    def end(self, *, is_whole: bool) -> None:
        self._queue.put(is_whole)

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        writer: Writer | None = None
        offset = 0
        while not isinstance(item := self._queue.get(), bool):
            unit, buffer, filled = item
            try:
                if self._stream.failure is None:
                    if writer is None:
                        writer = self._store.create(self._path, durable=self._plan.durable)
                    offset += self._stream.store_unit(writer, offset, unit, buffer, filled)
            except BaseException as error:
                self._fail(error)
            finally:
                self._stream.give_back(buffer)
        if writer is None:
            return
        try:
            if item and self._stream.failure is None:
                writer.finish()
        except BaseException as error:
            self._fail(error)
        finally:
            writer.abort()

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, StoreError):
            lost = TargetLost(paths.shown(self._store.url), f"{error.path}: {error.what}")
            lost.__cause__ = error
            error = lost
        if self._stream.failure is None:
            self._stream.failure = error
