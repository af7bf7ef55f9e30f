"""The sensor of what scripts say about their training: report files of this node's ranks, and event files where pointed at.

Each file is judged by itself: a new attempt has new files, and with them a new history.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from robust_run.health.metrics import reports, tensorboard, wandb_files
from robust_run.health.metrics.reports import MetricPoint
from robust_run.health.metrics.tensorboard import EventFileChunk
from robust_run.health.sensors.settings import TrainingSettings
from robust_run.health.sensors.types import Event, EventKind, Sensor, SensorWorld
from robust_run.health.signs.training import TrainingState, judge

DAMAGED = "training.damaged"
MOST_FILES = 128
MOST_FOLDERS = 512
"""Looked through for event files."""
CHUNK_BYTES = 4 << 20
"""Of one file in one turn."""
FRESH_S = 60.0
"""A file that was written to so shortly before we began belongs to the run that is watched."""
LOOK_FOR_FILES_EVERY = 10
"""Turns between two walks through the folders."""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What was new in one file."""

    subject: str
    points: tuple[MetricPoint, ...]
    blind: str = ""
    """Why nothing more can be read of it, from now on."""
    sees: str = ""
    """What was passed over: it can be read again, or still."""


class EventFile(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One event file."""

    changed_s: float
    """Unix seconds."""
    path: str
    size_bytes: int


class MetricsWatcher:
    """Follows all files; each call returns what is new in them."""

    def __init__(self, unix_s: Callable[[], float] = time.time) -> None:
        self._began_s = unix_s()
        self._sequences: dict[str, int] = {}
        self._offsets: dict[str, int] = {}
        self._blind: set[str] = set()
        """Files of which no whole record was found any more, so far."""
        self._given_up: set[str] = set()
        """Files that are no logs."""
        self._unreadable: set[str] = set()
        self._passed_over: set[str] = set()
        """Files of which damage was told that did no harm."""
        self._found: tuple[str, ...] = ()
        self._folders: tuple[str, ...] = ()
        self._turn = 0

    def __call__(self, world: SensorWorld) -> dict[str, Said]:
        """Return what is new, by file."""
        said = dict(self._reports(world.reports()))
        folders = world.event_folders()
        if folders:
            if self._turn % LOOK_FOR_FILES_EVERY == 0 or folders != self._folders:
                self._look_for_files(folders)
            self._turn += 1
            said.update(self._events(world.began_unix_s()))
        return said

    def _look_for_files(self, folders: tuple[str, ...]) -> None:
        """What was last written before we began is of another run: only what is added to it counts."""
        files = event_files(folders)
        old_s = self._began_s - FRESH_S
        known = self._offsets
        self._found, self._folders = tuple(each.path for each in files), folders
        self._offsets = {
            each.path: known.get(each.path, each.size_bytes if each.changed_s < old_s else 0) for each in files
        }

    def _reports(self, folders: tuple[str, ...]) -> Iterator[tuple[str, Said]]:
        kept = {}
        for folder in folders:
            for name in sorted(_names(folder, reports.SUFFIX))[:MOST_FILES]:
                path = os.path.join(folder, name)
                new = reports.read(path, self._sequences.get(path, 0))
                kept[path] = new.last
                rank = name.removesuffix(reports.SUFFIX).replace("_", " ")
                yield path, Said(subject=rank, points=new.points)
        self._sequences = kept

    def _events(self, began_unix_s: float) -> Iterator[tuple[str, Said]]:
        for path in self._found:
            if path in self._given_up:
                continue
            subject, offset = os.path.basename(path), self._offsets.get(path, 0)
            try:
                content = _read_at(path, offset)
            except OSError as error:
                why = "" if path in self._unreadable else f"it cannot be read: {error.strerror}"
                self._unreadable.add(path)
                yield path, Said(subject=subject, points=(), blind=why)
                continue
            chunk = wandb_files.parse(content, offset) if path.endswith(".wandb") else tensorboard.parse(content)
            self._offsets[path] = offset + chunk.used_bytes
            blind, sees = self._damage(path, offset, chunk)
            if path in self._unreadable:
                self._unreadable.discard(path)
                sees = sees or "it can be read again" * (not blind)
            points = tuple(point for point in chunk.points if not 0 < point.at_s < began_unix_s)
            yield path, Said(subject=subject, points=points, blind=blind, sees=sees)

    def _damage(self, path: str, offset: int, chunk: EventFileChunk) -> tuple[str, str]:
        """Return why a file has become unreadable, or that it can be read again; each is said when it happens."""
        if chunk.is_lost:
            if not chunk.used_bytes:
                self._given_up.add(path)
            if path in self._blind:
                return "", ""
            self._blind.add(path)
            return f"it cannot be read from byte {offset + (chunk.damaged_at or 0)} on", ""
        if path in self._blind and chunk.used_bytes:
            self._blind.discard(path)
            return "", f"it can be read again before byte {offset + chunk.used_bytes}"
        if chunk.damaged_at is not None and path not in self._blind | self._passed_over:
            self._passed_over.add(path)
            return "", f"it is damaged at byte {offset + chunk.damaged_at}; it is read on from the next whole record"
        return "", ""


def event_files(folders: tuple[str, ...]) -> list[EventFile]:
    """Return the newest event files of TensorBoard and wandb below some folders; links to folders are not followed."""
    found: list[EventFile] = []
    seen = 0
    for folder in folders:
        for place, _, names in os.walk(folder):
            seen += 1
            if seen > MOST_FOLDERS:
                break
            paths = [os.path.join(place, name) for name in names if "tfevents" in name or name.endswith(".wandb")]
            found += filter(None, map(_file, paths))
    return sorted(found)[-MOST_FILES:]


def _file(path: str) -> EventFile | None:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return EventFile(changed_s=status.st_mtime, path=path, size_bytes=status.st_size)


def _names(folder: str, suffix: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.endswith(suffix)]
    except OSError:
        return []


def _read_at(path: str, offset: int) -> bytes:
    """Return what follows at a place; nothing where the file is gone. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(descriptor, CHUNK_BYTES, offset)
    finally:
        os.close(descriptor)


def judge_all(
    settings: TrainingSettings, states: Mapping[str, TrainingState], said: Mapping[str, Said], now_s: float
) -> tuple[Mapping[str, TrainingState], tuple[Event, ...]]:
    """Return what is wrong with any file's training. Files that are gone are forgotten."""
    kept: dict[str, TrainingState] = {}
    events: list[Event] = []
    for path, new in said.items():
        kept[path], found = judge(settings, new.subject, states.get(path, TrainingState()), new.points, now_s)
        events += found
        if new.blind or new.sees:
            kind: EventKind = "note" if new.blind else "clear"
            said_of = new.blind or new.sees
            events.append(Event(name=DAMAGED, kind=kind, subject=new.subject, detail=said_of, at_s=now_s))
    return kept, tuple(events)


def sensor(settings: TrainingSettings) -> Sensor:
    """Return the sensor."""
    return Sensor(
        name="training",
        about="loss and gradient norm that are NaN or jump, steps that take longer and longer",
        interval_s=settings.interval_s,
        timeout_s=settings.timeout_s,
        read=MetricsWatcher(),
        judge=lambda states, said, now_s: judge_all(settings, states, said, now_s),
        start={},
    )
