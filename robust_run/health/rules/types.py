"""Words of the rules: a row of the table (`HealthRule`), what was decided by it (`RuleDecision`), the table (`Book`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from robust_run.health.sensors.settings import SensorSettings
from robust_run.health.sensors.types import Event

Confidence = Literal["high", "medium", "low"]
Rung = Literal["evict", "diagnose", "relaunch", "rollback", "inquire", "stop", "report"]
"""evict: take the node out at once, no further checks. diagnose: end the attempt, test the nodes. relaunch: start again, the
node is not to blame. rollback: undo pending code, or stop and show it. inquire: look at all ranks (collective log, stacks).
stop: nothing can help. report: tell people, do nothing."""


class HealthRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row: what an event of this name means, and what follows."""

    confidence: Confidence
    """How sure it is that the node (or what `rung` acts on) is to blame."""
    rung: Rung
    count: Annotated[int, Meta(ge=1, le=1000)] = 1
    """So many alerts of one node within `within_s` are needed; fewer are tolerated, and told."""
    within_s: Annotated[float, Meta(ge=0, le=86400 * 30)] = 0.0
    apart_s: Annotated[float, Meta(ge=0, le=86400)] = 0.0
    """Alerts of one node that are nearer than this are one: a cable shows in several counters at once."""
    counts_as: str = ""
    """Rules with the same word here count together; empty: each by its own name."""
    why: str = ""
    """Where the row comes from, for people."""
    on: bool = True
    """False: events of this name are only kept."""


class RuleLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What no rule may go beyond: a bad rule or an event that hits the whole fleet must not eat the job."""

    max_evict_share: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """Of the job's nodes: rules evict no more within `evict_window_s`. At least one, so that small jobs heal too; 0: none."""
    evict_window_s: Annotated[float, Meta(gt=0, le=86400 * 30)] = 3600.0


class Comparing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How nodes are compared with their peers while a job trains; the same as `robust outliers` has them (docs/outliers.md)."""

    on: bool = True
    apart: Annotated[float, Meta(ge=0.5, le=1000)] = 4.0
    """From so many spreads on a node counts as apart from its peers."""
    hold: Annotated[float, Meta(ge=0.01, le=100)] = 1.0
    """Factor: 2 waits twice as long before a node is named."""
    settle_s: Annotated[float, Meta(ge=0, le=86400)] = 150.0
    """From the first step on no node is named for so long: what is usual is learnt in that time, from 30 readings at least."""
    stays_s: Annotated[float, Meta(ge=1, le=86400)] = 300.0
    """A node that was named is told again (`outlier.stays`) when it has stayed apart for so long while the job made steps."""


class LadderTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Durations by which the ladder goes (docs/ladder.md)."""

    half_life_s: Annotated[float, Meta(gt=0, le=86400 * 365)] = 12 * 3600.0
    """A suspicion of a node counts half after so long."""
    again_after_s: Annotated[float, Meta(ge=0, le=86400 * 365)] = 6 * 3600.0
    """For the same sign on the same node a job that trains is suspended again only after so long."""
    apart_s: Annotated[float, Meta(ge=0, le=86400 * 365)] = 1800.0
    """Nor is it suspended twice within this time, whatever is seen."""
    failure_s: Annotated[float, Meta(ge=0, le=86400)] = 300.0
    """What one failure costs: the work since the last checkpoint, and the restart."""
    standbys_s: Annotated[float, Meta(ge=0, le=86400 * 365)] | None = None
    """How long it takes until more standbys come; not given: nobody knows of any."""


class Book(msgspec.Struct, frozen=True, kw_only=True):
    """All rules, and the settings of the sensors that feed them."""

    rules: Mapping[str, HealthRule]
    """By the beginning of an event's name; the longest that fits counts."""
    limits: RuleLimits = RuleLimits()
    sensors: SensorSettings = SensorSettings()
    outliers: Comparing = Comparing()
    ladder: LadderTimes = LadderTimes()


class RuleDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from one event. The caller carries it out, and writes it to the journal with its rule."""

    rung: Rung
    rule: str
    confidence: Confidence
    node: str
    event: Event
    sentence: str
    """For people: what was seen, where, and why this follows."""
    tolerated: bool = False
    """The rule asks for more alerts than there have been: nothing is done yet."""
    held_back: str = ""
    """Why an eviction is not carried out though the rule asks for it; then `rung` is report."""


Counts = Mapping[tuple[str, str], tuple[float, ...]]
"""When alerts came that were counted, by what they count as and node: seconds of the decider's clock, oldest first."""


class Evicted(msgspec.Struct, frozen=True, kw_only=True):
    """A node that rules took out."""

    node: str
    rule: str
    at_s: float
