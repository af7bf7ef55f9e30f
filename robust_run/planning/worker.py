"""One of the processes that simulate seeds: a line of JSON in, a plan and a seed; lines out, how far it is, then the result."""

from __future__ import annotations

import os
import signal
import sys
import time

import msgspec

from robust_run.launcher.agent.workers.process_tree import PR_SET_PDEATHSIG, prctl
from robust_run.planning.results import SeedResult, result
from robust_run.planning.words import Plan

#: A worker says how far it is no oftener than that.
OFTEN_S = 0.5


class Task(msgspec.Struct, frozen=True):
    """One seed of a plan."""

    plan: Plan
    seed: int


def main(asker: int) -> None:
    """Work until there are no more lines, or whoever asked (a pid) is gone; Ctrl-C is theirs to hear."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != asker:
        return  # it went before the kernel was told of that wish
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        task = msgspec.json.decode(line, type=Task)
        _write(msgspec.json.encode(result(task.plan, task.seed, _Share().says)))


class _Share:
    """Says how far a seed is, not too often."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + OFTEN_S

    def says(self, share: float) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + OFTEN_S
            _write(b"%.4f" % share)


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def answer(line: bytes) -> SeedResult | float:
    """Return what a worker said: what became of its seed, or which share of it is done."""
    return msgspec.json.decode(line, type=SeedResult) if line.startswith(b"{") else float(line)
