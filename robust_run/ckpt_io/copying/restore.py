"""Brings a checkpoint to this machine, unit by unit and in parallel: what is there already is verified, and not fetched again."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass

from robust_run.ckpt_io.address import Address
from robust_run.ckpt_io.copying.journal import Journal
from robust_run.ckpt_io.copying.local_files import lay_out, read_bytes, sync_files, write_bytes
from robust_run.ckpt_io.copying.plans import plan_of
from robust_run.ckpt_io.copying.sources import PlainSource
from robust_run.ckpt_io.copying.types import Plan, Progress, Restored, Task
from robust_run.ckpt_io.reading import Checkpoint
from robust_run.errors import PlatformError, UserError
from robust_run.store.digests import digest
from robust_run.store.engine import transfer
from robust_run.store.errors import from_os_error


def restore(
    source: Checkpoint | PlainSource,
    destination: Address,
    *,
    verify_only: bool = False,
    progress: Progress | None = None,
) -> Restored:
    """Copy a checkpoint into a local folder (a single file: to a local file), or only compare.

    Raises:
        UserError: The destination is not on this machine.
        CheckpointError, StoreError: The source is damaged or cannot be read.
        PlatformError: The destination cannot be written to. What was copied stays, and the next time goes on with it.
    """
    plan = plan_of(source, destination)
    if verify_only:
        return _verify(plan, progress)
    if os.path.exists(plan.commit_record) and not os.path.exists(plan.journal_path):
        raise UserError(
            f"{plan.destination} holds a checkpoint already, and would be a mixture for a while: name a new folder"
        )
    _make_room(plan)
    counts = _Counts()
    with Journal(plan.journal_path, plan.identity) as journal:
        if journal.done and not plan.is_same(journal):
            journal.done.clear()
        for path, size in plan.sizes.items():
            lay_out(path, size)
        jobs = (_CopyJob(task, journal, counts) for task in plan.tasks())
        transfer(jobs, threads=plan.threads, progress=progress)
        sync_files(plan.sizes)
        plan.finish()
        journal.remove()
    return _restored(plan, counts)


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
    journal: Journal
    counts: _Counts

    @property
    def size_bytes(self) -> int:
        """Of the unit."""
        return self.task.size_bytes

    def run(self, attempt: int) -> None:  # noqa: ARG002 - all attempts are the same
        """Copy it."""
        task = self.task
        noted = self.journal.done.get((task.file, task.unit))
        if noted is not None and (task.digest or noted) == noted:
            there = read_bytes(task.path, task.offset_bytes, task.size_bytes)
            if there is not None and digest(there) == noted:
                with self.counts.lock:
                    self.counts.kept_bytes += task.size_bytes
                return
        data = task.fetch()
        try:
            descriptor = os.open(task.path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                write_bytes(descriptor, memoryview(data), task.offset_bytes)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise from_os_error(error, task.path, "") from error
        self.journal.note(task.file, task.unit, task.digest or digest(data))
        with self.counts.lock:
            self.counts.fetched_bytes += task.size_bytes


@dataclass(frozen=True)
class _CompareJob:
    """One unit to be compared."""

    task: Task
    path: str
    differ: list[str]

    @property
    def size_bytes(self) -> int:
        """Of the unit."""
        return self.task.size_bytes

    def run(self, attempt: int) -> None:  # noqa: ARG002
        """Compare it."""
        there = read_bytes(self.path, self.task.offset_bytes, self.task.size_bytes)
        expected = self.task.digest or digest(self.task.fetch())
        if there is None or digest(there) != expected:
            what = "is missing or too short" if there is None else "differs"
            self.differ.append(f"{self.path}: unit {self.task.unit} (byte {self.task.offset_bytes}) {what}")


def _verify(plan: Plan, progress: Progress | None) -> Restored:
    differ: list[str] = []
    jobs = (_CompareJob(task, plan.final_of.get(task.path, task.path), differ) for task in plan.tasks())
    transfer(jobs, threads=plan.threads, progress=progress)
    for path, size in plan.sizes.items():
        final = plan.final_of.get(path, path)
        with suppress(OSError):
            if os.path.getsize(final) > size:
                differ.append(f"{final}: has {os.path.getsize(final)} bytes, {size} are expected")
    return _restored(plan, _Counts(), tuple(sorted(differ)))


def _restored(plan: Plan, counts: _Counts, wrong: tuple[str, ...] = ()) -> Restored:
    return Restored(
        kind=plan.kind,
        source=plan.source,
        destination=plan.destination,
        size_bytes=plan.size_bytes,
        fetched_bytes=counts.fetched_bytes,
        kept_bytes=counts.kept_bytes,
        wrong=wrong,
    )


def _make_room(plan: Plan) -> None:
    """Make the folders, and see that there is room, before anything is fetched. Raises PlatformError."""
    needed: dict[int, tuple[str, int]] = {}
    try:
        os.makedirs(os.path.dirname(plan.journal_path), exist_ok=True)
        for path, size in plan.sizes.items():
            folder = os.path.dirname(path)
            os.makedirs(folder, exist_ok=True)
            there = os.stat(path).st_blocks * 512 if os.path.exists(path) else 0
            device = os.stat(folder).st_dev
            needed[device] = folder, needed.get(device, (folder, 0))[1] + max(0, size - there)
        for folder, size in needed.values():
            free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
            if free < size:
                raise PlatformError(
                    f"{folder}: {size} bytes are needed and {free} are free: make room, or restore elsewhere"
                )
    except OSError as error:
        raise PlatformError(f"{plan.destination} cannot be written to: {error.strerror} ({error.filename})") from error
