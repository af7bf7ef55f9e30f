"""Runs one line of the fault matrix under `robust-run`, as a user would start it, and tells what came of it.

    outcome = try_out(Run(case, "tp_dp", 4, "middle", 0), folder, Settings())

A fault counts from the note that the program leaves just before it strikes. All times are CLOCK_MONOTONIC, which is one clock
for all processes and simulated hosts of a machine. Everything waits with a limit, and nothing outlives a run.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from flight import TRIGGER
from matrix import Run
from plan import note, read_beat
from watch import Settings, Watch, on_hosts, on_one_host

__all__ = ["Outcome", "Settings", "try_out"]

DUMP_S = 6.0
CUT_AFTER_STEPS = 40
HARMLESS_STEPS = 100
"""A fault after which all ranks make so many more steps was none: such a run says nothing about verdicts."""


@dataclass
class Outcome:
    """What came of a run."""

    run: str
    number: str
    layout: str
    world: int
    position: str
    seed: int
    tuning: bool
    negative: bool
    expected: list[str]
    at_fault: list[int]
    watched_s: float = 0.0
    """For how long a verdict could have come."""
    fired: bool = False
    suspect_s: float | None = None
    """From the fault to the suspicion."""
    verdict_s: float | None = None
    """From the fault to the verdict."""
    since_progress_s: float | None = None
    """From the last step of any rank to the verdict."""
    kind: str = ""
    ranks: list[int] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    over_evicted: list[int] = field(default_factory=list)
    confidence: str = ""
    rule: str = ""
    sentence: str = ""
    exact: bool = False
    """Those at fault were named and nobody else."""
    kind_right: bool = False
    action: str = ""
    """What was done about it: report is nothing, or nothing yet."""
    action_right: bool = False
    """It was acted on if it can be nothing else than a fault, and only then. Scored apart from the verdict."""
    early: bool = False
    """A verdict came before the fault struck: a false alarm."""
    exit_code: int | None = None
    problem: str = ""
    """Why this run says nothing about verdicts."""
    dumps: str = ""
    """Folder of the flight recorder's dumps."""

    @property
    def judged(self) -> bool:
        """Whether there was a verdict."""
        return bool(self.kind)

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    def line(self) -> str:
        """For people."""
        if self.problem:
            return f"NO RESULT  {self.run}: {self.problem}"
        if self.negative:
            return f"{'FALSE ALARM' if self.judged else 'quiet':<11}{self.run}: {self.sentence or '-'}"
        word = "exact" if self.exact and self.kind_right else "exact, kind" if self.exact else "WRONG"
        word = word if self.judged else "MISSED"
        found = f"{self.kind or '-'} {self.ranks} {self.verdict_s or 0:.1f} s, {self.action or '-'}: {self.sentence}"
        return f"{word:<11}{self.run}: {'/'.join(self.expected)} {self.at_fault} -> {found}"


def try_out(run: Run, folder: Path, settings: Settings) -> Outcome:
    """Make a run in an empty folder."""
    case = run.case
    outcome = Outcome(
        run.name, case.number, run.layout, run.world, run.position, run.seed, run.tuning, case.negative,
        sorted(run.kinds), list(run.at_fault),
    )  # fmt: skip
    notes = folder / "notes"
    notes.mkdir(parents=True)
    plan = replace(run.plan(str(notes)), dumps=settings.dumps)
    with (on_hosts if case.hosts > 1 else on_one_host)(run, plan, folder, settings) as watch:
        if case.negative:
            _watch_negative(watch, outcome, settings)
        else:
            _watch_fault(watch, outcome, settings)
        if settings.dumps:
            outcome.dumps = _ask_for_dumps(watch)
        outcome.exit_code = watch.ended()
    return outcome


def _watch_fault(watch: Watch, outcome: Outcome, settings: Settings) -> None:
    if watch.strike is not None:
        watch.wait(lambda: min(watch.steps()) >= CUT_AFTER_STEPS, settings.start_s)
        watch.strike()
    watch.wait(lambda: watch.fired_at_s() is not None or watch.incident(), settings.start_s)
    fired_at_s = watch.fired_at_s()
    begun_s = fired_at_s if fired_at_s is not None else time.monotonic()
    watch.wait(lambda: watch.incident(), max(0.0, begun_s + settings.limit_s(watch.run) - time.monotonic()))
    outcome.watched_s = time.monotonic() - begun_s
    outcome.fired = watch.fired_at_s() is not None
    if not watch.run.case.slow and min(watch.steps()) > watch.plan.step + HARMLESS_STEPS and not watch.incident():
        outcome.problem = f"the fault struck, and the job went on as if nothing were: steps made: {watch.steps()}"
    _take_verdict(watch, outcome, watch.fired_at_s())  # on a busy machine it may have struck only now
    if not outcome.fired and not outcome.judged:
        outcome.problem = f"the fault did not strike within {settings.start_s:g} s; steps made: {watch.steps()}"


def _watch_negative(watch: Watch, outcome: Outcome, settings: Settings) -> None:
    begun = watch.wait(lambda: min(watch.steps()) > 0 or watch.incident(), settings.start_s)
    begun_s = time.monotonic()
    watch.wait(lambda: watch.incident(), settings.negative_s)
    if watch.run.case.fault.startswith("own_"):  # its steps take longer where others have the CPUs
        watch.wait(lambda: watch.incident() or watch.own_notes(), settings.start_s)
    outcome.watched_s = time.monotonic() - begun_s
    outcome.fired = begun
    _take_verdict(watch, outcome, None)
    if not begun and not outcome.judged:
        outcome.problem = f"the job made no step within {settings.start_s:g} s"
    elif watch.ended() not in (None, 0) and not outcome.judged:
        outcome.problem = f"the job failed with {watch.ended()}"


def _take_verdict(watch: Watch, outcome: Outcome, fired_at_s: float | None) -> None:
    incident = watch.incident()
    if incident is None:
        return
    verdict = incident["verdict"]
    outcome.kind, outcome.ranks = verdict["kind"], list(verdict["ranks"])
    outcome.nodes, outcome.confidence = list(verdict["nodes"]), verdict["confidence"]
    outcome.rule, outcome.sentence = verdict["rule"], verdict["sentence"]
    outcome.over_evicted = list(verdict.get("over_evicted") or [])
    rule_right = not watch.run.case.rule or outcome.rule == watch.run.case.rule
    outcome.kind_right = outcome.kind in watch.run.kinds and rule_right
    outcome.exact = not watch.run.case.negative and watch.run.is_exact(tuple(outcome.ranks))
    outcome.action = incident["action"]["name"]
    outcome.action_right = (outcome.action != "report") == watch.run.case.acted_on
    decided_at_s = watch.judged_at_s() or time.monotonic()
    if fired_at_s is None or decided_at_s < fired_at_s:
        outcome.early = True
        outcome.exact = outcome.kind_right = outcome.action_right = False
        return
    suspected_at_s = watch.when("hang_suspected", "rank_exited")
    outcome.suspect_s = None if suspected_at_s is None else round(suspected_at_s - fired_at_s, 3)
    outcome.verdict_s = round(decided_at_s - fired_at_s, 3)
    beats = [read_beat(watch.plan.notes, rank)[1] for rank in range(watch.run.world)]
    outcome.since_progress_s = round(decided_at_s - max(beats), 3) if any(beats) else None


def _ask_for_dumps(watch: Watch) -> str:
    folder = Path(watch.plan.notes, "dumps")
    note(watch.plan, TRIGGER)
    watch.wait(lambda: len(list(folder.glob("rank_*"))) == watch.run.world, DUMP_S)
    return str(folder)
