"""`examples/rl/dapo.py` while all of its roles are struck, one fault after the other, until it ends by itself.

    problem = try_out(Training(number=3, synchronous=True, words=("--steps", "12")), folder)

A fault is a kill or a stop of a worker, or the death of a launcher or of the process that leads; the next comes when this one is
healed and a few steps were made. A rollout that is stopped while the other does its work is let go on when the next is stopped:
of two nobody could say that it was not meant. Wanted: the reward or the steps that were asked for; each problem trained on or
dropped once; synchronous weights as of a run that nothing was done to; nothing left.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from jobs import Job, running, wait_for
from rl_jobs import file_of_roles, pids, recorded
from role_jobs import RoleJob

LIMIT_S = 2400.0
HEALED_S = 300.0
MEMBERS = ("trainer-0", "rollout-0", "rollout-1", "reward-0")
ACTS = ("kill worker", "kill worker", "kill launcher", "stop worker", "kill leader")
STEPS_BETWEEN = (1, 6)
LEADS_S = 90.0
"""A leader that dies four times in a row, each within a minute, ends the job: each here has longer."""


@dataclass(frozen=True)
class Training:
    """One training. `words`: for the trainer's command line."""

    number: int
    synchronous: bool
    words: tuple[str, ...]
    most_faults: int = 1000

    @property
    def name(self) -> str:
        """For people."""
        return " ".join((*(("synchronous",) if self.synchronous else ("asynchronous",)), *self.words))


@dataclass
class Struck:
    """What came of it."""

    faults: list[str]
    steps: int = 0
    reward: float = 0.0
    weights: str = ""
    problem: str = ""
    led_since_s: float = float("-inf")
    """When the process that leads was last killed."""
    stopped: int = 0
    """The worker that was stopped last."""


def try_out(training: Training, folder: Path, weights: str = "") -> Struck:
    """Carry it out. `weights`: the digest that it must end with; empty: any."""
    chance = random.Random(f"dapo/{training.number}")
    folder.mkdir(exist_ok=True)
    words = [*(["--synchronous"] if training.synchronous else []), *training.words]
    struck = Struck([])
    with running(folder, "--roles", str(file_of_roles(folder, "dapo", *words))) as job:
        try:
            wait_for(lambda: recorded(job.run_dir) or _is_over(job), "the first step", HEALED_S)
            while not _is_over(job) and len(struck.faults) < training.most_faults:
                _one_more(job, folder, chance, struck)
            code = job.finish(LIMIT_S)
            assert code == 0, f"it ended with {code}: {job.err[-2000:]}"
            _check(job.run_dir, struck)
            assert weights in ("", struck.weights), f"other weights: {struck.weights[:12]}, not {weights[:12]}"
            job.assert_nothing_left()
        except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
            struck.problem = f"{', '.join(struck.faults)}: {error!s:.1500}"
    return struck


def _is_over(job: Job) -> bool:
    return job.process.poll() is not None or (job.run_dir / "final.json").exists()


def _one_more(job: Job, folder: Path, chance: random.Random, struck: Struck) -> None:
    """Let a few steps be made, strike, and see what was struck come back; or the end of the job."""
    until = len(recorded(job.run_dir)) + chance.randint(*STEPS_BETWEEN)
    act, member = chance.choice(ACTS), chance.choice(MEMBERS)
    wait_for(lambda: len(recorded(job.run_dir)) >= until or _is_over(job), f"line {until} of the record", HEALED_S)
    if _is_over(job):
        return
    if act == "kill leader" and time.monotonic() - struck.led_since_s < LEADS_S:
        act = "kill worker"
    if act == "kill leader":
        struck.led_since_s = time.monotonic()
    if act == "stop worker":
        if struck.stopped in {pid for each in MEMBERS for pid in pids(job.run_dir, each)[-1:]}:
            os.kill(struck.stopped, signal.SIGCONT)
        struck.stopped = pids(job.run_dir, member)[-1]
    is_healed = _strike(job, RoleJob(job, folder), act, member)
    struck.faults.append(act if act == "kill leader" else f"{act} of {member}")
    wait_for(lambda: is_healed() or _is_over(job), f"what was struck to come back: {struck.faults[-1]}", HEALED_S)


def _strike(job: Job, roles: RoleJob, act: str, member: str) -> Callable[[], Any]:
    run = job.run_dir
    if act == "kill leader":
        leader = roles.leader()
        os.kill(leader, signal.SIGKILL)
        return lambda: roles.leader() != leader
    before = pids(run, member)
    if act == "kill launcher":
        os.kill(roles.launcher(member), signal.SIGKILL)
    else:
        os.kill(before[-1], signal.SIGKILL if act == "kill worker" else signal.SIGSTOP)
    if act == "stop worker" and member.startswith("rollout"):
        lines = len(recorded(run))
        return lambda: (
            len(pids(run, member)) > len(before) or len(recorded(run)) > lines + 10
        )  # the other does its work
    return lambda: len(pids(run, member)) > len(before)


def _check(run: Path, struck: Struck) -> None:
    final = json.loads((run / "final.json").read_text())
    struck.steps, struck.reward, struck.weights = final["step"], final["reward"], final["weights_sha256"]
    steps = {
        line["step"]: line for line in recorded(run) if line["step"] <= struck.steps
    }  # of one made again, the last
    assert sorted(steps) == list(range(1, struck.steps + 1)), "a step is missing"
    counted = Counter(number for line in steps.values() for fate in ("trained", "dropped") for number in line[fate])
    twice = [number for number, count in counted.items() if count > 1]
    assert not twice, f"problems {twice[:20]} count twice"
    missing = final["asked"] - len(counted) - final["refused"]
    assert 0 <= missing <= final["in_flight"], f"{missing} problems of {final['asked']} are lost"
