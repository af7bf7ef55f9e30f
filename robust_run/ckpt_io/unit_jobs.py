"""Units as jobs of the engine that runs many at once: to be read into place, handed out as stored, or only verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from robust_run.ckpt_io.errors import CheckpointError, Damaged, TargetLost
from robust_run.ckpt_io.unit_reading import UnitPiece, UnitReader
from robust_run.store.cancelling import Cancellation
from robust_run.store.errors import StoreError

#: How often a check asks for a unit before its target counts as lost; not more than `Retry.attempts`.
CHECK_ATTEMPTS = 3


class UnitJob:
    """One unit to be read, for the engine: again when that fails, a second time when it is slow."""

    def __init__(self, reader: UnitReader, file: int, unit: int, pieces: Sequence[UnitPiece]) -> None:
        self.size_bytes = sum(len(piece.view) for piece in pieces)
        self._reader, self._file, self._unit, self._pieces = reader, file, unit, pieces
        self._cancel = Cancellation()

    def run(self, attempt: int) -> None:  # noqa: ARG002 - all attempts are the same
        """Read it into place."""
        self._reader.read(self._file, self._unit, self._pieces, self._cancel)

    def cancel(self) -> None:
        """End `run` early."""
        self._cancel.cancel()

    def hedge(self, cancel: Cancellation) -> bytearray:
        """Read the whole unit into memory of its own."""
        unit = bytearray(self._reader.size_bytes(self._file, self._unit))
        try:
            self._reader.read(self._file, self._unit, [UnitPiece(0, memoryview(unit))], cancel)
        except CheckpointError as error:  # the first read goes on, and says what is wrong
            raise StoreError("", "", str(error)) from error
        return unit

    def adopt(self, found: object) -> None:
        """Take over what `hedge` read."""
        assert isinstance(found, bytearray)
        for begin, view in self._pieces:
            view[:] = memoryview(found)[begin : begin + len(view)]


class StoredJob:
    """What is stored of one unit, for the engine."""

    def __init__(self, reader: UnitReader, file: int, unit: int) -> None:
        self.size_bytes = reader.size_bytes(file, unit)
        self.stored = b""
        self._reader, self._file, self._unit = reader, file, unit

    def run(self, attempt: int) -> None:  # noqa: ARG002 - all attempts are the same
        """Read it."""
        self.stored = self._reader.stored(self._file, self._unit)


class CheckJob:
    """One unit to be verified, for the engine; what is wrong with it is noted, not raised."""

    def __init__(self, reader: UnitReader, file: int, unit: int, note: Callable[[Damaged], None]) -> None:
        self.size_bytes = reader.size_bytes(file, unit)
        self._reader, self._file, self._unit, self._note = reader, file, unit, note

    def run(self, attempt: int) -> None:
        """Verify it. A target that is transiently away is lost at the last attempt, and is not asked for other units then."""
        lost = self._reader.target_lost(self._file, self._unit)
        try:
            if lost is not None:
                raise lost
            self._reader.read(self._file, self._unit, ())
        except Damaged as error:
            self._note(error)
        except TargetLost as error:
            self._note(self._reader.damaged(self._file, self._unit, error.reason))
        except StoreError as error:
            if attempt + 1 < CHECK_ATTEMPTS:
                raise
            self._reader.lose(self._file, self._unit, error)
            self._note(self._reader.damaged(self._file, self._unit, error.what))
