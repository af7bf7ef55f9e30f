"""What makes a rank slower than its peers, without ever stopping it: done in every step from the plan's step on."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

from plan import Plan


def slow_constant(plan: Plan) -> None:
    """Take longer in every step."""
    time.sleep(plan.numbers.get("extra_s", 0.05))


def slow_jitter(plan: Plan) -> None:
    """Take much longer in about every third step."""
    if random.random() < 1 / 3:
        time.sleep(plan.numbers.get("extra_s", 0.12))


def slow_compute(plan: Plan) -> None:
    """Compute longer in every step, on the CPU."""
    crunch(plan.numbers.get("extra_s", 0.04))


def crunch(cpu_s: float) -> None:
    """Compute until this thread has had so much of a CPU: longer where others have it."""
    until_s = time.thread_time() + cpu_s
    while time.thread_time() < until_s:
        pass


_DUTY = """
import os, signal, sys, time
pid = int(sys.argv[1])
while True:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.06)
    os.kill(pid, signal.SIGCONT)
    time.sleep(0.05)
"""
_HOG = "while True: pass"
_helpers: list[subprocess.Popen[bytes]] = []


def slow_duty(_: Plan) -> None:
    """Be stopped half of the time by another process, from now on: a throttled or stolen CPU."""
    if not _helpers:
        _helpers.append(subprocess.Popen([sys.executable, "-ISc", _DUTY, str(os.getpid())]))


def slow_shared_cpu(_: Plan) -> None:
    """Share one CPU with busy strangers from now on, at a lower priority."""
    if not _helpers:
        cpu = min(os.sched_getaffinity(0))
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), {cpu})
        _helpers.append(subprocess.Popen([sys.executable, "-ISc", _HOG]))
        for thread in os.listdir("/proc/self/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), 5)
