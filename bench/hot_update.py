"""How long from a change of the code to its first step: `robust update --when now`, and stopping and starting with torchrun.

    python bench/hot_update.py --updates 10 --ranks 2,4

Both sides run the same script, which imports its version from a file beside it, and reduces over gloo. For each update that
file is changed. robust-run is then told by the whole command as people type it: its start, the capture, the checks, the
sending and the switch count. torchrun gets SIGTERM, is waited for, and is started again. Durations count from the moment the
file is changed to the first all_reduce of the last rank that runs the new code. The sides take turns, each job runs for --run-s
between two updates, on both sides alike. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from typing import Any

from sidebyside import (
    BASELINE,
    MARKS,
    OURS,
    Figures,
    Job,
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

WORKER = f"""import time; T0 = time.monotonic()
{MARKS}
mark("first_line", T0)
import torch
import torch.distributed as dist
mark("torch_imported", time.monotonic())
import the_version
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
mark("version_%d" % the_version.NUMBER, time.monotonic())
while True:
    dist.all_reduce(torch.ones(1))
    time.sleep(0.02)
"""
START_LIMIT_S = 60.0
UPDATES_PER_JOB = 5
LOOK_EVERY_S = 0.01


class Side:
    """One launcher at one number of ranks, with a folder of code of its own."""

    def __init__(self, name: str, args: argparse.Namespace, ranks: int) -> None:
        self.name = name
        self.failed = 0
        self.done = 0
        self._args = args
        self._ranks = ranks
        self._version = 0

    def run_job(self, folder: str, figures: Figures) -> None:
        """Start a job and update it a few times."""
        code = os.path.join(folder, "code")
        os.mkdir(code)
        self._script = os.path.join(code, "worker.py")
        with open(self._script, "w", encoding="utf-8") as file:
            file.write(WORKER)
        self._change(code)
        job = self._start(folder)
        try:
            if self._wait(job) is None:
                self.failed += 1
                print(f"{self.name}: the job did not start\n{job.output()}", flush=True)
                return
            for _ in range(min(UPDATES_PER_JOB, self._args.updates - self.done)):
                time.sleep(self._args.run_s)
                began_s = time.monotonic()
                self._change(code)
                told_s, job = self._update(job, folder)
                ended_s = self._wait(job)
                if ended_s is None:
                    self.failed += 1
                    print(f"{self.name}: the new code did not run\n{job.output()}", flush=True)
                    return
                self.done += 1
                durations = {"update_to_first_step_s": ended_s - began_s, "told_to_first_step_s": ended_s - told_s}
                figures.add(self.name, durations)
        finally:
            end_job(job)

    def _change(self, code: str) -> None:
        self._version += 1
        path = os.path.join(code, "the_version.py")
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            file.write(f"NUMBER = {self._version}\n# {'x' * self._version}\n")  # another size: caches notice
        os.replace(f"{path}.new", path)

    def _start(self, folder: str) -> Job:
        place = tempfile.mkdtemp(prefix="job-", dir=folder)
        return start_job([*launcher_command(self._args, self.name, self._ranks), self._script], place)

    def _update(self, job: Job, folder: str) -> tuple[float, Job]:
        """Bring the new code into the job; return when the launcher began to act, and the job."""
        if self.name == OURS:
            robust = os.path.join(os.path.dirname(os.path.abspath(self._args.robust_run)), "robust")
            runs = os.path.join(job.folder, "robust-runs")
            done = subprocess.run(
                [robust, "update", "--when", "now", "--log-dir", runs], capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                print(f"robust update failed: {done.stderr}", flush=True)
            return time.monotonic(), job
        told_s = time.monotonic()
        job.launcher.terminate()
        job.launcher.wait(60.0)
        end_job(job)
        return told_s, self._start(folder)

    def _wait(self, job: Job) -> float | None:
        """Return when the last rank made its first step with the newest code; None if that does not come."""
        deadline_s = time.monotonic() + START_LIMIT_S
        name = f"version_{self._version}"
        while time.monotonic() < deadline_s and job.launcher.poll() is None:
            for attempt in range(UPDATES_PER_JOB + 1, -1, -1):
                marks = job.marks(attempt)
                if len(marks) == self._ranks and all(name in notes for notes in marks.values()):
                    return max(notes[name] for notes in marks.values())
            time.sleep(LOOK_EVERY_S)
        return None


def measure(args: argparse.Namespace, ranks: int, deadline_s: float) -> dict[str, Any]:
    """All updates at one number of ranks. Returns the case for the JSON line."""
    measured = [Side(name, args, ranks) for name in sides(args)]
    figures = Figures()
    while wanting := [side for side in measured if side.done + side.failed < args.updates]:
        if time.monotonic() > deadline_s:
            print(f"stopped at {ranks} ranks: --limit-s {args.limit_s:.0f} is over", flush=True)
            break
        side = min(wanting, key=lambda side: side.done + side.failed)
        with tempfile.TemporaryDirectory(prefix="hot-update-") as folder:
            side.run_job(folder, figures)
        print(f"{ranks} ranks, {side.name}: {side.done} updates", flush=True)
    summary = figures.summary({"ratio": BASELINE})
    print_figures(f"{ranks} ranks: from the change to the first step of the new code", summary)
    return {
        "case": "hot_update",
        "nproc": ranks,
        "updates": {side.name: {"done": side.done, "failed": side.failed} for side in measured},
        "figures": summary,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_options(parser, limit_s=1800.0)
    parser.add_argument("--updates", type=int, default=10, help="for each side and number of ranks; default 10")
    parser.add_argument("--ranks", type=numbers, default=[2], help="default 2")
    parser.add_argument("--run-s", type=float, default=8.0, help="between two updates, on both sides; default 8")
    args = parser.parse_args()
    unwind_on_sigterm()
    deadline_s = time.monotonic() + args.limit_s
    print_result("hot_update", [measure(args, ranks, deadline_s) for ranks in args.ranks])


if __name__ == "__main__":
    main()
