"""Opening a checkpoint and reading from it: any ranges of its logical files, each straight into a buffer, all of it verified."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from robust_run.ckpt_io.address import Address, origin, parse
from robust_run.ckpt_io.ahead.taking import VARIABLE, Fetched, fetched_for
from robust_run.ckpt_io.errors import CheckpointError, Damaged, ManifestRefused, NotACheckpoint, TargetLost
from robust_run.ckpt_io.finding import StoreOpener, find_manifest
from robust_run.ckpt_io.notes import leave_damage
from robust_run.ckpt_io.rules import manifest as manifests
from robust_run.ckpt_io.rules.layout import FileLayout
from robust_run.ckpt_io.rules.types import LogicalFile, Manifest
from robust_run.ckpt_io.targets import Targets
from robust_run.ckpt_io.unit_jobs import CheckJob, StoredJob, UnitJob
from robust_run.ckpt_io.unit_reading import UnitPiece, UnitReader
from robust_run.store import paths
from robust_run.store.engine import Hedge, Retry, TransferJob, transfer
from robust_run.store.errors import StoreError, Unavailable
from robust_run.store.opening import open_store

__all__ = ["Checkpoint", "Verify", "Wanted", "open_checkpoint"]

Verify = Literal["full", "touched", "off"]
"""full: all units of the checkpoint before anything is read; touched: each unit that something is read of; off: none."""


_HEDGE = Hedge()


@dataclass(frozen=True)
class Effort:
    """How hard to read."""

    threads: int
    retry: Retry | None = None
    hedge: Hedge | None = None
    is_local: bool = False
    """One unit alone is read by the caller's own thread: nothing is gained by a second read of it."""


@dataclass(frozen=True)
class Wanted:
    """A range of a logical file and where it is to go."""

    file: int
    """Index of the logical file."""
    offset_bytes: int
    buffer: memoryview
    """Contiguous and writable, of any format; its length is the range's."""


class Checkpoint:
    """One checkpoint, open for reading. Safe for threads, until it is closed."""

    def __init__(
        self,
        where: Address,
        manifest: Manifest,
        targets: Targets,
        effort: Effort,
        *,
        verify: bool,
        fetched: Callable[[Sequence[FileLayout]], Fetched | None] = lambda _: None,
    ) -> None:
        """`fetched`: returns what is fetched of it ahead, if anything is."""
        self.manifest = manifest
        self.url = paths.shown(where.url)
        self.targets = targets
        self.layouts: Sequence[FileLayout] = manifests.layouts(manifest)
        self._effort = effort
        self._fetched = fetched(self.layouts)
        self._verifier = UnitReader(self.url, self.layouts, targets, verify=True)
        self._reader = UnitReader(self.url, self.layouts, targets, verify=verify, fetched=self._fetched)
        self._indexes = {file.name: index for index, file in enumerate(manifest.files)}

    def file(self, name: str) -> tuple[int, LogicalFile]:
        """Return index and description of a logical file.

        Raises:
            CheckpointError: There is none of that name.
        """
        index = self._indexes.get(name)
        if index is None:
            raise CheckpointError(f"{self.url} has no logical file {name!r}; it has {len(self._indexes)} others")
        return index, self.manifest.files[index]

    def read(self, wanted: Sequence[Wanted], progress: Callable[[int], None] | None = None) -> None:
        """Fill all buffers, in parallel; `progress` is told of bytes that are done, one call at a time.

        Raises:
            Damaged, TargetLost, Replaced: What they say; what the buffers hold then is of no worth.
            ValueError: A range is not within its file, or a buffer is read-only.
        """
        jobs = [
            UnitJob(self._reader, file, unit, pieces) for (file, unit), pieces in sorted(self._by_unit(wanted).items())
        ]
        self._run(jobs, progress)

    def read_bytes(self, file: int, offset_bytes: int, size_bytes: int) -> bytes:
        """Return a range of a logical file. For small ones: it is memory of its own. Raises as `read` does."""
        self.layouts[file].spans(offset_bytes, size_bytes)  # it is there: before so much is allocated
        buffer = bytearray(size_bytes)
        self.read([Wanted(file, offset_bytes, memoryview(buffer))])
        return bytes(buffer)

    def read_unit(self, file: int, unit: int) -> bytes:
        """Return what is stored of a unit, verified. Raises as `read` does."""
        job = StoredJob(self._verifier, file, unit)
        self._run([job], None)
        return job.stored

    def check(self, progress: Callable[[int], None] | None = None) -> list[Damaged]:
        """Read everything and return what is damaged: units, and copies of the manifest (as file "", unit 0)."""
        found: list[Damaged] = []
        lock = threading.Lock()

        def note(fault: Damaged) -> None:
            with lock:
                found.append(fault)

        self._check_copies(note)
        jobs = (
            CheckJob(self._verifier, layout.index, unit, note)
            for layout in self.layouts
            for unit in range(layout.units)
        )
        self._transfer(jobs, progress)
        return sorted(found, key=lambda fault: (fault.file, fault.unit))

    def close(self) -> None:
        """Close all targets."""
        self.targets.close()
        if self._fetched is not None:
            self._fetched.close()
            self._fetched = None

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _run(self, jobs: Sequence[TransferJob], progress: Callable[[int], None] | None) -> None:
        try:
            self._do(jobs, progress)
        except Damaged as error:
            self.told(error)
            raise

    def told(self, error: Damaged) -> Damaged:
        """Return an error that is about to be raised with the checkpoint it is of; a launcher learns of it."""
        error.url, error.uuid = self.url, self.manifest.uuid
        leave_damage(error.url, error.uuid, error.brief)
        return error

    def _do(self, jobs: Sequence[TransferJob], progress: Callable[[int], None] | None) -> None:
        if len(jobs) == 1 and self._effort.is_local and _ran_at_once(jobs[0]):
            if progress is not None:
                progress(jobs[0].size_bytes)
            return
        self._transfer(jobs, progress)

    def _transfer(self, jobs: Iterable[TransferJob], progress: Callable[[int], None] | None) -> None:
        effort = self._effort
        try:
            transfer(jobs, threads=effort.threads, retry=effort.retry, hedge=effort.hedge, progress=progress)
        except StoreError as error:  # a transient one that did not pass
            raise TargetLost(error.url, f"{error.path}: {error.what}") from error

    def _by_unit(self, wanted: Sequence[Wanted]) -> Mapping[tuple[int, int], list[UnitPiece]]:
        """Sort out which bytes of which unit go where."""
        units: defaultdict[tuple[int, int], list[UnitPiece]] = defaultdict(list)
        for want in wanted:
            if not want.buffer.nbytes:  # which cannot even be cast
                continue
            view = want.buffer.cast("B")
            if view.readonly:
                raise ValueError("a buffer to read into is read-only")
            at = 0
            for span in self.layouts[want.file].spans(want.offset_bytes, len(view)):
                units[want.file, span.unit].append(UnitPiece(span.begin_bytes, view[at : at + span.size_bytes]))
                at += span.size_bytes
        for pieces in units.values():
            pieces.sort(key=lambda piece: piece.begin_bytes)
        return units

    def _check_copies(self, note: Callable[[Damaged], None]) -> None:
        for target in range(len(self.manifest.targets)):
            try:
                self.targets.check_manifest(target)
            except (NotACheckpoint, ManifestRefused, TargetLost) as error:
                note(Damaged(file="", unit=0, target=self.targets.url(target), part="manifest", reason=error.reason))


