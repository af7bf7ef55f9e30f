"""The soak's mode of power cuts under checkpoints in memory: schedules drawn from a seed and their numbers, and a page."""

from __future__ import annotations

import argparse
import itertools
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "faults"))

import soak_page
from memory_cuts import ACTS, CALM_LOAD, CALM_S, MOST_LOST, Cut, Followed, Schedule, drawn
from memory_cuts_job import try_out

BEGINNING = f"""# Soak: power cuts under checkpoints in memory

Four ranks train on two or four simulated hosts, two more stand by; each step of 0.2 s is saved with `checkpoint.save`, each 20th
goes to storage, each node keeps copies of another's. A node loses its power, and its memory with it; two at once; or a rank is
killed in a save. Wanted each time: at most {MOST_LOST} step made again where a copy is left, the newest step of storage where
none is, nothing wrong loaded, the weights of an undisturbed run in the end, no rank that lives twice, nothing left. Written by
`make soak-memory`.
"""
SAYS = {
    "power": "a node loses its power",
    "kill": "a rank is killed in a save",
    "pair": "a node and the one with its copies, at once",
    "apart": "two nodes at once, the copies of both elsewhere",
}


@dataclass(frozen=True)
class Came:
    """What came of a schedule."""

    number: int
    schedule: Schedule
    problem: str
    took_s: float
    followed: tuple[tuple[Cut, Followed], ...]
    """The cuts that were made, and what followed each."""


def schedule_of(seed: int, number: int) -> Schedule:
    """Draw the schedule of a number."""
    return drawn(random.Random(f"memory/{seed}/{number}"))


def numbers_of(seed: int, cuts: int) -> Iterator[int]:
    """Yield the numbers of schedules that have so many cuts in all, at least."""
    for number in itertools.count():
        if cuts <= 0:
            return
        yield number
        cuts -= len(schedule_of(seed, number).cuts)


def tried(seed: int, number: int) -> Came:
    """Carry a schedule out in a folder of its own."""
    schedule = schedule_of(seed, number)
    followed: list[tuple[Cut, Followed]] = []
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="robust-soak-") as folder:
        try:
            problem = try_out(schedule, Path(folder), lambda cut, came: followed.append((cut, came)))
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            problem = f"{type(error).__name__}: {error}"
    return Came(number, schedule, problem, time.monotonic() - begun_s, tuple(followed))


def part(all_came: Sequence[Came], seed: int, where: str) -> list[str]:
    """Return the page's part. Pure."""
    failed = [came for came in all_came if came.problem]
    cuts = [each for came in all_came for each in came.followed]
    busy = [came for cut, came in cuts if not came.is_calm and cut.act != "pair"]
    nodes = Counter(came.schedule.nodes for came in all_came)
    return [
        "## Cuts",
        "",
        f"{where}: seed {seed}, {len(all_came)} jobs with {len(cuts)} cuts, {len(failed)} failed, "
        f"{sum(came.took_s for came in all_came) / 60:.0f} minutes. Nodes: {_counted(nodes)}.",
        "",
        "| | cuts | went on from | steps made again |",
        "|---|---|---|---|",
        *(_row(act, [came for cut, came in cuts if cut.act == act]) for act in ACTS),
        "",
        f"Before {len(busy)} of the cuts a step took longer than {CALM_S:g} s, or more than {CALM_LOAD:g} processes wanted each "
        "core: the machine may have been too busy for a copy of a step. Only how many steps are made again is not asked there: "
        f"{_counted(Counter(each.lost for each in busy))}.",
        "",
        "## Failures",
        "",
        *([_line(came, seed) for came in failed] or ["None."]),
    ]


def _row(act: str, came: Sequence[Followed]) -> str:
    says = SAYS[act]
    if act == "kill":
        says += f", or just after it ({sum(not each.in_save for each in came)})"
    sources = Counter(each.source or "the beginning" for each in came)
    return f"| {says} | {len(came)} | {_counted(sources)} | {_counted(Counter(each.lost for each in came))} |"


def _counted(counts: Counter[int] | Counter[str]) -> str:
    return ", ".join(f"{what} ({times})" for what, times in sorted(counts.items())) or "-"


def _line(came: Came, seed: int) -> str:
    problem = " ".join(came.problem.split())[:300]
    return f"- {came.schedule.name} (`python bench/soak.py --seed {seed} --memory 1 --only {came.number}`): {problem}"


def soak(args: argparse.Namespace, where: str, say: Callable[[str], None]) -> bool:
    """Make so many cuts, or those of the schedules of `--only`; write the page after each job. Whether all went well."""
    end_at_s = time.monotonic() + args.hours * 3600
    all_came: list[Came] = []
    page = args.page.read_text(encoding="utf-8") if args.page and args.page.exists() else BEGINNING
    numbers: Iterable[int] = args.only or numbers_of(args.seed, args.memory)
    for number in numbers:
        if time.monotonic() > end_at_s:
            say("the time is over")
            break
        came = tried(args.seed, number)
        all_came.append(came)
        failed = sum(bool(each.problem) for each in all_came)
        cuts = sum(len(each.followed) for each in all_came)
        lost = " ".join(str(each.lost) for _, each in came.followed)
        result = f"FAILED: {came.problem}" if came.problem else f"good, {lost} steps made again"
        say(f"{cuts} cuts, {failed} failed | {number} {came.schedule.name}: {result} ({came.took_s:.0f} s)")
        if args.page:
            soak_page.write(args.page, soak_page.with_part(page, "memory", part(all_came, args.seed, where)))
    return not any(came.problem for came in all_came)
