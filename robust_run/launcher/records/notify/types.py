"""The words of notifications. The JSON of a `Notification` is what webhooks and commands get; docs/watching.md describes it.

Fields are only ever added; `schema` counts changes that an older reader would misunderstand. Times are seconds since the epoch.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = 1
#: Ranks and nodes that a notice names at most, and the longest text.
NAMED = 16
LONGEST_TEXT = 2000

Happening = Literal["incident_opened", "incident_resolved", "job_ended"]


class IncidentNotice(msgspec.Struct, frozen=True, kw_only=True):
    """An incident, as far as it is known when the notice is sent."""

    number: int
    attempt: int
    kind: str
    action: str
    """What was done about it."""
    reason: str
    """Why that."""
    sentence: str
    """The verdict, as it is: what shows it must escape it."""
    confidence: str
    rule: str
    ranks: tuple[int, ...] = ()
    """At most 16."""
    nodes: tuple[str, ...] = ()
    """At most 16."""
    onset_s: float
    detected_s: float
    resumed_s: float | None = None
    """First step of the next attempt."""


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """One notification."""

    schema: int = SCHEMA
    event: Happening
    text: str
    """For people: one line, escaped as Slack wants it."""
    run_id: str
    script: str
    host: str
    """Of the controller."""
    run_directory: str
    at_s: float
    incident: IncidentNotice | None = None
    outcome: str = ""
    """done, failed or stopped, where the job has ended."""
    exit_code: int | None = None
    suppressed: int = 0
    """Notices that were left out since the last one that was sent."""
