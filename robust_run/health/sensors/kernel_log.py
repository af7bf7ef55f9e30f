"""Watches the kernel's log (/dev/kmsg): Xid errors, out-of-memory kills, machine checks, broken file systems, hung tasks.

A record of /dev/kmsg is `priority,sequence,microseconds,flags;text`, one for each read, and lines that begin with a blank
belong to the record before (Documentation/ABI/testing/dev-kmsg). Any process that may write to /dev/kmsg can put words
there, but the kernel marks them with a facility that is not its own; only the kernel's own records count.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time
from collections.abc import Mapping

import msgspec

from robust_run.health.sensors.job.job_here import LOOK_S, JobHere
from robust_run.health.sensors.settings import KernelLogSettings
from robust_run.health.sensors.types import AbsentError, Event, Sensor, SensorWorld
from robust_run.health.signs.kernel_lines import MOST_DETAIL_CHARS, Meaning, killed_in, meaning_of
from robust_run.health.signs.ownership import Owner, owner_of

MOST_RECORDS = 500
"""Kept at a time; of the rest only the first of each meaning is, so that a storm in the log hides nothing that is rare."""
MOST_READ, MOST_MEANINGS = 20_000, 256
"""After so many records the rest is passed over, and that is told."""
LOST = "kernel_log.lost"
IMAGE = "image.error"
#: What is about one process, whose number it has.
_OF_PROCESSES = ("memory.oom_kill", "kernel.hung_task")
#: The longest record that the kernel makes: /dev/kmsg gives one a read, and refuses a smaller buffer (EINVAL).
_RECORD_BYTES = 8192
_MOST_REMEMBERED = 256
_MOST_KILLED = 64
_NOT_OURS = {
    "other": "it does not concern this job",
    "unknown": "it is not known whether it concerns this job",
}
_WORTH_JUDGING = ("NVRM", "memory", "BUG", "Oops", "panic", "fault", "LOCKUP", "rcu", "task", "rror", "EDAC", "mce")
_ALSO = ("EXT4", "XFS", "BTRFS", "nvme", "nfs", "WATCHDOG", "mlx5", "temperature", "sd ", "Memory")


class KernelRecord(msgspec.Struct, frozen=True):
    """One record of the log."""

    facility: int
    """0: the kernel itself."""
    text: str
    meaning: Meaning | None = None
    """What it tells, where that was found out already."""
    owner: Owner = "job"
    """Whose it is what it tells of."""


class Batch(msgspec.Struct, frozen=True):
    """What was new in the log."""

    records: tuple[KernelRecord, ...]
    lost: bool = False
    """Whether records were passed over, by us or by the kernel."""
    image: str = ""
    """What is mounted for the job's processes, for people."""


