"""Brings a checkpoint to this machine, unit by unit and in parallel: what is there already is verified, and not fetched again."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from robust_run.ckpt_io.address import Address
from robust_run.ckpt_io.copying.journal import CopyJournal
from robust_run.ckpt_io.copying.local_files import lay_out, read_bytes, sync_files, write_piece
from robust_run.ckpt_io.copying.occupied import check_apart, check_not_source, check_way
from robust_run.ckpt_io.copying.plans import plan_of
from robust_run.ckpt_io.copying.sources import PlainSource
from robust_run.ckpt_io.copying.types import CopyPlan, Progress, RestoreResult, Task
from robust_run.ckpt_io.copying.whole import check_whole, faults
from robust_run.ckpt_io.reading import Checkpoint
from robust_run.errors import PlatformError, UserError
from robust_run.store.digests import digest
from robust_run.store.engine import transfer


def restore(
    source: Checkpoint | PlainSource,
    destination: Address,
    *,
    verify_only: bool = False,
    progress: Progress | None = None,
) -> RestoreResult:
    """Copy a checkpoint into a local folder (a single file: to a local file), or only compare.

    Raises:
        UserError: The destination is not on this machine, is the source or lies in it, or holds the same checkpoint in another
            layout, or something that stands in the way; or another restore to it is under way.
        CheckpointError, StoreError: The source is damaged, cannot be read, or changed meanwhile.
        PlatformError: The destination cannot be written to. What was copied stays, and the next time goes on with it.
    """
    plan = plan_of(source, destination)
    if verify_only:
        return _verify(plan, progress, faults(source) if isinstance(source, PlainSource) else [])
    if isinstance(source, PlainSource):
        check_whole(source, "restore", "restored")
    check_not_source((*plan.sizes, *plan.final_of.values()), plan.source_paths)
    check_apart(plan.destination, plan.source_folder)
    counts = _Counts()
    with _plain_errors(plan):
        os.makedirs(os.path.dirname(plan.journal_path), exist_ok=True)
    with CopyJournal(plan.journal_path, plan.identity) as journal, _plain_errors(plan):
        is_occupied = _looked_around(plan, journal)
        for path, size in plan.sizes.items():
            lay_out(path, size)
        plan.go_on(journal)
        jobs = (_CopyJob(task, journal, counts, is_occupied) for task in plan.tasks())
        transfer(jobs, threads=plan.threads, progress=progress)
        plan.check_unchanged()
        sync_files(plan.sizes)
        plan.finish()
        journal.remove()
    return _restored(plan, counts)


def _looked_around(plan: CopyPlan, journal: CopyJournal) -> bool:
    """See that the destination may be written to, and has room; return whether the same checkpoint lies there."""
    try:
        if journal.is_new and os.path.exists(plan.commit_record):
            raise UserError(
                f"{plan.destination} holds a checkpoint already, and would be a mixture for a while: name a new folder"
            )
        check_way(plan)
        is_occupied = plan.is_occupied()
        _make_room(plan)
    except BaseException:
        if journal.is_new:  # nothing was begun
            journal.remove()
        raise
    return is_occupied


@contextmanager
def _plain_errors(plan: CopyPlan) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PlatformError(f"{plan.destination} cannot be written to: {error.strerror} ({error.filename})") from error


class _Counts:
    """Bytes fetched and bytes found."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.fetched_bytes = 0
        self.kept_bytes = 0


@dataclass(frozen=True)
class _CopyJob:
    """One unit to be copied, if it is not there."""

    task: Task
    journal: CopyJournal
    counts: _Counts
    is_occupied: bool = False
    """The destination was whole once: a unit is only written if it is not what it should be."""

    @property
    def size_bytes(self) -> int:
        """Of the unit."""
        return self.task.size_bytes

    def run(self, attempt: int) -> None:  # noqa: ARG002 - all attempts are the same
        """Copy it."""
        task = self.task
        noted = self.journal.done.get((task.file, task.unit))
        if self.is_occupied and task.digest:
            noted = task.digest
        if noted is not None and (task.digest or noted) == noted:
            there = read_bytes(task.path, task.offset_bytes, task.size_bytes)
            if there is not None and digest(there) == noted:
                with self.counts.lock:
                    self.counts.kept_bytes += task.size_bytes
                return
        data = task.fetch()
        write_piece(task.path, memoryview(data), task.offset_bytes)
        self.journal.note(task.file, task.unit, task.digest or digest(data))
        with self.counts.lock:
            self.counts.fetched_bytes += task.size_bytes


@dataclass(frozen=True)
class _CompareJob:
    """One unit to be compared."""

    task: Task
    path: str
    differ: dict[str, list[int]]
    """Units that do, by path."""

    @property
    def size_bytes(self) -> int:
        """Of the unit."""
        return self.task.size_bytes

    def run(self, attempt: int) -> None:  # noqa: ARG002
        """Compare it."""
        there = read_bytes(self.path, self.task.offset_bytes, self.task.size_bytes)
        expected = self.task.digest or digest(self.task.fetch())
        if there is None or digest(there) != expected:
            self.differ.setdefault(self.path, []).append(self.task.unit)


def _verify(plan: CopyPlan, progress: Progress | None, of_source: list[str]) -> RestoreResult:
    """Hold what is there now against what is at the source now. `of_source`: what is wrong there already."""
    found = plan.compare()
    differ: dict[str, list[int]] = {}
    jobs = (
        _CompareJob(task, plan.final_of.get(task.path, task.path), differ)
        for task in plan.tasks()
        if task.path in found.alike
    )
    transfer(jobs, threads=plan.threads, progress=progress)
    wrong = [
        *(f"source: {fault}" for fault in of_source),
        *found.wrong,
        *(_differs(path, units) for path, units in differ.items()),
    ]
    return _restored(plan, _Counts(), tuple(sorted(wrong)), found.extra)


def _differs(path: str, units: list[int]) -> str:
    first = min(units)
    more = f", and {len(units) - 1} more units" if len(units) > 1 else ""
    return f"{path}: unit {first} differs{more}"


def _restored(
    plan: CopyPlan, counts: _Counts, wrong: tuple[str, ...] = (), extra: tuple[str, ...] = ()
) -> RestoreResult:
    return RestoreResult(
        kind=plan.kind,
        source=plan.source,
        destination=plan.destination,
        size_bytes=plan.size_bytes,
        fetched_bytes=counts.fetched_bytes,
        kept_bytes=counts.kept_bytes,
        files=len(plan.sizes),
        wrong=wrong,
        extra=extra,
        notes=plan.notes,
    )


def _make_room(plan: CopyPlan) -> None:
    """Make the folders, and see that there is room, before anything is fetched. Raises PlatformError, OSError."""
    needed: dict[int, tuple[str, int]] = {}
    for folder in {*plan.folders, *map(os.path.dirname, (*plan.sizes, *plan.links))}:
        os.makedirs(folder, exist_ok=True)
    for path, size in plan.sizes.items():
        folder = os.path.dirname(path)
        there = os.lstat(path).st_blocks * 512 if os.path.lexists(path) else 0
        device = os.stat(folder).st_dev
        needed[device] = folder, needed.get(device, (folder, 0))[1] + max(0, size - there)
    for folder, size in needed.values():
        free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
        if free < size:
            raise PlatformError(
                f"{folder}: {size} bytes are needed and {free} are free: make room, or restore elsewhere"
            )