def _ran_at_once(job: TransferJob) -> bool:
    """Run a job in this thread; return False if it should be tried again."""
    try:
        job.run(0)
    except Unavailable:
        return False
    return True


def open_checkpoint(
    url: str | Address,
    *,
    also: Sequence[str] = (),
    threads: int | None = None,
    stores: StoreOpener = open_store,
    verify: Verify = "touched",
    retry: Retry | None = None,
    hedge: Hedge | None = _HEDGE,
) -> Checkpoint:
    """Open a checkpoint: read its manifest, and check that it can be what it says.

    `url` names its primary target and, as `rrck://`, others; `also` adds more. Where the primary has no valid manifest,
    copies are looked for on the targets named. `threads` reads run at once (None: what suits the primary); a unit that is long
    in coming is read a second time, as `hedge` says.

    Raises:
        NotACheckpoint: Nothing was ever committed there.
        ManifestRefused: What is there contradicts itself, or is damaged, and there is no copy.
        TargetLost: The primary cannot be read.
        Damaged: With `verify="full"`: the first unit that is.
        UserError: The address is none.
    """
    where = url if isinstance(url, Address) else parse(url, tuple(also))
    primary = stores(where.url)
    try:
        found = find_manifest(where, primary, stores)
    except BaseException as error:
        primary.close()
        if isinstance(error, ManifestRefused):
            leave_damage(paths.shown(where.url), "", f"its manifest is refused: {error.reason}")
        raise
    targets = Targets(where, found, primary, stores)
    effort = Effort(threads or targets.threads, retry, hedge, is_local=origin(where.url)[0] == "file")
    opened = Checkpoint(
        where,
        found.manifest,
        targets,
        effort,
        verify=verify != "off",
        fetched=partial(fetched_for, found.header) if os.environ.get(VARIABLE) else lambda _: None,
    )
    if verify == "full" and (faults := opened.check()):
        opened.close()
        raise opened.told(faults[0])
    return opened
