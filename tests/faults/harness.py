"""Runs one line of the fault matrix under `robust-run`, as a user would start it, and tells what came of it.

    outcome = try_out(Run(case, "tp_dp", 4, "middle", 0), folder, Settings())

A fault counts from the note that the program leaves just before it strikes. All times are CLOCK_MONOTONIC, which is one clock
for all processes and simulated hosts of a machine. Everything waits with a limit, and nothing outlives a run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parent.parent))

from flight import TRIGGER
from jobs import running
from matrix import Run
from plan import VARIABLE, Plan, note, read_beat

PROGRAM = str(Path(__file__).with_name("program.py"))
TRACING_OPTIONS = ("--on-hang", "report")
START_S, DUMP_S, STOP_S = 90.0, 6.0, 10.0
CUT_AFTER_STEPS = 40
USERS_SITECUSTOMIZE = "import builtins\nbuiltins.USERS_SITECUSTOMIZE = 'ran'\n"


@dataclass(frozen=True)
class Settings:
    """How runs are made. Times in seconds."""

    deadline_s: float = 25.0
    """A fault that is not judged so long after it struck is missed."""
    negative_s: float = 25.0
    """For so long nothing may be found."""
    slow_round_s: float = 1.0
    """A round of measuring stragglers; several must agree."""
    rounds: int = 5
    dumps: bool = False
    """Ask the program for its flight recorder's dumps when all is over."""
    options: tuple[str, ...] = ()
    """More options of the launcher."""

    def limit_s(self, run: Run) -> float:
        """Return for how long a fault may take to be judged."""
        return self.deadline_s + (self.slow_round_s * (self.rounds + 3) if run.case.slow else 0.0)


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
        found = f"{self.kind or '-'} {self.ranks} {self.verdict_s or 0:.1f} s: {self.sentence}"
        return f"{word:<11}{self.run}: {'/'.join(self.expected)} {self.at_fault} -> {found}"


class StartedJob(Protocol):
    """What a job on one host and one on several have in common."""

    run_dir: Path

    def journal(self) -> list[dict[str, Any]]:
        """Return the journal's lines so far."""
        ...


@dataclass
class Watch:
    """A run while it goes on."""

    run: Run
    plan: Plan
    job: StartedJob
    ended: Callable[[], int | None]
    """The exit code, once all is over."""
    strike: Callable[[], None] | None = None
    """Does the fault from outside, where the program cannot."""

    def steps(self) -> list[int]:
        """Return how many steps each rank has made."""
        return [read_beat(self.plan.notes, rank)[0] for rank in range(self.run.world)]

    def fired_at_s(self) -> float | None:
        """Return when the fault struck; None if it has not on every rank at fault."""
        notes = [Path(self.plan.notes, f"fired-{self.plan.fault}-{rank}") for rank in self.strikers()]
        times = [float(note.read_text()) for note in notes if note.exists()]
        return max(times) if times and len(times) == len(notes) else None

    def strikers(self) -> tuple[int, ...]:
        """Return the ranks whose note says that it struck."""
        return self.plan.ranks[:1] if self.run.case.who == "link" else self.plan.ranks

    def incident(self) -> dict[str, Any] | None:
        """Return the first incident."""
        for path in sorted((self.job.run_dir / "incidents").glob("[0-9]*.json"))[:1]:
            try:
                found: dict[str, Any] = json.loads(path.read_text())
            except (OSError, ValueError):
                return None  # being written
            return found
        return None

    def when(self, *types: str) -> float | None:
        """Return the monotonic time of the first event or action of one of these types."""
        for line in self.job.journal():
            entry = line.get("event") or line.get("action") or {}
            if entry.get("type") in types:
                return float(line["mono"])
        return None

    def wait(self, condition: Callable[[], Any], timeout_s: float) -> bool:
        """Wait until a condition holds or the job is over, at most so long; whether it holds."""
        give_up_at = time.monotonic() + timeout_s
        while not condition():
            if self.ended() is not None or time.monotonic() > give_up_at:
                return bool(condition())
            time.sleep(0.05)
        return True


