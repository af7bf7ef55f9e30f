"""Reading one unit: straight into the buffers that want its bytes, and vouched for by its digest in the same thread.

A unit that is stored as it is goes from the store into the caller's buffers without a copy; what lies between them and was not
asked for (padding, other tensors) goes into scratch, so that the digest covers the whole unit. A unit that is encoded, that is
wanted in too many pieces or twice, goes through scratch. Scratch is used again and again: writing to fresh memory is slower than
most disks are (the kernel clears each page first).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from robust_run.ckpt_io.errors import Damaged, Replaced, TargetLost
from robust_run.ckpt_io.rules.layout import FileLayout, UnitPlace
from robust_run.ckpt_io.targets import Targets
from robust_run.ckpt_io.units import decode
from robust_run.store.cancelling import Cancellation
from robust_run.store.digests import digest
from robust_run.store.errors import Cancelled, Changed, NotFound, ShortRead, StoreError, TooLarge, is_transient

#: Pieces of a unit that are read straight into place; with more, one read and copies are faster.
PIECES_MOST = 256
#: How often a unit is read whose digest is wrong: once more, for a fault that was not the medium's.
_READS = 2


class UnitPiece(NamedTuple):
    """Where some bytes of a unit are wanted."""

    begin_bytes: int
    """In the decoded unit."""
    view: memoryview


class UnitBuffers:
    """Buffers as large as a unit, that are lent and come back."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._free: list[bytearray] = []

    @contextmanager
    def lent(self) -> Iterator[memoryview]:
        """Lend one. What was read into it is gone after the block."""
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = bytearray(self._size_bytes)
        try:
            yield memoryview(buffer)
        finally:
            self._free.append(buffer)


class TakesUnits(Protocol):
    """Units that were fetched ahead; see `ahead.taking.Fetched`."""

    def take(self, file: int, unit: int, buffers: Sequence[memoryview], cancel: Cancellation | None) -> bool:
        """Fill the buffers with a unit as it is stored; False: it is not here."""
        ...


