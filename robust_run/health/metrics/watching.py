"""The sensor of what scripts say about their training: report files of this node's ranks, and event files where pointed at.

Each file is judged by itself: a new attempt has new files, and with them a new history.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from robust_run.health.metrics import reports, tensorboard, wandb_files
from robust_run.health.metrics.judging import TrainingState, judge
from robust_run.health.metrics.reports import Point
from robust_run.health.sensors.settings import TrainingSettings
from robust_run.health.sensors.types import Event, Sensor, World

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
    points: tuple[Point, ...]


class EventFile(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One event file."""

    changed_s: float
    """Unix seconds."""
    path: str
    size_bytes: int


class Watcher:
    """Follows all files; each call returns what is new in them."""

    def __init__(self, unix_s: Callable[[], float] = time.time) -> None:
        self._began_s = unix_s()
        self._sequences: dict[str, int] = {}
        self._offsets: dict[str, int] = {}
        self._damaged: set[str] = set()
        self._found: tuple[str, ...] = ()
        self._folders: tuple[str, ...] = ()
        self._turn = 0

    def __call__(self, world: World) -> dict[str, Said]:
        """Return what is new, by file."""
        said = dict(self._reports(world.reports()))
        folders = world.event_folders()
        if folders:
            if self._turn % LOOK_FOR_FILES_EVERY == 0 or folders != self._folders:
                self._look_for_files(folders)
            self._turn += 1
            said.update(self._events())
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

    def _events(self) -> Iterator[tuple[str, Said]]:
        for path in self._found:
            if path in self._damaged:
                continue
            offset = self._offsets.get(path, 0)
            content = _read_at(path, offset)
            is_wandb = path.endswith(".wandb")
            chunk = wandb_files.parse(content, offset) if is_wandb else tensorboard.parse(content)
            is_stuck = not chunk.used_bytes and len(content) == CHUNK_BYTES
            if chunk.damaged or is_stuck:
                self._damaged.add(path)
            self._offsets[path] = offset + chunk.used_bytes
            yield path, Said(subject=os.path.basename(path), points=chunk.points)


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
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, CHUNK_BYTES, offset)
    except (OSError, OverflowError):
        return b""
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
    return kept, tuple(events)


def sensor(settings: TrainingSettings) -> Sensor:
    """Return the sensor."""
    return Sensor(
        name="training",
        about="loss and gradient norm that are NaN or jump, steps that take longer and longer",
        interval_s=settings.interval_s,
        timeout_s=settings.timeout_s,
        read=Watcher(),
        judge=lambda states, said, now_s: judge_all(settings, states, said, now_s),
        start={},
    )
