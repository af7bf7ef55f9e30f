"""The soak's other modes: every legitimate wait at each length and load, and hours of waits and work mixed. Wanted: no action.

An action is anything that is done about a job that waits or works: its attempt is ended, or an incident does more than report.
What is only said is counted and is no failure. That a job does not come to its own end is one.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "faults"))

import soak_page
from busy import busy
from harness import Outcome, Settings, try_out
from left_alone import END_S, Went, how_it_went, missing, waiting
from matrix import NEGATIVES, Run
from soak_waits_page import BEGINNING, Cell, Tried, mixed_part, waits_part
from waits import WAITS

MIXED_S = (5.0, 60.0)
MIXED_LOADS = (0.5, 2.0, 5.0, 20.0)
PER_LOAD_S = 100.0
"""For each process of the load a job may take so much longer: to start alone takes a minute of CPU on busy cores."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Mix:
    """Waits beside work, and a load: drawn from a seed and a number."""

    number: int
    load: float
    waits: tuple[tuple[str, float], ...]
    work: Run


def end_s(seconds: float, load: float) -> float:
    """Return how long a job may take that waits for so long at a load."""
    return END_S + 3 * seconds + PER_LOAD_S * load


def drawn(seed: int, number: int, together: int) -> Mix:
    """Draw what is tried at the same time: one job that works, the others wait."""
    chance = random.Random(f"mixed/{seed}/{number}")
    names = chance.sample(list(WAITS), max(1, together - 1))
    waits = tuple((name, round(chance.uniform(*MIXED_S), 1)) for name in names)
    case = chance.choice(NEGATIVES)
    work = Run(case, chance.choice(case.layouts), 4, "middle", chance.randrange(1, 1_000_000))
    return Mix(number, chance.choice(MIXED_LOADS), waits, work)


def in_groups(names: Sequence[str], together: int) -> Iterator[Sequence[str]]:
    """Yield so many at a time."""
    for begin in range(0, len(names), together):
        yield names[begin : begin + together]


def try_waits(waits: Sequence[tuple[str, float]], load: float, work: Run | None = None, number: int = 0) -> list[Tried]:
    """Start all at the same time, beside our own load; return how each went."""
    longest_s = max((seconds for _, seconds in waits), default=0.0)
    limit_s = end_s(longest_s, load)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="robust-soak-")))
        stack.enter_context(busy(load, limit_s + 60.0))
        end_at_s = time.monotonic() + limit_s
        jobs = [stack.enter_context(waiting(wait, seconds, folder / wait)) for wait, seconds in waits]
        tried = [_work(work, load, folder / "work", number)] if work is not None else []
        for (wait, seconds), job in zip(waits, jobs, strict=True):
            went = how_it_went(job, end_at_s - time.monotonic())
            tried.append(Tried(wait, seconds, load, went, number=number))
    return tried


def _work(run: Run, load: float, folder: Path, number: int) -> Tried:
    settings = Settings(negative_s=20.0, slow_round_s=2.0, start_s=300.0 + PER_LOAD_S / 2 * load)
    folder.mkdir()
    try:
        went = how_it_worked(try_out(run, folder, settings))
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        went = Went(failed=f"{type(error).__name__}: {error}")
    return Tried(f"{run.case.number} {run.case.name}", settings.negative_s, load, went, is_work=True, number=number)


def how_it_worked(outcome: Outcome) -> Went:
    """Return how a healthy job went."""
    if not outcome.judged:
        return Went(failed=outcome.problem)
    if outcome.action == "report":
        return Went(said=(outcome.sentence,), failed=outcome.problem, suspected=True)
    return Went(acted=(f"{outcome.action}: {outcome.sentence}",), failed=outcome.problem, suspected=True)


def line_of(tried: Tried) -> str:
    """Say how it went."""
    came = f"FAILED: {tried.went.problem}" if tried.went.problem else "said only" if tried.went.said else "left alone"
    return f"{tried.what} for {tried.seconds:g} s at load {tried.load:g}: {came}"


def try_all_waits(
    cells: Sequence[Cell],
    waits: Sequence[str],
    together: int,
    end_at_s: float,
    say: Say,
    save: Callable[[dict[Cell, list[Tried]]], None],
) -> dict[Cell, list[Tried]]:
    """Try all waits in all cells until the time is over; results are saved after each group."""
    found: dict[Cell, list[Tried]] = {}
    for cell in cells:
        for group in in_groups(waits, together):
            if time.monotonic() > end_at_s:
                say(f"the time is over: {cell.name} and what follows is not complete")
                return found
            begun_s = time.monotonic()
            tried = try_waits([(wait, cell.seconds) for wait in group], cell.load)
            found.setdefault(cell, []).extend(tried)
            for one in tried:
                say(f"{len(found[cell])} of {len(waits)} | {line_of(one)}")
            say(f"    these took {time.monotonic() - begun_s:.0f} s")
            save(found)
    return found


def try_mixed(
    seed: int, together: int, end_at_s: float, say: Say, save: Callable[[list[Tried]], None], only: Sequence[int] = ()
) -> list[Tried]:
    """Try waits beside work, drawn anew each time, until the time is over."""
    found: list[Tried] = []
    number = 0
    while only or time.monotonic() < end_at_s:
        if only and number >= len(only):
            break
        mix = drawn(seed, only[number] if only else number, together)
        can = [(wait, seconds) for wait, seconds in mix.waits if not missing(wait)]
        tried = try_waits(can, mix.load, mix.work, mix.number)
        found += tried
        for one in tried:
            say(f"{len(found)} tried | {mix.number} {line_of(one)}")
        save(found)
        number += 1
    return found


def soak(args: argparse.Namespace, where: str, say: Say) -> bool:
    """Try waits, or waits and work mixed; write their part of the page. Whether nothing was done about any of them."""
    begun_s = time.monotonic()
    page = args.page.read_text(encoding="utf-8") if args.page and args.page.exists() else BEGINNING
    chosen = args.only_waits.split(",") if args.only_waits else list(WAITS)
    left_out = {wait: missing(wait) for wait in chosen if missing(wait)}
    waits = [wait for wait in chosen if wait not in left_out]
    random.Random(args.seed).shuffle(waits)
    old = soak_page.part_of(page, "waits")
    text = page

    def save(name: str, part: list[str]) -> None:
        nonlocal text
        text = soak_page.with_part(page, name, part)
        if args.page:
            soak_page.write(args.page, text)

    def save_waits(found: dict[Cell, list[Tried]]) -> None:
        save("waits", waits_part(old, found, len(WAITS), left_out, where))

    def save_mixed(tried: list[Tried]) -> None:
        took_s = time.monotonic() - begun_s
        save("mixed", mixed_part(tried, args.seed, args.together, took_s, where))

    if args.waits:
        cells = [Cell(seconds, load) for load in args.load for seconds in args.waits]
        found = try_all_waits(cells, waits, args.together, begun_s + args.hours * 3600, say, save_waits)
        tried = [one for each in found.values() for one in each]
    else:
        end_at_s = begun_s + args.mixed * 3600
        tried = try_mixed(args.seed, args.together, end_at_s, say, save_mixed, args.only)
    print(text)
    return not any(one.went.problem for one in tried)
