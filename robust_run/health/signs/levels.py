"""From conditions that last to events: said when they have lasted long enough, again while they last, and when over. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from robust_run.health.sensors.types import Condition, Event, Levels, Standing

#: Trees like sysfs are filled by others, and may show any number of things that are wrong.
MOST_CONDITIONS = 256


def follow(levels: Levels, conditions: Iterable[Condition], now_s: float) -> tuple[Levels, tuple[Event, ...]]:
    """Return the conditions that last and what is to be said, given all that is wrong at this reading.

    Of more than are followed, those that are followed already stay: one that others crowd out would be said to be over.
    """
    standing: dict[tuple[str, str], Standing] = {}
    events: list[Event] = []
    for condition in sorted(conditions, key=lambda each: (each.name, each.subject) not in levels):
        key = (condition.name, condition.subject)
        if key in standing or len(standing) >= MOST_CONDITIONS:
            continue
        before = levels.get(key)
        since_s = now_s if before is None else before.since_s
        said_s = None if before is None else before.said_s
        due_s = since_s + condition.hold_s if said_s is None else said_s + condition.repeat_s
        if now_s >= due_s:
            events.append(_alert(condition, since_s, now_s))
            said_s = now_s
        standing[key] = Standing(since_s, said_s, condition)
    for key, last in levels.items():
        if key not in standing and last.said_s is not None:
            events.append(_clear(last, now_s))
    return standing, tuple(events)


def _alert(condition: Condition, since_s: float, now_s: float) -> Event:
    lasted_s = now_s - since_s
    lasting = f", for {lasted_s:.0f} s now" if lasted_s >= 1 else ""
    return Event(
        name=condition.name,
        kind="alert",
        subject=condition.subject,
        detail=condition.detail + lasting,
        at_s=now_s,
        value=condition.value,
        limit=condition.limit,
    )


def _clear(last: Standing, now_s: float) -> Event:
    return Event(
        name=last.condition.name,
        kind="clear",
        subject=last.condition.subject,
        detail=f"over after {now_s - last.since_s:.0f} s: {last.condition.detail}",
        at_s=now_s,
    )
