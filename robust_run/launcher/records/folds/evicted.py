"""Which hosts are evicted now and why, from the lines of a journal: by an operator, a rule, a hang or the ladder alike. Pure."""

from __future__ import annotations

import msgspec

from robust_run.launcher.model.actions import HostEvicted
from robust_run.launcher.model.check_events import Decided
from robust_run.launcher.model.health_events import RuleSpoke
from robust_run.launcher.model.node_events import NodeEvicted, NodeReadmitted
from robust_run.launcher.records.journal import JournalEntry

MARKS = (b'"event"', b'"host_evicted"')
"""A line without any of them changes nothing here, in a journal of this version."""


class EvictedNow(msgspec.Struct, frozen=True, kw_only=True):
    """Why a host is out of the job."""

    reason: str
    by: str
    listed: bool = False
    """By the list of earlier jobs alone (`--evict-list`): this job saw nothing wrong with it."""


class Evicted:
    """Follows a journal, whose lines are in force. What one event leads to stands behind it, so a readmission is always newer."""

    def __init__(self) -> None:
        self.now: dict[str, EvictedNow] = {}
        """By the host's name, in the order they were evicted."""

    def take(self, entry: JournalEntry) -> tuple[str, ...]:
        """Take in a line; return the hosts that are evicted by it."""
        if isinstance(entry.event, NodeReadmitted):
            self.now.pop(entry.event.name, None)
            return ()
        new = {name: why for name, why in _said(entry).items() if name not in self.now}
        self.now |= new
        return tuple(new)


def _said(entry: JournalEntry) -> dict[str, EvictedNow]:
    match entry.event or entry.action:
        case NodeEvicted(name=name, reason=reason, by=by, listed=listed):
            return {name: EvictedNow(reason=reason, by=by, listed=listed or by == "the list")}
        case HostEvicted(name=name, reason=reason, by=by, listed=listed):
            return {name: EvictedNow(reason=reason, by=by, listed=listed)}
        # Versions before `HostEvicted` tell of a rule's and of the ladder's evictions so; of a hang's they do not.
        case RuleSpoke(rung="evict", node=name, sentence=sentence, rule=rule, held_back="", tolerated=False):
            return {name: EvictedNow(reason=sentence, by=f"rule {rule}")}
        case Decided(rung="evict", nodes=names, sentence=sentence):
            return {name: EvictedNow(reason=sentence, by="robust-run, ladder") for name in names}
        case _:
            return {}