def try_out(run: Run, folder: Path, settings: Settings) -> Outcome:
    """Make a run in an empty folder."""
    case = run.case
    outcome = Outcome(
        run.name, case.number, run.layout, run.world, run.position, run.seed, run.tuning, case.negative,
        sorted(run.kinds), list(run.at_fault),
    )  # fmt: skip
    notes = folder / "notes"
    notes.mkdir(parents=True)
    plan = run.plan(str(notes))
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
        watch.wait(lambda: min(watch.steps()) >= CUT_AFTER_STEPS, START_S)
        watch.strike()
    watch.wait(lambda: watch.fired_at_s() is not None or watch.incident(), START_S)
    fired_at_s = watch.fired_at_s()
    begun_s = fired_at_s if fired_at_s is not None else time.monotonic()
    watch.wait(lambda: watch.incident(), max(0.0, begun_s + settings.limit_s(watch.run) - time.monotonic()))
    outcome.watched_s = time.monotonic() - begun_s
    outcome.fired = watch.fired_at_s() is not None
    _take_verdict(watch, outcome, fired_at_s)
    if not outcome.fired and not outcome.judged:
        outcome.problem = f"the fault did not strike within {START_S:g} s; steps made: {watch.steps()}"


def _watch_negative(watch: Watch, outcome: Outcome, settings: Settings) -> None:
    begun = watch.wait(lambda: min(watch.steps()) > 0 or watch.incident(), START_S)
    begun_s = time.monotonic()
    watch.wait(lambda: watch.incident(), settings.negative_s)
    outcome.watched_s = time.monotonic() - begun_s
    outcome.fired = begun
    _take_verdict(watch, outcome, None)
    if not begun and not outcome.judged:
        outcome.problem = f"the job made no step within {START_S:g} s"
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
    decided_at_s = watch.when("record_incident") or time.monotonic()
    if fired_at_s is None or decided_at_s < fired_at_s:
        outcome.early = True
        outcome.exact = outcome.kind_right = False
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


# --- where it runs ---------------------------------------------------------------------------------------------------


def _options(run: Run, settings: Settings) -> list[str]:
    rounds = ["--slow-round", f"{settings.slow_round_s:g}"]
    per_host = str(run.world // run.case.hosts)
    return ["--nproc-per-node", per_host, "--max-restarts", "0", *TRACING_OPTIONS, *rounds, *settings.options]


def _environment(run: Run, plan: Plan, folder: Path) -> dict[str, str]:
    variables = {VARIABLE: plan.to_json(), "OMP_NUM_THREADS": "1", "ROBUST_WARM_DAEMON": "off"}
    if run.case.fault == "own_sitecustomize":
        site = folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(USERS_SITECUSTOMIZE)
        before = os.environ.get("PYTHONPATH")
        variables["PYTHONPATH"] = f"{site}{os.pathsep}{before}" if before else str(site)
    return variables


@contextmanager
def on_one_host(run: Run, plan: Plan, folder: Path, settings: Settings) -> Iterator[Watch]:
    """Start the job here, and end it whatever happens."""
    env = _environment(run, plan, folder)
    with running(folder, *_options(run, settings), PROGRAM, env=env, cwd=folder) as job:
        yield Watch(run, plan, job, job.process.poll)
        job.process.terminate()
        with suppress(subprocess.TimeoutExpired):  # what is left of it then ends with `running`
            job.finish(STOP_S)


@contextmanager
def on_hosts(run: Run, plan: Plan, folder: Path, settings: Settings) -> Iterator[Watch]:
    """Start the job on simulated hosts; needs root."""
    from clusters import start_all
    from hosts import Cluster

    options = ["--nnodes", str(run.case.hosts), *_options(run, settings)]
    with Cluster(run.case.hosts, folder) as cluster:
        env = _environment(run, plan, folder)
        job = start_all(cluster, PROGRAM, tmp_path=folder, options=options, env=env)

        def ended() -> int | None:
            codes = [launcher.process.poll() for launcher in job.launchers]
            return None if None in codes else max(code for code in codes if code is not None)

        def cut_link() -> None:
            here, there = (cluster[host] for host in run.cut)
            for rank in plan.ranks[:1]:
                note(plan, f"fired-{plan.fault}-{rank}", repr(time.monotonic()))
            here.cut_from(there)

        yield Watch(run, plan, job, ended, cut_link if run.case.who == "link" else None)
        job.kill_everything()