class KernelLog:
    """An open kernel log; each call waits up to `wait_s` for something new. Raises AbsentError, OSError."""

    def __init__(self, wait_s: float, *, trust_programs: bool = False) -> None:
        self._wait_s = wait_s
        self._trust_programs = trust_programs
        self._descriptor = -1
        self._here: JobHere | None = None
        self._killed_in: dict[int, str] = {}
        """Cgroups of processes that are about to be killed for memory."""
        self._owners: dict[Meaning, Owner] = {}
        """Of what was told lately: a storm asks for the same again and again."""
        self._owners_s = float("-inf")

    def __call__(self, world: SensorWorld) -> Batch:
        """Return the new records, none after `wait_s`."""
        if self._descriptor < 0:
            self.open(world.kmsg)
        if self._here is None:
            self._here = JobHere(world)
        self._here.look(time.monotonic())
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.poll(self._wait_s * 1000)
        batch = self._drain()
        if not batch.records and not batch.lost:
            time.sleep(0.05)  # what is no log (a plain file) is always ready, and must not keep a core busy
        records = tuple(self._attributed(each, self._here) for each in batch.records)
        return msgspec.structs.replace(batch, records=records, image=world.image)

    def _attributed(self, record: KernelRecord, here: JobHere) -> KernelRecord:
        """Return a record with what it tells, and whose that is."""
        if record.facility != 0 and not self._trust_programs:
            return record
        about = killed_in(record.text)
        if about is not None:
            self._killed_in.pop(about.pid, None)
            self._killed_in[about.pid] = about.cgroup
            while len(self._killed_in) > _MOST_KILLED:
                self._killed_in.pop(next(iter(self._killed_in)))
        meaning = meaning_of(record.text) if _is_worth_it(record.text) else None
        if meaning is None:
            return record
        if meaning.name == "memory.oom_kill":
            meaning = meaning._replace(cgroup=self._killed_in.get(meaning.number, ""))
        owner = self._owner(meaning, here)
        if meaning.name in _OF_PROCESSES and not here.speaks_our_pids:
            meaning = meaning._replace(number=0)  # it is another process here
        return msgspec.structs.replace(record, meaning=meaning, owner=owner)

    def _owner(self, meaning: Meaning, here: JobHere) -> Owner:
        now_s = time.monotonic()
        if now_s - self._owners_s > LOOK_S or len(self._owners) >= _MOST_REMEMBERED:
            self._owners, self._owners_s = {}, now_s
        known = self._owners.get(meaning)
        if known is None:
            known = self._owners[meaning] = owner_of(meaning, here)
        return known

    def open(self, path: str) -> None:
        """Open the log and go to its end. Raises AbsentError."""
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise AbsentError(f"the kernel's log cannot be read: {path}: {error.strerror}") from error
        with contextlib.suppress(OSError):  # a pipe has no end to go to
            os.lseek(self._descriptor, 0, os.SEEK_END)

    def close(self) -> None:
        """Close it, if it is open."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _drain(self) -> Batch:
        records: list[KernelRecord] = []
        lost = False
        while len(records) < MOST_RECORDS:
            try:
                content = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                return Batch(tuple(records), lost)
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten before we came
                    lost = True
                    continue
                if error.errno in (errno.EINVAL, errno.EINTR):
                    continue
                raise
            if not content:
                return Batch(tuple(records), lost)
            records += parse(content.decode("utf-8", "replace"))
        return self._skim(records)

    def _skim(self, records: list[KernelRecord]) -> Batch:
        """Go on through a storm, and keep the first record of each meaning."""
        rare: dict[tuple[str, str, int], KernelRecord] = {}
        for _ in range(MOST_READ):
            try:
                content = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EINVAL, errno.EINTR):
                    continue
                raise
            if not content:
                break
            for record in parse(content.decode("utf-8", "replace")):
                meaning = meaning_of(record.text) if record.facility == 0 and _is_worth_it(record.text) else None
                if meaning is not None and len(rare) < MOST_MEANINGS:
                    rare.setdefault((meaning.name, meaning.subject, meaning.number), record)
        else:
            with contextlib.suppress(OSError):
                os.lseek(self._descriptor, 0, os.SEEK_END)
        return Batch((*records, *rare.values()), True)


def parse(text: str) -> list[KernelRecord]:
    """Return the records in what was read; lines in no known form are left out. Pure."""
    records = []
    for line in text.split("\n"):
        head, separator, message = line.partition(";")
        priority = head.partition(",")[0]
        if separator and priority.isdecimal() and priority.isascii() and len(priority) < 6:
            records.append(KernelRecord(int(priority) >> 3, message))
    return records


Said = Mapping[tuple[str, str], float]
"""When something was last said, by name and subject."""


def judge(settings: KernelLogSettings, said: Said, batch: Batch, now_s: float) -> tuple[Said, tuple[Event, ...]]:
    """Return an event for what each record tells; the same of the same subject again only after `repeat_s`."""
    events: list[Event] = []
    told = (LOST, "")
    if batch.lost and now_s - said.get(told, float("-inf")) >= settings.repeat_s:
        said = _remember(said, told, now_s)
        text = "more was written to the kernel's log than can be read: some of it was passed over"
        events.append(Event(name=LOST, kind="note", subject="", detail=text, at_s=now_s))
    for record in batch.records:
        if record.facility != 0 and not settings.trust_programs:
            continue
        meaning = record.meaning or (meaning_of(record.text) if _is_worth_it(record.text) else None)
        if meaning is None:
            continue
        key = (meaning.name, f"{meaning.subject} {meaning.number} {record.owner}")
        if now_s - said.get(key, float("-inf")) < settings.repeat_s:
            continue
        said = _remember(said, key, now_s)
        events.append(_event(meaning, record, batch.image, now_s))
    return said, tuple(events)


def _is_worth_it(text: str) -> bool:
    """Whether a line may match at all: most lines of a log do not, and this is ten times cheaper than the patterns."""
    return any(word in text for word in _WORTH_JUDGING) or any(word in text for word in _ALSO)


def _remember(said: Said, key: tuple[str, str], now_s: float) -> Said:
    kept = sorted(said.items(), key=lambda item: item[1])[-_MOST_REMEMBERED + 1 :]
    return {**dict(kept), key: now_s}


def _event(meaning: Meaning, record: KernelRecord, image: str, now_s: float) -> Event:
    line = "".join(character if character.isprintable() else " " for character in record.text[:MOST_DETAIL_CHARS])
    detail = f"{meaning.words}; the kernel's log: {line}" if meaning.words else f"the kernel's log: {line}"
    event = Event(
        name=meaning.name, kind="alert", subject=meaning.subject, detail=detail, at_s=now_s, number=meaning.number
    )
    if record.owner == "job":
        return event
    if record.owner == "image":
        what = image or "the file that it is mounted from"
        return msgspec.structs.replace(event, name=IMAGE, subject=what, detail=f"reads of it fail; {detail}")
    return msgspec.structs.replace(event, kind="note", detail=f"{_NOT_OURS[record.owner]}: {detail}")


def sensor(settings: KernelLogSettings) -> Sensor:
    """Return the sensor."""
    return Sensor(
        name="kernel_log",
        about="the kernel's log: GPU errors (Xid), processes killed for memory, machine checks, file systems gone"
        " read-only, tasks and CPUs that hang, links and disks that fail",
        interval_s=settings.interval_s,
        timeout_s=float("inf"),
        read=KernelLog(settings.wait_s, trust_programs=settings.trust_programs),
        judge=lambda said, batch, now_s: judge(settings, said, batch, now_s),
        start={},
    )
