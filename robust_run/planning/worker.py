"""One of the processes that simulate seeds: a line of JSON in, a plan and a seed; a line out, what became of it."""

from __future__ import annotations

import signal
import sys

import msgspec

from robust_run.launcher.agent.workers.process_tree import PR_SET_PDEATHSIG, prctl
from robust_run.planning.results import SeedResult, result
from robust_run.planning.words import Plan


class Task(msgspec.Struct, frozen=True):
    """One seed of a plan."""

    plan: Plan
    seed: int


def main() -> None:
    """Work until there are no more lines, or whoever asked is gone; Ctrl-C is theirs to hear."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for line in sys.stdin.buffer:
        task = msgspec.json.decode(line, type=Task)
        sys.stdout.buffer.write(msgspec.json.encode(result(task.plan, task.seed)) + b"\n")
        sys.stdout.buffer.flush()


def answer(line: bytes) -> SeedResult:
    """Return what a worker said."""
    return msgspec.json.decode(line, type=SeedResult)
