"""How long until a job whose worker was killed works again, and how often it does: robust-run and other launchers.

    python bench/recovery.py --restarts 20 --ranks 2,4
    python bench/recovery.py --sides torchrun,robust_run --ranks 2

Sides: torchrun as it is, torchrun with a store for every attempt, NVRx's ft_launcher (installed on demand into a virtual
environment of its own), robust-run, and robust-run without warm workers. One that cannot be had here is left out with a
line that says why.

The job is a loop of all_reduce (gloo, or with --backend nccl NCCL on one GPU) and optimizer steps. Each attempt runs for
--run-s, on every side alike, so that standby workers are ready; then one rank (each in turn) gets SIGKILL. The restart counts as
a success if in the attempt that directly follows all ranks make a step within --timeout-s. After a failure the job is ended and
counting goes on with a fresh one; the sides take turns, a job of a few restarts each, the one that has had fewest first.
Durations count from the kill, over successful restarts. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import collections
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from launchers import LABELS, NVRX, OWN_STORE, Launcher, add_side_options, available
from sidebyside import (
    BACKEND_VARIABLE,
    BASELINE,
    OURS,
    TALKER,
    Figures,
    Job,
    Marks,
    add_launcher_options,
    end_job,
    numbers,
    print_result,
    shown,
    start_job,
    unwind_on_sigterm,
)
from standbys import Standbys, print_standbys

RESTARTS_PER_JOB = 5
LOOK_EVERY_S = 0.02
FIRST_ATTEMPT_LIMIT_S = 60.0
MAX_BROKEN_STARTS = 3
"""So many jobs that break untouched end the bench for their side."""

COLUMNS = {
    "first_line_first_rank_s": "first line",
    "first_line_last_rank_s": "all first lines",
    "torch_imported_last_rank_s": "torch imported",
    "first_all_reduce_last_rank_s": "first all_reduce",
    "first_step_last_rank_s": "first step",
}
RATIOS = {"ratio": BASELINE, "ratio_own_store": OWN_STORE, "ratio_nvrx": NVRX}
"""What ours is a fraction of, by name in the JSON line."""


class Side:
    """One launcher at one number of ranks: what its restarts came to."""

    def __init__(self, launcher: Launcher, args: argparse.Namespace, ranks: int) -> None:
        self.name = launcher.name
        self.ranks = ranks
        self.outcomes: list[str] = []
        """Of each restart: recovered, extra_restart, timeout or launcher_exited."""
        self.broken_starts = 0
        """Jobs that did not start, or broke before they were touched."""
        self.standbys = Standbys() if launcher.name == OURS else None
        self._args = args
        self._command = launcher.command(ranks, "--max-restarts", "1000")
        self._settings = {**launcher.settings, **backend_settings(args.backend)}

    @property
    def wanted(self) -> int:
        """Restarts still to be tried."""
        return 0 if self.broken_starts >= MAX_BROKEN_STARTS else int(self._args.restarts) - len(self.outcomes)

    @property
    def had(self) -> int:
        """Turns it has had: restarts, and jobs that gave none."""
        return len(self.outcomes) + self.broken_starts

    def run_job(self, figures: Figures) -> None:
        """Start a fresh job and try up to five restarts on it, or fewer: none after one that failed."""
        with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
            script = os.path.join(folder, "worker.py")
            with open(script, "w", encoding="utf-8") as file:
                file.write(TALKER)
            job = start_job([*self._command, script], folder, self._settings)
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
        if self.standbys is not None:
            self.standbys.look(job, attempt)
        victim = job.pid_of(attempt, len(self.outcomes) % self.ranks)
        killed_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)  # it was alive a moment ago, and nothing else kills it
        following = attempt + 1

        def decided() -> bool:
            return self._all_noted(job.marks(following), "first_step") or job.has_attempt(following + 1)

        trouble = self._wait(job, decided, self._args.timeout_s)
        marks = job.marks(following)
        durations: dict[str, float] = {}
        if self._all_noted(marks, "first_step"):
            durations, trouble = figures_of(killed_s, marks), "recovered"
            figures.add(self.name, durations)
            # Else the next kill could come before every rank has seen the first all_reduce end.
            self._wait(job, lambda: self._all_noted(job.marks(following), "fifth_step"), self._args.timeout_s)
        if self.standbys is not None:
            self.standbys.restarted(job, following, trouble or "extra_restart", durations)
        return trouble or "extra_restart"

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


def backend_settings(backend: str) -> dict[str, str]:
    """Return the variables that have the workers talk over this backend; with nccl on one GPU that they share."""
    if backend != "nccl":
        return {}
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests"))
    from gpu.ground import APART

    return {BACKEND_VARIABLE: backend, **APART}


def figures_of(killed_s: float, marks: Marks) -> dict[str, float]:
    """Durations from the kill to what the workers of the next attempt noted."""
    first_lines = [notes["first_line"] for notes in marks.values()]
    return {
        "first_line_first_rank_s": min(first_lines) - killed_s,
        "first_line_last_rank_s": max(first_lines) - killed_s,
        "torch_imported_last_rank_s": max(notes["torch_imported"] for notes in marks.values()) - killed_s,
        "first_all_reduce_last_rank_s": max(notes["first_all_reduce"] for notes in marks.values()) - killed_s,
        "first_step_last_rank_s": max(notes["first_step"] for notes in marks.values()) - killed_s,
    }


def measure(args: argparse.Namespace, launchers: list[Launcher], ranks: int, deadline_s: float) -> dict[str, Any]:
    """All restarts at one number of ranks, the sides in turns, and their table. Returns the case for the JSON line."""
    measured = [Side(launcher, args, ranks) for launcher in launchers]
    figures = Figures()
    while wanting := [side for side in measured if side.wanted > 0]:
        if time.monotonic() > deadline_s:
            print(f"stopped at {ranks} ranks: --limit-s {args.limit_s:.0f} is over", flush=True)
            break
        side = min(wanting, key=lambda side: side.had)
        side.run_job(figures)
        print(f"{ranks} ranks, {side.name}: {recovered(side)} restarts recovered so far", flush=True)
    against = BASELINE if figures.has(BASELINE) or not figures.has(OWN_STORE) else OWN_STORE
    case = {
        "case": "recovery",
        "nproc": ranks,
        "restarts": {side.name: side.summary() for side in measured},
        "figures": figures.summary({**RATIOS, "ratio": against}),
        "ratio_against": against,
    }
    print_case(case, measured)
    for side in measured:
        if side.standbys is not None:
            case |= side.standbys.summary()
            print_standbys(ranks, case)
    return case


def recovered(side: Side) -> str:
    """Successes of how many restarts, for people."""
    return f"{side.outcomes.count('recovered')} of {len(side.outcomes)}"


def print_case(case: dict[str, Any], measured: list[Side]) -> None:
    """A table: a line per side, a column per figure, and ours as fractions of the others'."""
    figures, against = case["figures"], case["ratio_against"]
    print(f"\n{case['nproc']} ranks, seconds from the SIGKILL of one worker: median (min-max)")
    print(f"  {'':<34}{'recovered':>10}" + "".join(f"{title:>22}" for title in COLUMNS.values()))
    for side in measured:
        cells = "".join(f"{shown(figures.get(name, {}).get(side.name)):>22}" for name in COLUMNS)
        print(f"  {LABELS[side.name]:<34}{recovered(side):>10}{cells}")
    for ratio, other in {
        "ratio": against,
        **{key: side for key, side in RATIOS.items() if side not in (BASELINE, against)},
    }.items():
        values = [figures.get(name, {}).get(ratio) for name in COLUMNS]
        if any(value is not None for value in values):
            cells = "".join(f"{'-' if value is None else format(value, '.3f'):>22}" for value in values)
            print(f"  {'robust-run / ' + LABELS[other]:<44}{cells}")
    if against != BASELINE and any(side.name == BASELINE for side in measured):
        print(f"  torchrun never recovered at {case['nproc']} ranks: `ratio` is against {LABELS[against]}")
    for side in measured:
        if failures := {
            what: count for what, count in case["restarts"][side.name]["outcomes"].items() if what != "recovered"
        }:
            print(f"  {LABELS[side.name]}: {failures}")
    sys.stdout.flush()


