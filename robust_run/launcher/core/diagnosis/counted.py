"""What rules had counted of alerts before one that is on record: the journal has not all of them (`controller.repeats`). Pure."""

from __future__ import annotations

import msgspec

from robust_run.health.rules import deciding
from robust_run.health.rules.types import Counts
from robust_run.launcher.core.diagnosis.rule_book import book_of
from robust_run.launcher.core.membership import name_of
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.model.health_events import HealthSeen


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
