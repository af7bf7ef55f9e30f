"""Writing the parts of one logical file whose bytes are all at hand: in parallel, hashed by the thread that writes them."""

from __future__ import annotations

import base64
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass

from robust_run.ckpt_io.rules.layout import (
    first_unit,
    pack_bits,
    pack_lengths,
    part_path,
    target_of,
    unit_count,
    unit_size,
)
from robust_run.ckpt_io.rules.types import LogicalFile, SavePlan
from robust_run.ckpt_io.units import Encoded, encode
from robust_run.store.digests import DIGEST_BYTES
from robust_run.store.engine import Retry, transfer
from robust_run.store.types import Store, Writer

#: What gaps are written from.
_ZEROS = memoryview(bytes(1 << 20))
#: Units of one part that are encoded ahead of the one that is being written.
_AHEAD = 2
Progress = Callable[[int], None]


@dataclass(frozen=True)
class FilePiece:
    """Bytes of a logical file."""

    offset_bytes: int
    buffer: memoryview
    """Contiguous, of any format. Not changed until `write_file` has returned."""


class Pieces:
    """The bytes of a logical file, unit by unit; what no piece covers is zeros.

    Raises:
        ValueError: Pieces overlap, or lie outside the file.
    """

    def __init__(self, pieces: Sequence[FilePiece], size_bytes: int) -> None:
        ordered = sorted((piece.offset_bytes, memoryview(piece.buffer).cast("B")) for piece in _not_empty(pieces))
        self._offsets = [offset for offset, _ in ordered]
        self._views = [view for _, view in ordered]
        end = 0
        for offset, view in ordered:
            if offset < end or offset + len(view) > size_bytes:
                raise ValueError(
                    f"piece at byte {offset}: overlaps another, or lies outside the file of {size_bytes} bytes"
                )
            end = offset + len(view)

    def between(self, begin: int, end: int) -> list[memoryview]:
        """Return buffers that are, one behind the other, the bytes from `begin` to `end`."""
        index, at, found = max(0, bisect_right(self._offsets, begin) - 1), begin, list[memoryview]()
        while index < len(self._offsets) and self._offsets[index] < end:
            offset, view = self._offsets[index], self._views[index]
            index += 1
            if offset + len(view) <= at:
                continue
            found += _zeros(offset - at)
            at = max(at, offset)
            found.append(view[at - offset : end - offset])
            at = min(end, offset + len(view))
        return found + _zeros(end - at)


class UnitsRecord:
    """What became of the units of one logical file. Each unit is noted by one thread."""

    def __init__(self, plan: SavePlan, index: int, name: str, item_bytes: int) -> None:
        self._plan = plan
        self._name = name
        self.item_bytes = item_bytes
        self.first_target = index % len(plan.folders)
        self._units: dict[int, tuple[int, bytes, bool]] = {}

    def note(self, unit: int, encoded: Encoded) -> None:
        """Note what is stored of a unit."""
        self._units[unit] = encoded.stored_bytes, encoded.digest, encoded.raw

    def result(self, size_bytes: int) -> LogicalFile:
        """Return the description of the file, when all of its units are noted."""
        units = [self._units[unit] for unit in range(unit_count(size_bytes, self._plan.unit_bytes))]
        digests = b"".join(digest for _, digest, _ in units)
        assert len(digests) == DIGEST_BYTES * len(units)
        coded = self._plan.codec != "none"
        raws = [raw for _, _, raw in units]
        return LogicalFile(
            name=self._name,
            size_bytes=size_bytes,
            unit_bytes=self._plan.unit_bytes,
            first_target=self.first_target,
            codec=self._plan.codec,
            item_bytes=self.item_bytes,
            digests=base64.b64encode(digests).decode(),
            stored=pack_lengths([stored for stored, _, _ in units]) if coded else "",
            raw_units=pack_bits(raws) if coded and any(raws) else "",
        )


@dataclass(frozen=True)
class PartsJob:
    """All parts of one logical file, to be written."""

    plan: SavePlan
    index: int
    pieces: Pieces
    size_bytes: int
    record: UnitsRecord
    stores: Sequence[Store]

    def units_on(self, target: int) -> range:
        """Return the units of a target's part."""
        units = unit_count(self.size_bytes, self.plan.unit_bytes)
        return range(first_unit(target, self.record.first_target, len(self.stores)), units, len(self.stores))

    def part_bytes(self, target: int) -> int | None:
        """Return how long a part will be, if that is known."""
        if self.plan.codec != "none":
            return None
        return sum(unit_size(self.size_bytes, self.plan.unit_bytes, unit) for unit in self.units_on(target)[-1:]) + (
            max(0, len(self.units_on(target)) - 1) * self.plan.unit_bytes
        )

    def encoded(self, unit: int) -> Encoded:
        """Encode and note a unit."""
        begin = unit * self.plan.unit_bytes
        end = begin + unit_size(self.size_bytes, self.plan.unit_bytes, unit)
        found = encode(self.plan.codec, self.record.item_bytes, self.pieces.between(begin, end))
        self.record.note(unit, found)
        return found

    def create(self, target: int) -> Writer:
        """Begin the part on a target."""
        path = part_path(self.plan.uuid, self.index, target)
        return self.stores[target].create(path, self.part_bytes(target), durable=self.plan.durable)


