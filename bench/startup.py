"""How long until the first line of a script runs, and until all is over: torchrun and robust-run, side by side.

    python bench/startup.py --rounds 7 --nproc 2,4

Two scripts, one that does not touch torch and one that imports it and makes one gloo all_reduce. Runs alternate; a
first round of each is not counted, so that files are in the page cache and bytecode is compiled. Durations count from
just before the launcher's exec. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import os
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
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

RUN_LIMIT_S = 60.0

HEAD = f"""import time; T0 = time.monotonic()
{MARKS}
mark("first_line", T0)
_ENDED = _os.open(_os.path.join(_os.environ["SIDEBYSIDE_JOB"], "ended-" + _os.environ["RANK"]), _os.O_WRONLY)
"""
"""The kernel closes _ENDED when the process ends: the other end of the pipe sees when."""

PLAIN = f"""{HEAD}
mark("last_line", time.monotonic())
"""

TORCH = f"""{HEAD}
import torch
import torch.distributed as dist
mark("torch_imported", time.monotonic())
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
mark("first_all_reduce", time.monotonic())
dist.destroy_process_group()
mark("last_line", time.monotonic())
"""

SCRIPTS = {"without torch": PLAIN, "torch and gloo": TORCH}


class RunError(Exception):
    """A run that gives no figures. The message says why."""


@dataclass(frozen=True)
class Case:
    """A script and a number of workers."""

    script: str
    nproc: int

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.script}, {self.nproc} ranks"


def measure(args: argparse.Namespace, side: str, case: Case) -> dict[str, float]:
    """Run a launcher once. Returns its figures; raises RunError if the run failed or took too long."""
    with tempfile.TemporaryDirectory(prefix="startup-") as folder:
        script = os.path.join(folder, "worker.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(SCRIPTS[case.script])
        pipes = [open_pipe(os.path.join(folder, f"ended-{rank}")) for rank in range(case.nproc)]
        job = start_job(launcher_command(args, side, case.nproc, script), folder)
        try:
            ends_s, exit_s = wait_for_ends(job, pipes)
            marks = job.marks(0)
            if job.launcher.returncode != 0 or len(marks) != case.nproc:
                raise RunError(f"exit code {job.launcher.returncode}, {len(marks)} ranks seen\n{job.output()}")
        finally:
            for pipe in pipes:
                os.close(pipe)
            end_job(job)
    return figures_of(job.started_at_s, marks, max(ends_s), exit_s)


def open_pipe(path: str) -> int:
    """Make a named pipe and open it for reading."""
    os.mkfifo(path)
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def wait_for_ends(job: Job, pipes: list[int]) -> tuple[list[float], float]:
    """Sleep until every process has ended: when each worker did, and when the launcher did. Raises RunError."""
    launcher = os.pidfd_open(job.launcher.pid)
    waiting = {*pipes, launcher}
    poll = select.poll()
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN if descriptor == launcher else 0)
    ended_at_s: dict[int, float] = {}
    try:
        while launcher in waiting:
            left_s = job.started_at_s + RUN_LIMIT_S - time.monotonic()
            ready = poll.poll(max(0.0, left_s) * 1000)
            if not ready:
                raise RunError(f"not over after {RUN_LIMIT_S:.0f} s\n{job.output()}")
            for descriptor, _ in ready:
                ended_at_s[descriptor] = time.monotonic()
                poll.unregister(descriptor)
                waiting.remove(descriptor)
    finally:
        os.close(launcher)
    job.launcher.wait()
    exit_s = ended_at_s[launcher]
    return [ended_at_s.get(pipe, exit_s) for pipe in pipes], exit_s


def figures_of(started_s: float, marks: Marks, last_end_s: float, exit_s: float) -> dict[str, float]:
    """Durations from what the workers noted and from when the processes ended."""
    figures = {"first_line_first_rank_s": min(notes["first_line"] for notes in marks.values()) - started_s}
    for note in ("first_line", "torch_imported", "first_all_reduce"):
        if all(note in notes for notes in marks.values()):
            figures[f"{note}_last_rank_s"] = max(notes[note] for notes in marks.values()) - started_s
    figures["exit_after_last_line_s"] = exit_s - max(notes["last_line"] for notes in marks.values())
    figures["exit_after_last_worker_end_s"] = exit_s - last_end_s
    figures["total_s"] = exit_s - started_s
    return figures


def run_rounds(args: argparse.Namespace, cases: list[Case]) -> tuple[dict[Case, Figures], int, list[str]]:
    """All rounds, the sides in turns. Returns the figures, the rounds that were counted, and what failed."""
    began_s = time.monotonic()
    figures = {case: Figures() for case in cases}
    failures: list[str] = []
    for number in range(args.rounds + 1):
        if time.monotonic() - began_s > args.limit_s:
            print(f"stopped before round {number} of {args.rounds}: --limit-s {args.limit_s:.0f} is over", flush=True)
            return figures, max(0, number - 1), failures
        for case in cases:
            for side in sides(args):
                try:
                    durations = measure(args, side, case)
                except RunError as error:
                    failures.append(f"{side}, {case.name}, round {number}: {error}")
                    print(f"failed: {failures[-1]}", flush=True)
                    continue
                if number > 0:  # round 0 warms up
                    figures[case].add(side, durations)
        print(f"round {number} of {args.rounds} done" + (" (warm-up)" if number == 0 else ""), flush=True)
    return figures, args.rounds, failures


def main() -> int:
    """Run the bench. Returns 1 if any run failed."""
    parser = argparse.ArgumentParser(description="Startup time: torchrun and robust-run, side by side.")
    parser.add_argument("--rounds", type=int, default=7, help="counted runs of each side and case")
    parser.add_argument("--nproc", type=numbers, default=[2], help="numbers of workers, as in 2,4")
    add_common_options(parser, limit_s=600)
    args = parser.parse_args()
    unwind_on_sigterm()
    cases = [Case(script, nproc) for nproc in args.nproc for script in SCRIPTS]
    figures, rounds, failures = run_rounds(args, cases)
    results: list[dict[str, Any]] = []
    for case in cases:
        summary = figures[case].summary()
        print_figures(case.name, summary)
        results.append({"case": case.script, "nproc": case.nproc, "figures": summary})
    commands = {side: subprocess.list2cmdline(launcher_command(args, side, 2, "worker.py")) for side in SIDES}
    print_result("startup", results, rounds=rounds, commands=commands, failures=failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
