"""The words of a fleet: what is kept of one run, small enough to be kept for ever. No behaviour.

A run writes its facts once, when it is over; of a run that lives, or that died without writing them, they are read from its run
directory. Times are seconds since the epoch, durations are seconds; None: not known, or not yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from robust_run.report.types import ActionName, VerdictKind

SCHEMA = 1
"""Files of another version are refused and counted, never guessed at."""

State = Literal["live", "done", "stopped", "failed", "lost"]
"""live: it runs. done, stopped, failed: as its journal says. lost: its controller is gone, and nothing says how it ended."""

Component = Literal["gpu", "network", "disk", "memory", "cpu", "storage", "program", "code", "node", "unknown"]
"""What part of a machine, or of the job, a fault was in. node: the whole node went, and nobody knows why."""

Began = Literal["cold", "warm", "standby"]
"""What an attempt started from."""


class Lost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Seconds without training that one incident cost, by phase, as `planning.course.PHASES` names them. Sums up to its cost."""

    detect: float = 0.0
    end: float = 0.0
    check: float = 0.0
    wait: float = 0.0
    launch: float = 0.0
    load: float = 0.0
    redo: float = 0.0


class IncidentFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One incident."""

    number: int
    at_s: float
    """Its onset."""
    symptom: str
    kind: VerdictKind
    component: Component = "unknown"
    trouble: str = ""
    """What the evidence says in the words of docs/health.md: cuda, host_memory, gpu.ecc, ...; check.compute: checks found it."""
    nodes: tuple[str, ...] = ()
    """Host names found at fault."""
    action: ActionName = "report"
    evicted: tuple[str, ...] = ()
    confidence: str = ""
    rule: str = ""
    code: str = ""
    """Version of the code that ran, where versions are kept."""
    source: str = ""
    """What the attempt after it began from: storage, memory, peer, beginning; empty: none did, or not known."""
    lost: Lost = Lost()


class StartFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one attempt's start cost."""

    attempt: int
    at_s: float
    nodes: int
    began: Began = "cold"
    ready_s: float | None = None
    """From the attempt's opening until all its workers ran."""
    first_step_s: float | None = None
    """From there until its first step."""


class CodeFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of the program's code in this run."""

    version: str
    failed: int = 0
    """So many incidents were its own."""
    rolled_back: bool = False


class RunFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run."""

    schema: int = SCHEMA
    run_id: str
    name: str = ""
    """The job's name: its script, or what people called it."""
    place: str = ""
    """Its run directory."""
    began_s: float
    until_s: float
    """Its end; of one that lives or is lost: what is known of it ends here."""
    state: State = "lost"
    nodes: int = 1
    """Nodes of its world, standbys not counted."""
    ranks: int = 1
    gpus: int = 0
    """Of all its nodes; 0: none, or not known."""
    ettr: float | None = None
    effective_s: float | None = None
    steps: int | None = None
    step_s: float | None = None
    """Median time of a step."""
    node_s: Mapping[str, float] = {}
    """By host: how long it was part of the job (standbys included). What rates are divided by."""
    incidents: tuple[IncidentFacts, ...] = ()
    other: Lost = Lost()
    """What no incident cost: the first start, an attempt whose controller was gone, the end. With what the incidents cost it sums
    up to the time that was not effective."""
    starts: tuple[StartFacts, ...] = ()
    code: tuple[CodeFacts, ...] = ()
    saves: int = 0
    save_every_s: float | None = None
    """Median time between two saves to storage."""
    blocked_s: float | None = None
    """Median time that training stood still for one."""
    version: str = ""
    """Of robust-run."""
    gap_s: float = 0.0
    """So long before its end nothing could be written down (a full disk): that time is not part of what is known here."""
