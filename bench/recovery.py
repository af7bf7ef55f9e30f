"""How long until a job whose worker was killed works again, and how often it does: torchrun and robust-run.

    python bench/recovery.py --restarts 20 --ranks 2,4

The job is a loop of gloo all_reduce. Each attempt runs for a while, then one rank (each in turn) gets SIGKILL. The
restart
counts as a success if in the attempt that directly follows all ranks complete an all_reduce within --timeout-s. After
a failure the job is ended and counting goes on with a fresh one; the sides take turns, a job of a few restarts each.
Durations count from the kill, over successful restarts. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import collections
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from sidebyside import (
    MARKS,
    SIDES,
    Figures,
    Job,
    Marks,
    add_common_options,
    end_job,
    launcher_command,
    numbers,
    print_figures,
    print_result,
    sides,
    start_job,
    unwind_on_sigterm,
)

RESTARTS_PER_JOB = 5
LOOK_EVERY_S = 0.02
FIRST_ATTEMPT_LIMIT_S = 60.0
MAX_BROKEN_STARTS = 3
"""So many jobs that break untouched end the bench for their side."""

WORKER = f"""import time; T0 = time.monotonic()
{MARKS}
mark("first_line", T0)
import torch
import torch.distributed as dist
mark("torch_imported", time.monotonic())
dist.init_process_group("gloo")
step = 0
while True:
    dist.all_reduce(torch.ones(1))
    step += 1
    if step == 1:
        mark("first_all_reduce", time.monotonic())
    if step == 5:
        mark("fifth_step", time.monotonic())
    time.sleep(0.02)