def write_parts(job: PartsJob, threads: int, progress: Progress | None) -> None:
    """Write and finish all parts. On an error none of those that are not finished is left.

    Raises:
        StoreError: Of the first target that failed.
    """
    used = [target for target in range(len(job.stores)) if job.units_on(target)]
    if not used:
        return
    writers: dict[int, Writer] = {}
    try:
        if job.plan.codec == "none":
            for target in used:
                writers[target] = job.create(target)
                if not writers[target].any_order:
                    break
            else:
                _write_anyhow(job, writers, threads, progress)
                return
    finally:
        for writer in writers.values():
            writer.abort()  # does nothing to those that are finished
    _write_in_order(job, used, threads, progress)


@dataclass(frozen=True)
class _UnitWrite:
    """One unit of a part whose units may be written in any order. The thread that writes the last one finishes the part."""

    job: PartsJob
    unit: int
    size_bytes: int
    writer: Writer
    left: dict[int, int]
    """Units still to be written, by target."""
    lock: threading.Lock

    def run(self, attempt: int) -> None:  # noqa: ARG002 - there is one attempt
        targets = len(self.job.stores)
        encoded = self.job.encoded(self.unit)
        offset = self.unit // targets * self.job.plan.unit_bytes
        self.writer.write_at(offset, [memoryview(buffer) for buffer in encoded.buffers])
        target = target_of(self.unit, self.job.record.first_target, targets)
        with self.lock:
            self.left[target] -= 1
            is_last = not self.left[target]
        if is_last:
            self.writer.finish()


def _write_anyhow(job: PartsJob, writers: dict[int, Writer], threads: int, progress: Progress | None) -> None:
    left, lock = {target: len(job.units_on(target)) for target in writers}, threading.Lock()
    unit_bytes = job.plan.unit_bytes

    def units() -> Iterator[_UnitWrite]:
        for unit in range(unit_count(job.size_bytes, unit_bytes)):
            writer = writers[target_of(unit, job.record.first_target, len(job.stores))]
            yield _UnitWrite(job, unit, unit_size(job.size_bytes, unit_bytes, unit), writer, left, lock)

    transfer(units(), threads=threads, retry=Retry(attempts=1), progress=progress)


@dataclass(frozen=True)
class _PartWrite:
    """One part, written front to back: once more from the start when the store was away for a moment."""

    job: PartsJob
    target: int
    encoders: Executor
    size_bytes: int

    def run(self, attempt: int) -> None:  # noqa: ARG002 - all attempts are the same
        writer, offset, ahead = self.job.create(self.target), 0, deque[Future[Encoded]]()
        try:
            units = iter(self.job.units_on(self.target))
            while True:
                while len(ahead) <= _AHEAD and (unit := next(units, None)) is not None:
                    ahead.append(self.encoders.submit(self.job.encoded, unit))
                if not ahead:
                    break
                encoded = ahead.popleft().result()
                writer.write_at(offset, [memoryview(buffer) for buffer in encoded.buffers])
                offset += encoded.stored_bytes
            writer.finish()
        finally:
            for future in ahead:
                future.cancel()
            writer.abort()


def _write_in_order(job: PartsJob, used: Sequence[int], threads: int, progress: Progress | None) -> None:
    unit_bytes = job.plan.unit_bytes
    with ThreadPoolExecutor(threads, thread_name_prefix="rrck-encode") as encoders:
        parts = (
            _PartWrite(
                job,
                target,
                encoders,
                sum(unit_size(job.size_bytes, unit_bytes, unit) for unit in job.units_on(target)),
            )
            for target in used
        )
        transfer(parts, threads=max(threads, len(used)), progress=progress)


def _not_empty(pieces: Sequence[FilePiece]) -> Iterator[FilePiece]:
    for piece in pieces:
        if piece.offset_bytes < 0:
            raise ValueError(f"piece at byte {piece.offset_bytes}: lies before the file")
        if piece.buffer.nbytes:
            yield piece


def _zeros(count: int) -> list[memoryview]:
    found = []
    while count > 0:
        found.append(_ZEROS[:count])
        count -= len(_ZEROS)
    return found
