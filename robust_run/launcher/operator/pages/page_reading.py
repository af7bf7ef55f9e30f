"""What pages are drawn from, read from a run directory: the journal as it grows, incidents, scenes, rings, checkpoints."""

from __future__ import annotations

import os
import stat
import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from robust_run.decoders import json_decoder
from robust_run.errors import RobustRunError
from robust_run.launcher.operator.commands.pictures import newest_with_rings, ring_paths
from robust_run.launcher.operator.reading.incident_reading import MOST_S
from robust_run.launcher.operator.views.history import AttemptHistory
from robust_run.launcher.operator.views.page_data import Kept, nothing_kept
from robust_run.launcher.records.journal import JournalEntry, JournalHeader
from robust_run.report.files import incident as incident_file
from robust_run.report.files import usage as usage_file
from robust_run.report.heat import Heat, heat_of
from robust_run.report.pages.types import JobPage, NodePlace, ReportedCheckpoint, ReportedSeries
from robust_run.report.types import Incident
from robust_run.tracer.types import RankTrace, Scene

if TYPE_CHECKING:
    from robust_run.health.metrics.reports import MetricPoint

#: Ranks of this machine whose reports are looked for.
MOST_ASKED = 16
#: So much of the end of a log is handed out.
LOG_BYTES = 4 << 20
#: Rings that are read for a heat-map, evenly chosen where there are more.
MOST_RINGS = 512
#: How long the list of checkpoints is good for.
CHECKPOINTS_S = 30.0
#: How long the folder of checkpoints may take to be listed: a page is drawn without, rather than a job held up.
LOOK_S = 1.0

_LOOKING: dict[str, threading.Thread] = {}
"""What lists a folder, or did."""


