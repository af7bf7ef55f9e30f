"""A run of the matrix while it goes on: starts the job here or on simulated hosts, and sees how far it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parent.parent))

from jobs import running
from matrix import Run
from plan import VARIABLE, Plan, note, read_beat

PROGRAM = str(Path(__file__).with_name("program.py"))
STOP_S = 10.0
USERS_SITECUSTOMIZE = "import builtins\nbuiltins.USERS_SITECUSTOMIZE = 'ran'\n"


@dataclass(frozen=True)
class Settings:
    """How runs are made. Times in seconds."""

    deadline_s: float = 25.0
    """A fault that is not judged so long after it struck is missed."""
    negative_s: float = 25.0
    """For so long nothing may be found."""
    slow_deadline_s: float = 100.0
    """The same for a straggler: several rounds of measuring must agree, and each needs enough steps."""
    slow_round_s: float = 1.0
    """Length of such a round, at least."""
    start_s: float = 90.0
    """For so long a job may take to start, and its program to come to where a fault strikes."""
    dumps: bool = False
    """Ask the program for its flight recorder's dumps when all is over."""
    options: tuple[str, ...] = ()
    """More options of the launcher."""

    def limit_s(self, run: Run) -> float:
        """Return for how long a fault may take to be judged."""
        return self.slow_deadline_s if run.case.slow else self.deadline_s


class StartedJob(Protocol):
    """What a job on one host and one on several have in common."""

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        ...

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
        return self.plan.ranks[:1] if self.run.case.who in ("link", "pair") else self.plan.ranks

    def own_notes(self) -> list[Path]:
        """Return the notes that what the program has of its own has come to work."""
        return list(Path(self.plan.notes).glob("own-*"))

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

    def judged_at_s(self) -> float | None:
        """Return the monotonic time at which it was known who is at fault: to end an attempt that is acted on takes longer."""
        for line in self.job.journal():
            event, action = line.get("event") or {}, line.get("action") or {}
            if action.get("type") == "record_incident" or (event.get("type") == "inquired" and event.get("verdict")):
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


def _options(run: Run, settings: Settings) -> list[str]:
    rounds = ["--slow-round", f"{settings.slow_round_s:g}"]
    per_host = str(run.world // run.case.hosts)
    return ["--nproc-per-node", per_host, "--max-restarts", "0", *rounds, *settings.options]


def _environment(run: Run, plan: Plan, folder: Path) -> dict[str, str]:
    variables = {
        VARIABLE: plan.to_json(),
        "OMP_NUM_THREADS": "1",
        "ROBUST_WARM_DAEMON": os.environ.get("ROBUST_WARM_DAEMON", "off"),
    }
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
        job = start_all(cluster, PROGRAM, tmp_path=folder, options=options, env=env, admission=True)

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
