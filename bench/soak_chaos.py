"""The soak's mode of random faults over several hosts: schedules drawn from a seed and their numbers, and a page of results."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "faults"))

import soak_page
from chaos import Schedule, drawn
from chaos_job import try_out

BEGINNING = """# Soak: random faults over several hosts

Two ranks train over three to five simulated hosts; processes are killed and stopped, links cut, hosts lose their power and return
with the same command line, disks fill up, clocks jump, some beside a load of 30 processes. Wanted each time: the weights of an
undisturbed run, no rank that lives twice, no host given up that nothing was done to, nothing left. Written by `make soak-chaos`.
"""


@dataclass(frozen=True)
class Came:
    """What came of a schedule."""

    number: int
    schedule: Schedule
    problem: str
    took_s: float


def schedule_of(seed: int, number: int) -> Schedule:
    """Draw the schedule of a number."""
    return drawn(random.Random(f"chaos/{seed}/{number}"))


def tried(seed: int, number: int) -> Came:
    """Carry a schedule out in a folder of its own."""
    schedule = schedule_of(seed, number)
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="robust-soak-") as folder:
        try:
            problem = try_out(schedule, Path(folder))
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            problem = f"{type(error).__name__}: {error}"
    return Came(number, schedule, problem, time.monotonic() - begun_s)


def part(all_came: Sequence[Came], seed: int, where: str) -> list[str]:
    """Return the page's part. Pure."""
    failed = [came for came in all_came if came.problem]
    acts = Counter(fault.act for came in all_came for fault in came.schedule.faults)
    hosts = Counter(came.schedule.hosts for came in all_came)
    unfenced = sum(came.schedule.stops_both_fences for came in all_came)
    busy = sum(came.schedule.load > 0 for came in all_came)
    return [
        "## Schedules",
        "",
        f"{where}: seed {seed}, {len(all_came)} schedules with {acts.total()} faults, {busy} beside a load, "
        f"{len(failed)} failed, {sum(came.took_s for came in all_came) / 60:.0f} minutes.",
        "",
        "Hosts: " + ", ".join(f"{count} ({times})" for count, times in sorted(hosts.items())) + ".",
        "",
        "Faults: " + ", ".join(f"{act} ({times})" for act, times in sorted(acts.items())) + ".",
        "",
        f"In {unfenced} of them agent and guard of a host were stopped at the same moment (`stop launcher`). Nobody can end the "
        "workers of such a host, so a rank may live twice until they go on: a limit that docs/many-nodes.md names. Only this is "
        "not asked of those schedules.",
        "",
        "## Failures",
        "",
        *([_line(came, seed) for came in failed] or ["None."]),
    ]


def _line(came: Came, seed: int) -> str:
    problem = " ".join(came.problem.split())[:300]
    return f"- {came.schedule.name} (`python bench/soak.py --seed {seed} --chaos 1 --only {came.number}`): {problem}"


def soak(args: argparse.Namespace, where: str, say: Callable[[str], None]) -> bool:
    """Try so many schedules, or those of `--only`; write the page after each. Whether all went well."""
    end_at_s = time.monotonic() + args.hours * 3600
    all_came: list[Came] = []
    page = args.page.read_text(encoding="utf-8") if args.page and args.page.exists() else BEGINNING
    for number in args.only or range(args.chaos):
        if time.monotonic() > end_at_s:
            say("the time is over")
            break
        came = tried(args.seed, number)
        all_came.append(came)
        failed = sum(bool(each.problem) for each in all_came)
        result = f"FAILED: {came.problem}" if came.problem else "good"
        say(f"{len(all_came)} tried, {failed} failed | {number} {came.schedule.name}: {result} ({came.took_s:.0f} s)")
        if args.page:
            soak_page.write(args.page, soak_page.with_part(page, "chaos", part(all_came, args.seed, where)))
    return not any(came.problem for came in all_came)
