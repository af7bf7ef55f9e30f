"""Fetching a checkpoint's units into memory: from the store or from another node, verified, what readers wait for first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from robust_run.ckpt_io.ahead import rules
from robust_run.ckpt_io.ahead.area import ABSENT, COMING, HERE, OFF, Area
from robust_run.ckpt_io.rules.layout import FileLayout
from robust_run.ckpt_io.targets import Targets
from robust_run.errors import RobustRunError
from robust_run.store.digests import digest
from robust_run.store.engine import transfer
from robust_run.store.errors import Cancelled, StoreError, is_transient
from robust_run.store.jobs import Retry

#: Of a unit; what did not come then is left to who reads it.
_TRIES = 4
_IDLE_S = 0.02

FromPeer = Callable[[int, memoryview], bool]
"""Fills memory with a unit that another node fetches; False: fetch it from the store."""


class Fetcher:
    """One checkpoint's. `run` returns when all that is planned is here, or has failed, or it was stopped."""

    def __init__(  # noqa: PLR0913 - its parts
        self,
        area: Area,
        layouts: Sequence[FileLayout],
        targets: Targets,
        plan: rules.FetchPlan,
        pace: rules.Pace,
        from_peer: FromPeer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._area, self._layouts, self._targets, self._plan = area, layouts, targets, plan
        self._pace, self._from_peer, self._clock = pace, from_peer, clock
        self._lock = threading.Lock()
        self._pacing = threading.Lock()
        self._cursor = 0
        self.stop = threading.Event()
        self.have_bytes = self.from_peers_bytes = 0
        self.trouble = ""
        self.is_waited_for = False
        for number in plan.left_out:
            area.states[number] = OFF

    def run(self, threads: int) -> None:
        """Fetch; in threads of its own."""
        try:
            transfer(self._jobs(), threads=threads, retry=Retry(attempts=_TRIES), stop=self.stop)
        except Cancelled:
            return

    def demand(self, number: int) -> None:
        """Have a unit fetched before others: another node waits for it."""
        self._area.wants[number] = 1

    def _jobs(self) -> Iterator[_UnitFetch]:
        while not self.stop.is_set():
            number = self._next()
            if number is None:
                return
            yield _UnitFetch(self, number)

    def _next(self) -> int | None:
        """Return the next unit, which is then being fetched; None: nothing is left."""
        with self._lock:
            wanted = self._wanted()
            if wanted is not None:
                return self._begun(wanted)
            order = self._plan.order
            while self._cursor < len(order):
                number = order[self._cursor]
                self._cursor += 1
                if self._area.states[number] == ABSENT:
                    return self._begun(number)
            return None

    def _wanted(self) -> int | None:
        at = 0
        self.is_waited_for = False
        while (number := self._area.first_wanted(at)) >= 0:
            self.is_waited_for = True
            if self._area.states[number] == ABSENT:
                return number
            if self._area.states[number] in (HERE, OFF):
                self._area.wants[number] = 0
            at = number + 1
        return None

    def _begun(self, number: int) -> int:
        self._area.states[number] = COMING
        return number

    # --- one unit

    def fetch(self, number: int, attempt: int) -> None:
        """Bring a unit. Raises StoreError: it is worth another try."""
        view = self._area.data(number)
        is_given = attempt == 0 and self._from_peer is not None and self._from_peer(number, view)
        if is_given and self._is_right(number, view):
            self._came(number, from_peer=True)
            return
        try:
            self._from_store(number, view)
        except StoreError as error:
            if is_transient(error) and attempt + 1 < _TRIES:
                raise
            self._failed(number, error)
        except RobustRunError as error:
            self._failed(number, error)

    def _from_store(self, number: int, view: memoryview) -> None:
        file, unit = self._area.table.unit(number)
        place = self._layouts[file].place(unit)
        with self._pacing:
            wait_s = self._pace.wait_s(place.stored_bytes, self._clock())
        if wait_s and self.stop.wait(wait_s):
            raise Cancelled("", "", "called off")
        self._targets.store(place.target).read_into(place.path, place.offset_bytes, [view])
        if self._is_right(number, view):
            self._came(number, from_peer=False)
        else:
            self._failed(number, None)

    def _is_right(self, number: int, view: memoryview) -> bool:
        file, unit = self._area.table.unit(number)
        return digest(view) == self._layouts[file].digest(unit)

    def _came(self, number: int, *, from_peer: bool) -> None:
        size = self._area.table.sizes[number]
        with self._lock:
            self._area.states[number] = HERE
            self._area.wants[number] = 0
            self.have_bytes += size
            self.from_peers_bytes += size if from_peer else 0
            self._area.came(self.have_bytes)

    def _failed(self, number: int, error: RobustRunError | None) -> None:
        """Leave a unit to who reads it, and who then says what is wrong with it."""
        with self._lock:
            self._area.states[number] = OFF
            self._area.wants[number] = 0
            self.trouble = str(error) if error is not None else "a unit came with a wrong digest"

    def wait_for(self, number: int, limit_s: float) -> bool:
        """Have a unit fetched; whether it is here in time."""
        end_s = self._clock() + limit_s
        while self._area.states[number] != HERE:
            if self._area.states[number] == OFF or self.stop.is_set() or self._clock() >= end_s:
                return False
            self.demand(number)
            self.stop.wait(_IDLE_S)
        return True


class _UnitFetch:
    """A unit as a job of the engine."""

    def __init__(self, fetcher: Fetcher, number: int) -> None:
        self.size_bytes = 0
        self._fetcher, self._number = fetcher, number

    def run(self, attempt: int) -> None:
        """Bring it."""
        self._fetcher.fetch(self._number, attempt)