def main() -> int:
    """Run the bench. Returns 1 if a side could not be measured at all."""
    parser = argparse.ArgumentParser(description="Recovery after a SIGKILL: robust-run and others, side by side.")
    parser.add_argument("--restarts", type=int, default=20, help="restarts to try on each side")
    parser.add_argument("--ranks", type=numbers, default=[2, 4], help="numbers of workers, as in 2,4")
    parser.add_argument("--timeout-s", type=float, default=20.0, help="a restart that takes longer has failed")
    parser.add_argument("--run-s", type=float, default=3.0, help="how long an attempt works before the next kill")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo", help="nccl: all ranks on the first GPU")
    parser.add_argument("--quick", action="store_true", help="4 restarts at 2 ranks")
    add_side_options(parser)
    add_launcher_options(parser, limit_s=3000)
    args = parser.parse_args()
    unwind_on_sigterm()
    if args.quick:
        args.restarts, args.ranks = 4, [2]
    launchers, skipped = available(args)
    deadline_s = time.monotonic() + args.limit_s
    results = [measure(args, launchers, ranks, deadline_s) for ranks in args.ranks]
    print_result(
        "recovery",
        results,
        timeout_s=args.timeout_s,
        run_s=args.run_s,
        commands={launcher.name: launcher.shown(2, "--max-restarts", "1000", "worker.py") for launcher in launchers},
        skipped=skipped,
        versions={launcher.name: launcher.version for launcher in launchers if launcher.version},
    )
    return int(any(side["tried"] == 0 for result in results for side in result["restarts"].values()))


if __name__ == "__main__":
    sys.exit(main())