class UnitReader:
    """Reads units of one checkpoint. Safe for threads."""

    def __init__(
        self,
        url: str,
        layouts: Sequence[FileLayout],
        targets: Targets,
        *,
        verify: bool,
        fetched: TakesUnits | None = None,
    ) -> None:
        """`fetched`: where units may be already; only what is verified is taken from there."""
        self._fetched = fetched
        self._url = url
        self._layouts = layouts
        self._targets = targets
        self._verify = verify
        largest = max((min(layout.file.unit_bytes, layout.file.size_bytes) for layout in layouts), default=0)
        self._scratch = UnitBuffers(largest)

    def read(self, file: int, unit: int, pieces: Sequence[UnitPiece], cancel: Cancellation | None = None) -> None:
        """Fill all pieces, which are in ascending order, from one unit.

        Raises:
            Damaged, Replaced, TargetLost: What they say.
            StoreError: A transient one; to be tried again.
        """
        layout = self._layouts[file]
        with self._naming(layout, unit):
            self._read(layout, unit, pieces, cancel)

    @contextmanager
    def _naming(self, layout: FileLayout, unit: int) -> Iterator[None]:
        """Turn what a store says into what it means for a unit; transient errors pass, to be tried again."""
        try:
            yield
        except (NotFound, ShortRead, TooLarge, Changed) as error:
            if self._targets.is_replaced():
                raise Replaced(self._url) from error
            raise self._damaged(layout, unit, error.what) from error
        except StoreError as error:
            if is_transient(error) or isinstance(error, Cancelled):
                raise
            raise self._targets.lose(layout.place(unit).target, error) from error

    def stored(self, file: int, unit: int) -> bytes:
        """Return what is stored of a unit, verified. Raises as `read` does."""
        layout, stored = self._layouts[file], bytearray(self._layouts[file].place(unit).stored_bytes)
        with self._naming(layout, unit):
            self._fetch(layout, unit, layout.place(unit), [memoryview(stored)], None)
        return bytes(stored)

    def size_bytes(self, file: int, unit: int) -> int:
        """Return the bytes that a unit stands for."""
        return self._layouts[file].place(unit).size_bytes

    def lose(self, file: int, unit: int, error: StoreError) -> None:
        """Note that the target of a unit does not answer any more."""
        self._targets.lose(self._layouts[file].place(unit).target, error)

    def target_lost(self, file: int, unit: int) -> TargetLost | None:
        """Return why the target of a unit counts as lost, if it does."""
        return self._targets.lost(self._layouts[file].place(unit).target)

    def damaged(self, file: int, unit: int, reason: str) -> Damaged:
        """Return the error that names a unit."""
        return self._damaged(self._layouts[file], unit, reason)

    def _read(self, layout: FileLayout, unit: int, pieces: Sequence[UnitPiece], cancel: Cancellation | None) -> None:
        place = layout.place(unit)
        apart = len(pieces) <= PIECES_MOST and _apart(pieces)
        if not layout.is_raw(unit) or not apart:
            with self._scratch.lent() as scratch:
                stored = scratch[: place.stored_bytes]
                self._fetch(layout, unit, place, [stored], cancel)
                self._copy(layout, unit, stored, pieces)
        elif self._verify:
            if sum(len(piece.view) for piece in pieces) == place.size_bytes:
                self._fetch(layout, unit, place, [piece.view for piece in pieces], cancel)
            else:
                with self._scratch.lent() as scratch:
                    self._fetch(layout, unit, place, _with_gaps(pieces, scratch, place.size_bytes), cancel)
        else:
            store = self._targets.store(place.target)
            for begin, views in _runs(pieces):
                store.read_into(place.path, place.offset_bytes + begin, views, cancel)

    def _fetch(
        self,
        layout: FileLayout,
        unit: int,
        place: UnitPlace,
        buffers: Sequence[memoryview],
        cancel: Cancellation | None,
    ) -> None:
        """Read what is stored of a unit, whole, and hold it against its digest."""
        expected = layout.digest(unit)
        ahead = self._fetched if self._verify else None
        if ahead is not None and ahead.take(layout.index, unit, buffers, cancel) and digest(*buffers) == expected:
            return  # if it is another: the store says what is wrong with it, if anything is
        store = self._targets.store(place.target)
        found = b""
        for _ in range(_READS):
            store.read_into(place.path, place.offset_bytes, buffers, cancel)
            if not self._verify:
                return
            found = digest(*buffers)
            if found == expected:
                return
        reason = f"its digest is {found.hex()}, the manifest says {expected.hex()}"
        raise self._damaged(layout, unit, reason, "has a wrong digest")

    def _copy(self, layout: FileLayout, unit: int, stored: memoryview, pieces: Sequence[UnitPiece]) -> None:
        """Decode a unit and hand out its pieces."""
        plain = stored
        if not layout.is_raw(unit) and pieces:
            file = layout.file
            try:
                plain = memoryview(decode(file.codec, file.item_bytes, stored, layout.place(unit).size_bytes))
            except ValueError as error:
                raise self._damaged(layout, unit, str(error)) from error
        for begin, view in pieces:
            view[:] = plain[begin : begin + len(view)]

    def _damaged(self, layout: FileLayout, unit: int, reason: str, brief: str = "") -> Damaged:
        place = layout.place(unit)
        return Damaged(
            file=layout.file.name,
            unit=unit,
            target=self._targets.url(place.target),
            part=place.path,
            reason=reason,
            brief=brief,
        )


def _apart(pieces: Sequence[UnitPiece]) -> bool:
    end = 0
    for begin, view in pieces:
        if begin < end:
            return False
        end = begin + len(view)
    return True


def _with_gaps(pieces: Sequence[UnitPiece], scratch: memoryview, size_bytes: int) -> list[memoryview]:
    """Return buffers for a whole unit: the pieces, and scratch for what lies between them."""
    buffers, end = [], 0
    for begin, view in pieces:
        if begin > end:
            buffers.append(scratch[end:begin])
        buffers.append(view)
        end = begin + len(view)
    if end < size_bytes:
        buffers.append(scratch[end:size_bytes])
    return buffers


def _runs(pieces: Sequence[UnitPiece]) -> Iterator[tuple[int, list[memoryview]]]:
    """Join pieces that touch each other."""
    begin, end, views = 0, -1, list[memoryview]()
    for piece in pieces:
        if piece.begin_bytes != end:
            if views:
                yield begin, views
            begin, end, views = piece.begin_bytes, piece.begin_bytes, []
        views.append(piece.view)
        end += len(piece.view)
    if views:
        yield begin, views
