"""Stopped sensors of nodes, and why: what they watch goes unseen, and status says so. Pure.

Absent hardware is no blindness. A sensor that hangs is an alert besides, for which there are rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from robust_run.launcher.model.health_events import HealthRecord, HealthSeen, Sign

if TYPE_CHECKING:
    from robust_run.health.types import Event

#: How the names of such events end: no answer, cannot be read, a mistake of ours, a damaged file, a process that is gone.
STOPPED = (".hung", ".unreadable", ".broken", ".damaged", ".ended")
#: All sensors of a node are one process.
PROCESS = "sensors.ended"
MOST_BLIND = 1000


def note(record: HealthRecord, name: str, seen: HealthSeen) -> None:
    """Remember that a sensor has stopped, or that it works again. `name`: of the host."""
    event = seen.event
    if not event.name.endswith(STOPPED):
        return
    if event.name == PROCESS:  # a new process says again what does not work
        record.blind = {key: sign for key, sign in record.blind.items() if key[0] != seen.node}
    key = (seen.node, event.name, event.subject)
    record.blind.pop(key, None)
    if event.kind != "clear":
        record.blind[key] = Sign(name=name, event=event, at_unix_s=seen.at_unix_s)
    while len(record.blind) > MOST_BLIND:
        record.blind.pop(next(iter(record.blind)))


def of_nodes(record: HealthRecord) -> Mapping[str, tuple[Sign, ...]]:
    """Return what has stopped, oldest first, by agent id."""
    found: dict[str, tuple[Sign, ...]] = {}
    for (node, _, _), sign in record.blind.items():
        found[node] = (*found.get(node, ()), sign)
    return found


def words(event: Event) -> str:
    """Return what is blind, and why."""
    what = "all sensors" if event.name == PROCESS else event.name.rpartition(".")[0]
    return f"{what}{event.subject and ' '}{event.subject}: {event.detail}"
