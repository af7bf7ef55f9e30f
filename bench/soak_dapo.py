"""The soak's mode of `examples/rl/dapo.py` while its roles are struck: to its reward, and in rounds to the same weights."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "faults"))

import soak_page
from roles_dapo import Struck, Training, try_out
from soak_roles import BEGINNING

ROUNDS = ("--steps", "16")
TO_THE_END = ("--target", "0.9")
HEAD = ("| training | faults | steps | mean reward at the end | minutes | came out |", "|---" * 6 + "|")


@dataclass(frozen=True)
class Came:
    """What came of a training."""

    training: Training
    struck: Struck
    took_s: float


def training_of(number: int) -> Training:
    """Return the training of a number: rounds of which the first is not struck, then to the reward and rounds by turns."""
    if number == 0:
        return Training(0, synchronous=True, words=ROUNDS, most_faults=0)
    is_synchronous = number % 2 == 0
    return Training(number, synchronous=is_synchronous, words=ROUNDS if is_synchronous else TO_THE_END)


def part(all_came: Sequence[Came], where: str) -> list[str]:
    """Return the page's part. Pure."""
    acts = Counter(fault for came in all_came for fault in came.struck.faults)
    return [
        "## DAPO itself",
        "",
        f"{where}: `examples/rl/dapo.py`, struck again and again by what its number draws. Rounds (`--synchronous`) must end "
        "with the weights of the first, to which nothing is done; the others must reach a mean reward of 0.9.",
        "",
        *HEAD,
        *(_row(came) for came in all_came),
        "",
        "Faults: " + (", ".join(f"{act} ({times})" for act, times in sorted(acts.items())) or "none") + ".",
    ]


def _row(came: Came) -> str:
    struck = came.struck
    good = f"good, weights {struck.weights[:12]}" if came.training.synchronous else "good"
    result = " ".join(struck.problem.replace("|", "/").split())[:300] or good
    name = f"{came.training.number}: {came.training.name}"
    return (
        f"| {name} | {len(struck.faults)} | {struck.steps} | {struck.reward:.3f} | {came.took_s / 60:.0f} | {result} |"
    )


def soak(args: argparse.Namespace, where: str, say: Callable[[str], None]) -> bool:
    """Carry out so many trainings and one that nothing is done to, or those of `--only`; write the page after each."""
    end_at_s = time.monotonic() + args.hours * 3600
    all_came: list[Came] = []
    page = args.page.read_text(encoding="utf-8") if args.page and args.page.exists() else BEGINNING
    weights = ""
    for number in args.only or range(args.dapo + 1):
        if time.monotonic() > end_at_s:
            say("the time is over")
            break
        training, begun_s = training_of(number), time.monotonic()
        with tempfile.TemporaryDirectory(prefix="robust-soak-") as folder:
            struck = try_out(training, Path(folder), weights if training.synchronous else "")
        weights = weights or (struck.weights if training.synchronous else "")
        all_came.append(Came(training, struck, time.monotonic() - begun_s))
        say(_row(all_came[-1]))
        if args.page:
            soak_page.write(args.page, soak_page.with_part(page, "dapo", part(all_came, where)))
    return not any(came.struck.problem for came in all_came)
