"""Fetching a checkpoint's units into memory: from the store or from another node, verified, what readers wait for first.

Where a reader wants a unit that another node was to read, the rest of its file follows.
"""

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
_IDLE_S = 0.1

FromPeer = Callable[[int, memoryview], bool]
"""Fills memory with a unit that another node fetches; False: fetch it from the store."""


class Fetcher:
    """One checkpoint's. `run` returns when all that may be wanted is here, or has failed, or it was stopped."""

    def __init__(
        self,
        area: Area,
        layouts: Sequence[FileLayout],
        targets: Targets,
        plan: rules.FetchPlan,
        pace: rules.Pace,
        from_peer: FromPeer | None = None,
        is_ours: Callable[[int], bool] = lambda _: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_ours`: whether a unit is fetched from the store here; others are asked for with `from_peer` first."""
        self._area, self._layouts, self._targets = area, layouts, targets
        self._pace, self._from_peer, self._is_ours, self._clock = pace, from_peer, is_ours, clock
        self.most = 1 << 30
        """So many units are fetched at once, at most, but for those that a reader waits for."""
        self._order = list(plan.order)
        self._later: dict[int, list[int]] = {}
        """By file: units that come if one of them is wanted."""
        for number in plan.later:
            self._later.setdefault(area.table.files[number], []).append(number)
        self._running = 0
        self._is_first = plan.is_first
        self._asking: set[int] = set()
        """Units that other nodes are asked for."""
        self._most_asking = 1
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
        self._most_asking = max(1, threads // 2)
        try:
            transfer(self._jobs(), threads=threads, retry=Retry(attempts=_TRIES), stop=self.stop)
        except Cancelled:
            return

    def go_on(self, plan: rules.FetchPlan, from_peer: FromPeer | None, is_ours: Callable[[int], bool]) -> None:
        """Go on with another plan, and others to ask; what is here stays."""
        with self._lock:
            self._from_peer, self._is_ours = from_peer, is_ours
            self._order, self._cursor, self._later = list(plan.order), 0, {}
            for number in plan.later:
                self._later.setdefault(self._area.table.files[number], []).append(number)
            for number in plan.left_out:
                if self._area.states[number] == ABSENT:
                    self._area.states[number] = OFF
            self._is_first = False

    @property
    def is_over(self) -> bool:
        """Whether all that was planned is here, or has failed: more only comes if it is wanted."""
        return not self._is_first and self.is_idle

    @property
    def is_idle(self) -> bool:
        """The same of what was planned so far."""
        with self._lock:
            return self._cursor >= len(self._order) and not self._running

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
        """Return the next unit, which is then being fetched; None: nothing is left. Waits while only other nodes could be asked,
        and as many units are asked for there as may be: were all threads busy with that, nodes could wait for each other.
        """
        while not self.stop.is_set():
            with self._lock:
                number, is_left = self._choice()
                if number is not None:
                    self._area.states[number] = COMING
                    self._running += 1
                    if not self._is_ours(number):
                        self._asking.add(number)
                    return number
            if not is_left:
                return None
            self.stop.wait(_IDLE_S)
        return None

    def _choice(self) -> tuple[int | None, bool]:
        """Return the next unit, and whether any are left."""
        number, is_left = self._wanted()
        is_left = is_left or bool(self._later) or self._is_first
        if number is None and self._running >= self.most:
            return None, is_left or self._cursor < len(self._order)
        while number is None and self._cursor < len(self._order):
            at = self._order[self._cursor]
            if self._area.states[at] == ABSENT:
                if not self._may_fetch(at):
                    return None, True
                number = at
            self._cursor += 1
        return number, is_left

    def _wanted(self) -> tuple[int | None, bool]:
        at, is_left = 0, False
        self.is_waited_for = False
        while (number := self._area.first_wanted(at)) >= 0:
            self.is_waited_for = True
            state = self._area.states[number]
            self._order += self._later.pop(self._area.table.files[number], ())
            if state == ABSENT and self._may_fetch(number):
                return number, True
            is_left = is_left or state == ABSENT
            if state in (HERE, OFF):
                self._area.wants[number] = 0
            at = number + 1
        return None, is_left

    def _may_fetch(self, number: int) -> bool:
        return len(self._asking) < self._most_asking or self._is_ours(number)

    # --- one unit

    def fetch(self, number: int, attempt: int) -> None:
        """Bring a unit. Raises StoreError: it is worth another try."""
        view = self._area.data(number)
        if attempt == 0 and self._was_given(number, view):
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

    def _was_given(self, number: int, view: memoryview) -> bool:
        try:
            is_given = self._from_peer is not None and self._from_peer(number, view)
        finally:
            with self._lock:
                self._asking.discard(number)
        return is_given and self._is_right(number, view)

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
            self._running -= 1
            self._area.states[number] = HERE
            self._area.wants[number] = 0
            self.have_bytes += size
            self.from_peers_bytes += size if from_peer else 0
            self._area.came(self.have_bytes)

    def _failed(self, number: int, error: RobustRunError | None) -> None:
        """Leave a unit to who reads it, and who then says what is wrong with it."""
        with self._lock:
            self._running -= 1
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
