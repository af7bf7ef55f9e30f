"""The record of what sensors saw: what is void when a host was mended, or when another controller's clock counts. Pure."""

from __future__ import annotations

import msgspec

from robust_run.health.rules import deciding
from robust_run.health.rules.types import Counts
from robust_run.launcher.core.diagnosis.rule_book import book_of
from robust_run.launcher.core.membership import name_of
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.model.health_events import HealthSeen


def forget(state: JobState, name: str) -> None:
    """A host was mended: what was counted against it is void."""
    record = state.health
    record.counts = dict(deciding.forget(record.counts, name))
    record.active = {key: sign for key, sign in record.active.items() if key[0] != name}
    record.recent = [sign for sign in record.recent if sign.name != name]
    record.evicted = [each for each in record.evicted if each.name != name]


def begin_anew(state: JobState, name: str, *, but: tuple[str, ...] = ()) -> None:
    """Other sensors watch a host from now on: what those before them had not taken back nobody will, and what is still so is said
    again. `but`: beginnings of names of what others said.
    """
    record = state.health
    record.active = {key: sign for key, sign in record.active.items() if key[0] != name or key[1].startswith(but)}


def resumed(state: JobState, now_s: float) -> None:
    """This clock is another: counts begin anew, and evictions count from now."""
    record = state.health
    record.counts, record.recent = {}, []
    record.evicted = [msgspec.structs.replace(each, at_s=now_s) for each in record.evicted]


def with_counted(policy: CorePolicy, state: JobState, seen: HealthSeen, counts: Counts) -> HealthSeen:
    """Return an event for the journal with what its rule had counted before it, by `counts`: the journal has not all of that."""
    key = deciding.count_key(book_of(policy), name_of(state, seen.node), seen.event)
    return seen if key is None else msgspec.structs.replace(seen, counted=counts.get(key, ()))


def take_counted(policy: CorePolicy, state: JobState, seen: HealthSeen) -> None:
    """Count what was counted before an event, whatever the journal has of it."""
    key = deciding.count_key(book_of(policy), name_of(state, seen.node), seen.event)
    if seen.counted is not None and key is not None:
        others = {other: times for other, times in state.health.counts.items() if other != key}
        state.health.counts = {**others, key: seen.counted} if seen.counted else others
