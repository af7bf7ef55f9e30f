"""Usage of nodes, kept for pages: takes in what each says of itself, and now and then writes usage.json.

What is kept, and what is forgotten, is decided by `report.usage`. Nothing of it decides anything about the job, and a fault in it
ends only this: it waits for no disk, and a history that cannot be written is no news.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce

from robust_run.clock import Clock
from robust_run.harmless import Harmless
from robust_run.health.outliers.feed import STAYS
from robust_run.launcher.core.membership import name_of
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.links import Timer
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.report.files import usage as file
from robust_run.report.usage import UsagePoint, added, point_of

#: How long a point stands for when it is new, and after how many of them the file is written.
POINT_S = 10.0
WRITE_EVERY = 3
OUTLIER = "outlier."
#: How long the end of a job waits for a disk.
PATIENCE_S = 2.0


class UsageBook:
    """How full and busy the nodes of one job were. For the loop's thread alone."""

    def __init__(
        self,
        state: JobState,
        run_directory: RunDirectory,
        clock: Clock,
        later: Callable[[float, Callable[[], None]], Timer],
        say: Callable[[str], None],
        ask: Callable[[], tuple[str, Sequence[float]]] | None = None,
    ) -> None:
        """`ask` returns what one node says; None: nodes say it by themselves (`take`)."""
        self._state = state
        self._path = "" if run_directory.temporary else run_directory.usage
        self._clock = clock
        self._later = later
        self._ask = ask
        self._harmless = Harmless("usage.json", say)
        self._newest: dict[str, Sequence[float]] = {}
        """What nodes said since the last point."""
        self._points: tuple[UsagePoint, ...] = ()
        """Of this controller."""
        self._earlier: tuple[UsagePoint, ...] | None = None
        """What an earlier controller kept; None: not read yet. The writing thread's."""
        self._begun_s = clock.unix_s()
        self._unwritten = 0
        self._writer: threading.Thread | None = None
        self._timer: Timer | None = None
        if self._path:
            self._timer = later(POINT_S, self._turn)

    def take(self, node: str, usage: Sequence[float]) -> None:
        """Take in what a node says of the last second; empty: it does not know."""
        if usage:
            self._newest[node] = usage

    def _turn(self) -> None:
        self._timer = self._later(POINT_S, self._turn)
        self._harmless.run(self._keep)

    def _keep(self) -> None:
        if self._ask is not None:
            self.take(*self._ask())
        newest, self._newest = self._newest, {}
        begin_s, self._begun_s = self._begun_s, self._clock.unix_s()
        rows = {name_of(self._state, node) or node: row for node, row in newest.items() if node in self._state.places}
        point = point_of(
            begin_s, self._begun_s, rows, {name: metric for name, metric in self._odd().items() if name in rows}
        )
        if point is None:
            return
        self._points = added(self._points, point)
        self._unwritten += 1
        if self._unwritten >= WRITE_EVERY:
            self._write()

    def _odd(self) -> dict[str, str]:
        """Return the nodes that stand out now, and by which number: the first that was said of each."""
        found: dict[str, str] = {}
        for name, event, _ in self._state.health.active:
            if event.startswith(OUTLIER) and not event.startswith(STAYS):
                found.setdefault(name, event.removeprefix(OUTLIER))
        return found

    def _write(self) -> None:
        """Read and write in a thread: a file system may hang. One that is not done with the last time is left alone."""
        points = self._points
        if self._writer is not None and self._writer.is_alive():
            return
        self._unwritten = 0

        def write() -> None:
            with suppress(OSError):
                if self._earlier is None:
                    self._earlier = file.read(self._path)
                file.write(self._path, reduce(added, points, self._earlier))

        self._writer = threading.Thread(target=write, name="usage", daemon=True)
        self._writer.start()

    def end(self) -> None:
        """Write what is not written: the job is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unwritten:
            self._harmless.run(self._write)
        if self._writer is not None:
            self._writer.join(PATIENCE_S)
