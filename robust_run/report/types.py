"""The words of a report: an incident and its verdict, as written to `incidents/NNNN.json` (design: one file per failure)."""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.version import RUN_DIR_SCHEMA

VerdictKind = Literal[
    "crash",
    "stopped",
    "hang",
    "mismatch",
    "desync",
    "comm_stall",
    "slow",
    "node_lost",
    "node_fault",
    "nan",
    "code",
    "unknown",
]
ActionName = Literal["relaunch", "evict", "diagnose", "rollback", "replay", "stop", "report"]
Confidence = Literal["high", "medium", "low"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Why it failed: one sentence, and what it rests on."""

    kind: VerdictKind
    ranks: tuple[int, ...]
    """Global ranks found at fault; empty if none can be named."""
    nodes: tuple[str, ...]
    """Host names of those ranks."""
    group: str = ""
    """The parallel group at fault, where a group is the answer."""
    confidence: Confidence
    rule: str
    """Name of the rule that spoke."""
    sentence: str
    """For people: who, what, where, when. No newline."""
    over_evicted: tuple[int, ...] = ()
    """Those of `ranks` that are named only because no single one is certain."""


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """What was done about it."""

    name: ActionName
    nodes: tuple[str, ...] = ()
    reason: str = ""
    """Why this action and not another, as a clause."""
    at_s: float | None = None
    """When something else is done, if what was only reported goes on until then (seconds since the epoch); None: nothing is."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was seen, and where to see it again."""

    what: str
    rank: int | None = None
    path: str = ""
    """File it can be read in, relative to the run directory."""
    text: str = ""
    """The lines that matter."""


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is newer than the one that was started from, and why it was passed over."""

    step: int | None = None
    uuid: str = ""
    name: str
    """Of its folder."""
    why: str


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    """Where the attempt after an incident starts from."""

    attempt: int
    source: str
    """storage, memory, peer, or beginning."""
    step: int | None = None
    uuid: str = ""
    """Of the checkpoint's manifest."""
    address: str = ""
    created_unix_s: float | None = None
    steps_lost: int | None = None
    """Steps that are made again, as far as they can be reckoned."""
    lost_s: float | None = None
    """From the checkpoint to the onset of the incident."""
    passed_over: tuple[Skipped, ...] = ()
    unsure: tuple[str, ...] = ()
    """What nodes do not see of it."""


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One detected failure. All times are seconds since the epoch; None is 'not yet' or 'never'."""

    schema: int = RUN_DIR_SCHEMA
    id: int
    attempt: int
    symptom: str
    onset_s: float
    detected_s: float
    decided_s: float
    resumed_s: float | None = None
    """First step of the next attempt (or its first line of output where steps are not counted); of what was only reported, when
    ranks went on."""
    verdict: Verdict
    action: Action
    resume: Resume | None = None
    """None: no attempt follows, none of its nodes has a folder of checkpoints (--ckpt-dir), or it is not chosen yet."""
    evidence: tuple[Evidence, ...] = ()
