"""Times a small operation on each store of the job (HDFS, HTTP, object stores, folders): the listing or size of its root.

A store that fails for a moment is daily business (HDFS errors were 2 % of all incidents: ByteRobust, table 1); several in
a row are said. One that does not answer at all is an alert of the sensor's own time limit.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import msgspec

from robust_run.health.sensors.settings import StoreSettings
from robust_run.health.sensors.types import AbsentError, Event, Sensor, SensorWorld
from robust_run.store.paths import shown

Probe = Callable[[], None]
"""Does one small operation. Raises RobustRunError."""


class StoreSample(msgspec.Struct, frozen=True, kw_only=True):
    """One operation."""

    took_s: float
    error: str = ""
    """Why it failed; empty: it went well."""


class StoreState(msgspec.Struct, frozen=True, kw_only=True):
    """How many slow or failed ones came in a row, and whether that was said."""

    bad: int = 0
    said: bool = False


def probe_of(url: str) -> Probe:
    """Return an operation on a store. Raises UserError for what is no URL."""
    from robust_run.store.errors import NotFound, Unsupported  # the store's modules are heavy, and few jobs name one
    from robust_run.store.opening import open_store

    store = open_store(url)

    def probe() -> None:
        with contextlib.suppress(NotFound, Unsupported):  # it answered
            store.list("")

    return probe


class StoreReader:
    """Times operations on one store."""

    def __init__(self, url: str, make: Callable[[str], Probe]) -> None:
        self._url = url
        self._make = make
        self._probe: Probe | None = None

    def __call__(self, _: SensorWorld) -> StoreSample:
        """Return how long one operation took. Raises AbsentError for what is no store."""
        from robust_run.errors import RobustRunError, UserError

        try:
            if self._probe is None:
                self._probe = self._make(self._url)
            start_s = time.monotonic()
            self._probe()
        except UserError as error:
            raise AbsentError(str(error)) from error
        except (RobustRunError, OSError) as error:
            return StoreSample(took_s=0.0, error=str(error)[:300])
        return StoreSample(took_s=time.monotonic() - start_s)


def judge(
    settings: StoreSettings, url: str, state: StoreState, sample: StoreSample, now_s: float
) -> tuple[StoreState, tuple[Event, ...]]:
    """Return whether operations are slow or fail, several in a row."""
    if not sample.error and sample.took_s < settings.slow_s:
        detail = f"operations go well again ({sample.took_s:.2f} s)"
        over = Event(name="store.slow", kind="clear", subject=url, detail=detail, at_s=now_s)
        return StoreState(), (over,) if state.said else ()
    bad = state.bad + 1
    if bad < settings.in_row:
        return StoreState(bad=bad, said=state.said), ()
    if sample.error:
        detail = f"a small operation failed, {bad} times in a row: {sample.error}"
        return StoreState(bad=bad, said=True), (
            Event(name="store.error", kind="alert", subject=url, detail=detail, at_s=now_s),
        )
    detail = f"a small operation took {sample.took_s:.1f} s (limit {settings.slow_s:g} s), {bad} times slow in a row"
    event = Event(
        name="store.slow",
        kind="alert",
        subject=url,
        detail=detail,
        at_s=now_s,
        value=sample.took_s,
        limit=settings.slow_s,
    )
    return StoreState(bad=bad, said=True), (event,)


def sensors(settings: StoreSettings, world: SensorWorld, make: Callable[[str], Probe] = probe_of) -> tuple[Sensor, ...]:
    """Return a sensor for each store."""
    return tuple(_sensor(settings, url, make) for url in world.stores)


def _sensor(settings: StoreSettings, url: str, make: Callable[[str], Probe]) -> Sensor:
    named = shown(url)
    return Sensor(
        name="store",
        subject=named,
        about="how long a small operation on a store takes, and whether it fails",
        interval_s=settings.interval_s,
        timeout_s=settings.timeout_s,
        open_s=settings.open_s,
        read=StoreReader(url, make),
        judge=lambda state, sample, now_s: judge(settings, named, state, sample, now_s),
        start=StoreState(),
    )