class JournalTail:
    """Follows a journal into a history. For one thread at a time."""

    def __init__(self, path: str) -> None:
        self.history = AttemptHistory()
        self.header: JournalHeader | None = None
        self._path = path
        self._known_bytes = 0
        self._decoder = json_decoder(JournalEntry)

    def catch_up(self) -> AttemptHistory:
        """Take in what was appended. Raises OSError."""
        with open(self._path, "rb") as file:
            if os.fstat(file.fileno()).st_size < self._known_bytes:  # it is another file now
                self.history, self.header, self._known_bytes = AttemptHistory(), None, 0
            file.seek(self._known_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # it is being written
                self._take(line)
                self._known_bytes += len(line)
        return self.history

    def _take(self, line: bytes) -> None:
        try:
            if self._known_bytes == 0:
                self.header = json_decoder(JournalHeader).decode(line)
            else:
                entry = self._decoder.decode(line)
                if abs(entry.at) <= MOST_S:
                    self.history.take(entry)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return  # cut short by a full disk or a power loss


def scene_in(folder: str, number: int) -> Scene | None:
    """Return what an incident was concluded from; None where it was not kept, or cannot be read."""
    path = os.path.join(folder, "incidents", f"{number:04d}.scene.json")
    try:
        return incident_file.read_scene(path)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def files_in(folder: str, incident: Incident) -> tuple[str, ...]:
    """Return which files of an incident's evidence are in a run directory: ranks of other nodes may have theirs there alone."""
    named = {each.path for each in incident.evidence if each.path}
    return tuple(sorted(path for path in named if folder and os.path.isfile(os.path.join(folder, path))))


def log_in(folder: str, path: str) -> bytes:
    """Return the end of a file below a run directory. Raises OSError, also for what is no file."""
    descriptor = os.open(os.path.join(folder, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path!r} is no file")
        file.seek(max(os.fstat(descriptor).st_size - LOG_BYTES, 0))
        return file.read(LOG_BYTES)


def scene_mark(folder: str, number: int) -> tuple[int, int]:
    """Return what tells one scene's file from a later one; zeros where there is none."""
    try:
        known = os.stat(os.path.join(folder, "incidents", f"{number:04d}.scene.json"))
    except OSError:
        return (0, 0)
    return (known.st_mtime_ns, known.st_size)


def checkpoints_in(folder: str | None) -> Kept:
    """Return what tells the newest checkpoint before a moment, of those that lie in a folder now."""
    if not folder:
        return nothing_kept
    found = sorted(saved_in(folder), key=lambda each: (each[0], each[1] or 0))
    times = [created_s for created_s, _ in found]

    def kept(at_s: float) -> ReportedCheckpoint | None:
        index = bisect_right(times, at_s) - 1
        return ReportedCheckpoint(created_s=found[index][0], step=found[index][1]) if index >= 0 else None

    return kept


def saved_in(folder: str) -> list[tuple[float, int | None]]:
    """Return when each checkpoint in a folder was made, and its step; nothing where its file system does not answer soon."""
    from robust_run.ckpt_io.newest import saved

    before = _LOOKING.get(folder)
    if before is not None and before.is_alive():
        return []  # it hangs still
    found: list[tuple[float, int | None]] = []
    _LOOKING[folder] = thread = threading.Thread(target=lambda: found.extend(saved(folder)), daemon=True)
    thread.start()
    thread.join(LOOK_S)
    return [] if thread.is_alive() else found


class CheckpointList:
    """The same for a page that is drawn again and again: the folder is not listed each time."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._kept: Kept = nothing_kept
        self._read_at_s = float("-inf")

    def kept(self) -> Kept:
        """Return what is known; at most `CHECKPOINTS_S` old."""
        if time.monotonic() - self._read_at_s > CHECKPOINTS_S:
            self._kept, self._read_at_s = checkpoints_in(self._folder), time.monotonic()
        return self._kept


def heat_in(folder: str, memory: str, attempt: int) -> Heat | None:
    """Return the own times of the newest steps, from rings in memory where they are on this machine, else from their copies."""
    from robust_run.tracer.files import ring

    paths = _rings_in_memory(memory, attempt)
    if not paths:
        paths = dict(ring_paths(folder, attempt))
    ranks = sorted(paths)
    chosen = ranks[:: -(-len(ranks) // MOST_RINGS)] if ranks else []
    traces = [ring.read(paths[rank], 1, with_phases=True) for rank in chosen]
    sound: list[RankTrace] = [trace for trace in traces if trace is not None and trace.pid and len(trace.marks) > 1]
    heat = heat_of(sound) if sound else None
    return heat if heat is not None and heat.median_ms else None


def _rings_in_memory(memory: str, attempt: int) -> dict[int, str]:
    if not memory:
        return {}
    head, tail = f"attempt_{attempt}-", ".steps.ring"
    try:
        names = os.listdir(memory)
    except OSError:
        return {}
    return {
        int(rank): os.path.join(memory, name)
        for name in names
        if name.startswith(head) and name.endswith(tail) and (rank := name[len(head) : -len(tail)]).isdecimal()
    }


def series_in(memory: str, attempt: int) -> tuple[tuple[ReportedSeries, ...], int]:
    """Return what the first rank on this machine that reports says of its training, and that rank; nothing where none does.

    The files are in memory, hold the newest reports, and are gone when the attempt is.
    """
    from robust_run.health.metrics import reports

    folder = os.path.join(memory, f"attempt_{attempt}-reports")
    try:
        names = os.listdir(folder)
    except OSError:
        return (), 0
    numbers = (name.removeprefix("rank_").removesuffix(reports.SUFFIX) for name in names)
    ranks = sorted(int(number) for number in numbers if number.isdecimal())
    for rank in ranks[:MOST_ASKED]:
        points = reports.read(reports.file_of(folder, rank)).points
        if points:
            named = list(dict.fromkeys(name for point in points for name in point.values))
            return tuple(_series(points, name) for name in named), rank
    return (), 0


def _series(points: Sequence[MetricPoint], name: str) -> ReportedSeries:
    said = [point for point in points if name in point.values]
    return ReportedSeries(name=name, values=tuple(point.values[name] for point in said), step=said[-1].step)


def startup_in(folder: str) -> tuple[str, dict[int, float]]:
    """Return the waterfall of how the newest attempt started, as a fragment of HTML, and by attempt how long it took to start.

    Nothing where it was not measured.
    """
    from robust_run.report.files import startup as file
    from robust_run.report.startup import draw

    try:
        startup = file.read(os.path.join(folder, file.NAME))
    except RobustRunError:
        return "", {}
    if startup is None or not startup.attempts:
        return "", {}
    return draw.waterfall(startup), {each.attempt: each.total_s for each in startup.attempts if each.stepped_ranks}


def with_pictures(page: JobPage, folder: str, memory: str = "") -> JobPage:
    """Return the page's data with its waterfall, and the heat-map of the newest attempt that left a record."""
    startup, starts = startup_in(folder) if folder else ("", {})
    page = msgspec.structs.replace(page, startup=startup, starts=starts)
    if folder:
        page = msgspec.structs.replace(page, usage=usage_file.read(os.path.join(folder, usage_file.NAME)))
    newest = page.attempts[-1].number if page.attempts else 0
    if memory:
        series, rank = series_in(memory, newest)
        page = msgspec.structs.replace(page, series=series, series_rank=rank)
    heat, attempt = (heat_in("", memory, newest) if memory else None), newest
    if heat is None and folder:
        attempt = newest_with_rings(folder)
        heat = heat_in(folder, "", attempt)
    if heat is None:
        return page
    places = next((each.places for each in page.attempts if each.number == attempt), ())
    note = f"Of attempt {attempt}, the newest that left a record." if attempt != newest else ""
    nodes = nodes_by_rank(places, {rank for row in heat.ranks for rank in row})
    return msgspec.structs.replace(page, heat=heat, heat_nodes=nodes, heat_note=note)


def nodes_by_rank(places: tuple[NodePlace, ...], wanted: set[int]) -> dict[int, str]:
    """Return the host names of some ranks."""
    return {
        rank: place.node
        for place in places
        for rank in range(place.first_rank, place.first_rank + place.nproc)
        if rank in wanted
    }
