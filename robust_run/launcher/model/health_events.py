"""Health events: what sensors said, and what a rule made of it. No behaviour."""

from __future__ import annotations

import msgspec

from robust_run.health.types import Event

# --- events ---------------------------------------------------------------------------------------------------------


class SensorsBegan(msgspec.Struct, frozen=True, tag="sensors_began", kw_only=True):
    """The sensors of a node watch, and this is what they cannot."""

    node: str
    absent: tuple[str, ...] = ()
    """A sentence each: what is not on this machine, or may not be read."""


class HealthSeen(msgspec.Struct, frozen=True, tag="health_seen", kw_only=True, omit_defaults=True):
    """A sensor of a node said something. A symptom: what follows from it is the rules' to say."""

    node: str
    event: Event
    at_unix_s: float = 0.0
    """For people: by the clock of the controller, which heard of it then."""
    left_out: int = 0
    """In the journal: how often the same was said since the line before about it (`controller.repeats`)."""
    counted: tuple[float, ...] | None = None
    """In the journal: when the alerts came that its rule had counted before this one, as not all of them are there; None: as they
    are there."""
    is_recalled: bool = False
    """In the journal: it was heard of earlier, nothing followed from it, and what comes next may have to do with it."""


HealthEvent = SensorsBegan | HealthSeen


# --- actions --------------------------------------------------------------------------------------------------------


class RuleSpoke(msgspec.Struct, frozen=True, tag="rule_spoke", kw_only=True):
    """A rule of the table decided what follows from something seen. For the record: what is done follows as actions."""

    rule: str
    """Name of the row."""
    rung: str
    """What the rule asks for here: evict, diagnose, relaunch, rollback, inquire, stop or report."""
    confidence: str
    node: str
    """Name of the host."""
    sentence: str
    tolerated: bool = False
    """More alerts are needed before anything is done."""
    held_back: str = ""
    """Why it is not carried out though the rule asks for it."""


# --- what the core remembers ----------------------------------------------------------------------------------------


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """Something a sensor said, and what the rules made of it."""

    name: str
    """Of the host."""
    event: Event
    at_unix_s: float
    rung: str = ""
    """Of the rule it has; empty: none."""


class RuleEviction(msgspec.Struct, frozen=True, kw_only=True):
    """A host that a rule took out."""

    name: str
    rule: str
    at_s: float


class HealthRecord(msgspec.Struct, kw_only=True):
    """What is known of the health of the job's nodes."""

    counts: dict[tuple[str, str], tuple[float, ...]] = {}
    """See `health.rules.types.Counts`."""
    evicted: list[RuleEviction] = []
    active: dict[tuple[str, str, str], Sign] = {}
    """What was said and not taken back, by host, event and subject; the newest last."""
    blind: dict[tuple[str, str, str], Sign] = {}
    """Sensors that have stopped, by agent id, event and subject; see `core.diagnosis.blindness`."""
    recent: list[Sign] = []
    """Alerts of the last minutes, oldest first."""
    said: set[tuple[str, str, str]] = set()
    """Rule, host and subject of what was told in this attempt."""
    said_in: int = -1
    """That attempt."""
