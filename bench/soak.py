"""Hours of seeded faults, waits and power cuts, in turns, each drawn anew; ends by itself and writes a page of results.

    python bench/soak.py --hours 8 --seed 1 --page docs/soak.md
    python bench/soak.py --seed 1 --only 17,23
    python bench/soak.py --waits 20,90 --load 0.5,20 --together 6 --page docs/soak-waits.md
    python bench/soak.py --mixed 2 --page docs/soak-waits.md
    python bench/soak.py --chaos 100 --page docs/soak-chaos.md
    python bench/soak.py --roles 30 --page docs/soak-roles.md
    python bench/soak.py --dapo 6 --page docs/soak-roles.md
    python bench/soak.py --memory 50 --page docs/soak-memory.md

A trial is drawn from the seed and its number alone, so any of them can be made again. A fault of `tests/faults/matrix.py` must
be named, with exactly the ranks at fault and the right kind, and acted on if it is proven; a healthy job must be left alone. A
wait of `tests/faults/waits.py` must be left alone, too. After a power cut of `tests/faults/power_cuts.py` the job must go on, and
never twice at a time. Power cuts and faults on several hosts need root and namespaces. Returns 1 if a trial failed.

With --waits every wait is tried at each length and each load (so many processes of ours that compute; 0.5: one, half of the
time), with --mixed waits beside healthy jobs that work, drawn from the seed: nothing may be done about any of them. Each of both
writes its own part of a page and leaves the rest of it as it is. With --chaos so many schedules of random faults over several
hosts are carried out (`tests/faults/chaos.py`), with --roles in jobs of several roles (`tests/faults/roles_chaos.py`), with
--dapo in trainings of `examples/rl/dapo.py` (`tests/faults/roles_dapo.py`: another part of the same page), with --memory so many
power cuts under checkpoints in memory (`tests/faults/memory_cuts.py`); each writes a page of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "faults"))

import power_cuts
import soak_chaos
import soak_dapo
import soak_memory
import soak_page
import soak_roles
import soak_waits
from harness import Outcome, Settings
from harness import try_out as try_fault
from hosts import supported
from left_alone import assert_was_left_alone, missing, waiting
from matrix import CASES, Run, every_run
from sidebyside import unwind_on_sigterm
from waits import WAITS

KINDS = ("fault", "wait", "power cut")
WAIT_S = (12.0, 40.0)
SETTINGS = Settings(deadline_s=60.0, negative_s=20.0, slow_round_s=2.0)


@dataclass(frozen=True)
class Trial:
    """Something to be tried: what, and how."""

    number: int
    kind: str
    what: str
    """Names it among others of its kind: a case, a wait, an act."""
    name: str
    """With everything that was drawn."""
    try_out: Callable[[Path], str]
    """Tries it in an empty folder; returns what was wrong, empty if nothing was."""
    left_out: str = ""
    """Why it cannot be tried here."""


@dataclass(frozen=True)
class Result:
    """What came of a trial."""

    trial: Trial
    problem: str
    took_s: float


def drawn(seed: int, number: int) -> Trial:
    """Draw a trial: from the seed and its number, nothing else."""
    chance = random.Random(f"{seed}/{number}")
    kind = KINDS[number % len(KINDS)]
    if kind == "fault":
        return _fault(number, chance)
    return _wait(number, chance) if kind == "wait" else _power_cut(number, chance)


def _fault(number: int, chance: random.Random) -> Trial:
    case = chance.choice(CASES)
    runs = list(every_run((case,), (4,), case.layouts, 1))
    place = chance.choice(runs)
    run = Run(case, place.layout, place.world, place.position, chance.randrange(1, 1_000_000))
    return Trial(
        number,
        "fault",
        f"{case.number} {case.name}",
        run.name,
        lambda folder: problem_of(try_fault(run, folder, SETTINGS)),
        supported() if case.hosts > 1 else "",
    )


def problem_of(outcome: Outcome) -> str:
    """What is wrong with a verdict, in a line; empty if nothing is."""
    if outcome.problem:
        return outcome.problem
    if outcome.negative:
        return outcome.line() if outcome.judged else ""
    right = outcome.fired and outcome.exact and outcome.kind_right and outcome.action_right
    return "" if right else outcome.line()


def _wait(number: int, chance: random.Random) -> Trial:
    wait, seconds = chance.choice(list(WAITS)), round(chance.uniform(*WAIT_S), 1)

    def try_out(folder: Path) -> str:
        with waiting(wait, seconds, folder / wait) as job:
            assert_was_left_alone(wait, job)
        return ""

    return Trial(number, "wait", wait, f"{wait} for {seconds:g} s", try_out, missing(wait))


def _power_cut(number: int, chance: random.Random) -> Trial:
    cut = power_cuts.drawn(chance)
    return Trial(number, "power cut", cut.act, cut.name, lambda folder: power_cuts.try_out(cut, folder), supported())


def tried(trial: Trial) -> Result:
    """Try it."""
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="robust-soak-") as folder:
        try:
            problem = trial.try_out(Path(folder))
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            problem = f"{type(error).__name__}: {error}"
    return Result(trial, problem, time.monotonic() - begun_s)


def numbers_until(end_at_s: float, only: Sequence[int]) -> Iterator[int]:
    """Yield the numbers of trials: those asked for, or all until the time is over."""
    if only:
        yield from only
        return
    number = 0
    while time.monotonic() < end_at_s:
        yield number
        number += 1


def soak(seed: int, numbers: Iterable[int], say: Callable[[str], None]) -> tuple[list[Result], list[Trial]]:
    """Try all, one after the other; return what came of them, and what could not be tried here."""
    results: list[Result] = []
    left_out: list[Trial] = []
    begun_s = time.monotonic()
    for number in numbers:
        trial = drawn(seed, number)
        if trial.left_out:
            left_out.append(trial)
            continue
        results.append(tried(trial))
        failed = sum(bool(result.problem) for result in results)
        came = f"FAILED: {results[-1].problem}" if results[-1].problem else "good"
        say(
            f"{(time.monotonic() - begun_s) / 60:6.1f} min, {len(results)} tried, {failed} failed"
            f" | {number} {trial.kind} {trial.name}: {came} ({results[-1].took_s:.0f} s)"
        )
    return results, left_out


def page_of(
    seed: int, took_s: float, results: Sequence[Result], left_out: Sequence[Trial], where: str, commit: str, day: str
) -> str:
    """Return the page of results. Pure."""
    failures = [result for result in results if result.problem]
    rows = [
        f"| {kind} | {sum(r.trial.kind == kind for r in results)} | {sum(r.trial.kind == kind for r in failures)} |"
        f" {sum(t.kind == kind for t in left_out)} |"
        for kind in KINDS
    ]
    lines = [
        "# Soak",
        "",
        f"{day}, commit {commit}, on {where}: {_span(took_s)} of seeded faults, waits and power cuts in turns, seed {seed}."
        " Written by `make soak`; `make soak HOURS=8 SEED=1` writes it anew.",
        "",
        "| kind | tried | failed | left out |",
        "|---|---|---|---|",
        *rows,
        "",
        "A fault must be named, with exactly the ranks at fault and the right kind, and acted on at once where it is proven; a",
        "healthy job must be left alone, and so must one that waits. After a power cut the job must go on, never twice.",
        "",
        "## Failures",
        "",
        *([f"- {_one_line(result, seed)}" for result in failures] or ["None."]),
        "",
        "## What ran",
        "",
    ]
    for kind in KINDS:
        counts = Counter(result.trial.what for result in results if result.trial.kind == kind)
        listed = ", ".join(f"{what} ({count})" for what, count in sorted(counts.items()))
        lines += [f"**{kind}**: {listed or 'nothing'}.", ""]
    if left_out:
        reasons = Counter(trial.left_out for trial in left_out)
        lines += [f"Left out: {', '.join(f'{reason} ({count})' for reason, count in sorted(reasons.items()))}.", ""]
    return "\n".join(lines)


def _span(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{seconds / 60:.0f} minutes"


def _one_line(result: Result, seed: int) -> str:
    problem = " ".join(result.problem.split())[:400]
    number = result.trial.number
    return f"{result.trial.kind}, {result.trial.name} (`python bench/soak.py --seed {seed} --only {number}`): {problem}"


def say(line: str) -> None:
    """For people."""
    print(line, flush=True)


def numbers_or_none(text: str) -> list[int]:
    """`17,23` as numbers; an empty text is none."""
    return [int(word) for word in text.split(",") if word]


def loads(text: str) -> list[float]:
    """`0.5,20` as loads."""
    return [float(word) for word in text.split(",")]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=8.0, help="begin nothing new after so long (default 8)")
    parser.add_argument("--seed", type=int, default=0, help="what all trials are drawn from (default 0)")
    parser.add_argument("--only", type=numbers_or_none, default=[], help="numbers of trials, like 17,23: these alone")
    parser.add_argument("--page", type=Path, help="write the results here")
    parser.add_argument("--waits", type=loads, help="seconds, like 20,90: try every wait for so long, and nothing else")
    parser.add_argument(
        "--load", type=loads, default=[0.5, 20.0], help="with --waits: beside so much load (default 0.5,20)"
    )
    parser.add_argument("--only-waits", default="", help="with --waits: names of these alone, like sleep,event")
    parser.add_argument("--mixed", type=float, help="hours of waits and work mixed, and nothing else")
    parser.add_argument(
        "--chaos", type=int, help="so many schedules of random faults over several hosts, and nothing else"
    )
    parser.add_argument(
        "--roles", type=int, help="so many schedules of random faults in jobs of several roles, and nothing else"
    )
    parser.add_argument(
        "--dapo", type=int, help="so many trainings of examples/rl/dapo.py that are struck, and nothing else"
    )
    parser.add_argument("--memory", type=int, help="so many power cuts under checkpoints in memory, and nothing else")
    parser.add_argument("--together", type=int, default=6, help="with --waits or --mixed: jobs at a time (default 6)")
    args = parser.parse_args()
    unknown = set(filter(None, args.only_waits.split(","))) - set(WAITS)
    if unknown:
        parser.error(f"--only-waits {','.join(sorted(unknown))}: no such wait in tests/faults/waits.py")
    return args


def main() -> int:
    args = parse()
    unwind_on_sigterm()
    commit, day, machine = soak_page.commit_here(), soak_page.today(), soak_page.machine_here()
    if args.waits or args.mixed is not None:
        others = f"load average {os.getloadavg()[0]:.1f} before"
        return int(not soak_waits.soak(args, f"{day}, commit {commit}, {machine}, {others}", say))
    modes = (
        (args.chaos, soak_chaos.soak),
        (args.memory, soak_memory.soak),
        (args.roles, soak_roles.soak),
        (args.dapo, soak_dapo.soak),
    )
    for wanted, soak_of in modes:
        if wanted is not None:
            return int(not soak_of(args, f"{day}, commit {commit}, {machine}", say))
    begun_s = time.monotonic()
    results, left_out = soak(args.seed, numbers_until(begun_s + args.hours * 3600, args.only), say)
    page = page_of(args.seed, time.monotonic() - begun_s, results, left_out, machine, commit, day)
    if args.page:
        args.page.write_text(page, encoding="utf-8")
    print(page)
    return int(any(result.problem for result in results))


if __name__ == "__main__":
    sys.exit(main())