"""


class Side:
    """One launcher at one number of ranks: what its restarts came to."""

    def __init__(self, name: str, args: argparse.Namespace, ranks: int) -> None:
        self.name = name
        self.ranks = ranks
        self.outcomes: list[str] = []
        """Of each restart: recovered, extra_restart, timeout or launcher_exited."""
        self.broken_starts = 0
        """Jobs that did not start, or broke before they were touched."""
        self._args = args
        self._command = launcher_command(args, name, ranks, "--max-restarts", "1000")

    @property
    def wanted(self) -> int:
        """Restarts still to be tried."""
        return 0 if self.broken_starts >= MAX_BROKEN_STARTS else int(self._args.restarts) - len(self.outcomes)

    def run_job(self, figures: Figures) -> None:
        """Start a fresh job and try up to five restarts on it, or fewer: none after one that failed."""
        with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
            script = os.path.join(folder, "worker.py")
            with open(script, "w", encoding="utf-8") as file:
                file.write(WORKER)
            job = start_job([*self._command, script], folder)
            try:
                if self._wait(job, lambda: self._all_noted(job.marks(0), "fifth_step"), FIRST_ATTEMPT_LIMIT_S):
                    self.broken_starts += 1
                    print(f"{self.name}: the job did not start\n{job.output()}", flush=True)
                    return
                for attempt in range(min(RESTARTS_PER_JOB, self.wanted)):
                    time.sleep(self._args.run_s)
                    if job.launcher.poll() is not None or job.has_attempt(attempt + 1):
                        print(f"{self.name}: the job broke by itself, nothing was counted\n{job.output()}", flush=True)
                        self.broken_starts += 1
                        break
                    self.outcomes.append(self._restart(job, attempt, figures))
                    if self.outcomes[-1] != "recovered":
                        break
            finally:
                end_job(job)

    def _restart(self, job: Job, attempt: int, figures: Figures) -> str:
        """Kill a rank and watch the next attempt. Returns the outcome."""
        victim = job.pid_of(attempt, len(self.outcomes) % self.ranks)
        killed_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)  # it was alive a moment ago, and nothing else kills it
        following = attempt + 1

        def decided() -> bool:
            return self._all_noted(job.marks(following), "first_all_reduce") or job.has_attempt(following + 1)

        trouble = self._wait(job, decided, self._args.timeout_s)
        marks = job.marks(following)
        if not self._all_noted(marks, "first_all_reduce"):
            return trouble or "extra_restart"
        figures.add(self.name, figures_of(killed_s, marks))
        # Else the next kill could come before every rank has seen the first all_reduce end.
        self._wait(job, lambda: self._all_noted(job.marks(following), "fifth_step"), self._args.timeout_s)
        return "recovered"

    def _all_noted(self, marks: Marks, note: str) -> bool:
        return len(marks) == self.ranks and all(note in notes for notes in marks.values())

    @staticmethod
    def _wait(job: Job, condition: Callable[[], bool], limit_s: float) -> str:
        """Wait for a condition. Returns why it did not come true, else an empty string."""
        deadline_s = time.monotonic() + limit_s
        while not condition():
            if job.launcher.poll() is not None:
                return "launcher_exited"
            if time.monotonic() > deadline_s:
                return "timeout"
            time.sleep(LOOK_EVERY_S)
        return ""

    def summary(self) -> dict[str, Any]:
        """How many restarts were tried, and what they came to."""
        return {
            "tried": len(self.outcomes),
            "succeeded": self.outcomes.count("recovered"),
            "outcomes": dict(collections.Counter(self.outcomes)),
            "broken_starts": self.broken_starts,
        }


def figures_of(killed_s: float, marks: Marks) -> dict[str, float]:
    """Durations from the kill to what the workers of the next attempt noted."""
    first_lines = [notes["first_line"] for notes in marks.values()]
    return {
        "first_line_first_rank_s": min(first_lines) - killed_s,
        "first_line_last_rank_s": max(first_lines) - killed_s,
        "torch_imported_last_rank_s": max(notes["torch_imported"] for notes in marks.values()) - killed_s,
        "first_all_reduce_last_rank_s": max(notes["first_all_reduce"] for notes in marks.values()) - killed_s,
    }


def measure(args: argparse.Namespace, ranks: int, deadline_s: float) -> dict[str, Any]:
    """All restarts at one number of ranks, the sides in turns, and their table. Returns the case for the JSON line."""
    measured = [Side(name, args, ranks) for name in sides(args)]
    figures = Figures()
    while any(side.wanted > 0 for side in measured) and time.monotonic() < deadline_s:
        for side in measured:
            if side.wanted > 0 and time.monotonic() < deadline_s:
                side.run_job(figures)
        counts = ", ".join(f"{side.name} {side.outcomes.count('recovered')}/{len(side.outcomes)}" for side in measured)
        print(f"{ranks} ranks, recovered so far: {counts}", flush=True)
    if any(side.wanted > 0 for side in measured):
        print(f"stopped at {ranks} ranks: --limit-s {args.limit_s:.0f} is over", flush=True)
    summary = figures.summary()
    print_figures(f"{ranks} ranks, from the SIGKILL of one", summary)
    for side in measured:
        restarts = side.summary()
        print(
            f"  {side.name}: {restarts['succeeded']} of {restarts['tried']} restarts succeeded {restarts['outcomes']}"
        )
    restarts = {side.name: side.summary() for side in measured}
    return {"case": "recovery", "nproc": ranks, "restarts": restarts, "figures": summary}


def main() -> int:
    """Run the bench. Returns 1 if a side could not be measured at all."""
    parser = argparse.ArgumentParser(description="Recovery after a SIGKILL: torchrun and robust-run, side by side.")
    parser.add_argument("--restarts", type=int, default=20, help="restarts to try on each side")
    parser.add_argument("--ranks", type=numbers, default=[2, 4], help="numbers of workers, as in 2,4")
    parser.add_argument("--timeout-s", type=float, default=20.0, help="a restart that takes longer has failed")
    parser.add_argument("--run-s", type=float, default=2.0, help="how long an attempt works before the next kill")
    parser.add_argument("--quick", action="store_true", help="4 restarts at 2 ranks")
    add_common_options(parser, limit_s=1500)
    args = parser.parse_args()
    unwind_on_sigterm()
    if args.quick:
        args.restarts, args.ranks = 4, [2]
    deadline_s = time.monotonic() + args.limit_s
    results = [measure(args, ranks, deadline_s) for ranks in args.ranks]
    commands = {
        side: subprocess.list2cmdline(launcher_command(args, side, 2, "--max-restarts", "1000", "worker.py"))
        for side in SIDES
    }
    print_result("recovery", results, timeout_s=args.timeout_s, run_s=args.run_s, commands=commands)
    return int(any(side["tried"] == 0 for result in results for side in result["restarts"].values()))


if __name__ == "__main__":
    sys.exit(main())
