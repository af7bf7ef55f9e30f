"""The soak's mode of random faults in jobs of several roles: schedules drawn from a seed and their numbers, and a page."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "faults"))

import soak_page
from roles_chaos import Schedule, drawn
from roles_chaos_job import try_out

TOGETHER = 2
"""Trials at a time: one that waits until a silent node is given up needs no CPU."""
BEGINNING = """# Soak: roles

A trainer, two rollouts and a reward, with the queues, versions and checkpoints of `examples/rl/dapo.py` and sums of integers in
the place of the model, on one node or three simulated hosts. Workers, launchers, the process that leads and those that follow it
are killed; workers are stopped or hang with what they have taken; hosts lose their power or their link. Each fault is seen to
have struck. Wanted each time: the job goes on and ends well; all that was asked for is settled once, nothing twice, nothing lost;
with `synchronous` the weights of an undisturbed run, bit for bit; a trainer that nothing was done to is one process from the
first step to the last; nothing is left. Written by `make soak-roles`.
"""


@dataclass(frozen=True)
class Came:
    """What came of a schedule."""

    number: int
    schedule: Schedule
    problem: str
    took_s: float


def tried(seed: int, number: int, end_at_s: float) -> Came | None:
    """Carry a schedule out in a folder of its own; None: the time is over."""
    begun_s = time.monotonic()
    if begun_s > end_at_s:
        return None
    schedule = drawn(random.Random(f"roles/{seed}/{number}"), number)
    with tempfile.TemporaryDirectory(prefix="robust-soak-") as folder:
        try:
            problem = try_out(schedule, Path(folder))
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            problem = f"{type(error).__name__}: {error}"
    return Came(number, schedule, problem, time.monotonic() - begun_s)


def part(all_came: Sequence[Came], seed: int, where: str) -> list[str]:
    """Return the page's part. Pure."""
    failed = [came for came in all_came if came.problem]
    acts = Counter(f"{f.act} of {f.role}" if f.role else f.act for came in all_came for f in came.schedule.faults)
    rounds = sum(came.schedule.synchronous for came in all_came)
    spared = sum(came.schedule.spares_the_trainer for came in all_came)
    on_hosts = sum(came.schedule.hosts > 0 for came in all_came)
    return [
        "## Schedules",
        "",
        f"{where}: seed {seed}, {len(all_came)} schedules with {acts.total()} faults, {len(failed)} failed, "
        f"{sum(came.took_s for came in all_came) / 60:.0f} minutes, {TOGETHER} at a time.",
        "",
        f"Synchronous {rounds}, asynchronous {len(all_came) - rounds}; on three hosts {on_hosts}; in {spared} nothing was done "
        "to the trainer.",
        "",
        "Faults: " + ", ".join(f"{act} ({times})" for act, times in sorted(acts.items())) + ".",
        "",
        "## Failures",
        "",
        *([_line(came, seed) for came in failed] or ["None."]),
    ]


def _line(came: Came, seed: int) -> str:
    problem = " ".join(came.problem.split())[:300]
    return f"- {came.schedule.name} (`python bench/soak.py --seed {seed} --roles 1 --only {came.number}`): {problem}"


def soak(args: argparse.Namespace, where: str, say: Callable[[str], None]) -> bool:
    """Try so many schedules, or those of `--only`; write the page after each. Whether all went well."""
    end_at_s = time.monotonic() + args.hours * 3600
    all_came: list[Came] = []
    page = args.page.read_text(encoding="utf-8") if args.page and args.page.exists() else BEGINNING
    with ThreadPoolExecutor(TOGETHER) as pool:
        for done in as_completed(
            pool.submit(tried, args.seed, number, end_at_s) for number in args.only or range(args.roles)
        ):
            came = done.result()
            if came is None:
                continue
            all_came.append(came)
            failed = sum(bool(each.problem) for each in all_came)
            result = f"FAILED: {came.problem}" if came.problem else "good"
            say(
                f"{len(all_came)} tried, {failed} failed | {came.number} {came.schedule.name}: {result} ({came.took_s:.0f} s)"
            )
            if args.page:
                all_came.sort(key=lambda each: each.number)
                soak_page.write(args.page, soak_page.with_part(page, "roles", part(all_came, args.seed, where)))
    return not any(came.problem for came in all_came)
