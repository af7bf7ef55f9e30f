"""What the benches share in which a node loses power: what workers noted after that, losses in turns, and their table."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sidebyside import shown

SPREAD = 0.618
"""Fraction of the time between heartbeats by which the moment of the loss moves from one to the next."""

Outcomes = dict[str, list[str]]
"""By side: what came of each loss; `recovered` if training went on."""


def notes(folder: Path, name: str, after_s: float = 0.0) -> dict[int, float]:
    """When each rank first noted something after a moment, in any attempt."""
    found: dict[int, float] = {}
    for path in folder.glob("marks-*-*"):
        rank = int(path.name.rpartition("-")[2])
        for line in path.read_text(encoding="ascii").splitlines(keepends=True):
            what, at_s, _ = line.split() if line.endswith("\n") else ("", "0", "")
            if what == name and float(at_s) > after_s:
                found[rank] = min(found.get(rank, float("inf")), float(at_s))
    return found


class JournalSoFar:
    """What robust-run has put on record by now; nothing where there is no journal."""

    def __init__(self, path: Path) -> None:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        self._lines: list[dict[str, Any]] = [json.loads(line) for line in lines if line.endswith("}\n")]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind."""
        return [line["event"] for line in self._lines if line.get("event", {}).get("type") == kind]

    def ordered_at_s(self, kind: str) -> list[float]:
        """When the controller ordered something, each time."""
        return [line["mono"] for line in self._lines if line.get("action", {}).get("type") == kind]


def wait(condition: Callable[[], Any], limit_s: float, look_every_s: float) -> bool:
    """Wait for a condition; return whether it came true."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(look_every_s)
    return True


def work_until_loss(run_s: float, number: int) -> None:
    """Let the job work; how long is different for each loss, so that they are spread over the time between heartbeats."""
    time.sleep(run_s + (number * SPREAD) % 1.0)


def in_turns(
    args: argparse.Namespace,
    chosen: Sequence[str],
    deadline_s: float,
    lose_one: Callable[[str, int], str],
    title: str = "",
) -> Outcomes:
    """Have each side lose nodes, in turns, until the deadline. `lose_one(side, number)` returns what came of it."""
    outcomes: Outcomes = {side: [] for side in chosen}
    for number in range(args.losses):
        for side in chosen:
            if time.monotonic() > deadline_s:
                print(f"stopped: --limit-s {args.limit_s:.0f} is over", flush=True)
                break
            outcomes[side].append(lose_one(side, number))
            print(f"{title}{side}, loss {number + 1}: {outcomes[side][-1]}", flush=True)
    return outcomes


def print_losses(
    title: str, summary: Mapping[str, Any], outcomes: Outcomes, columns: Mapping[str, str], labels: Mapping[str, str]
) -> None:
    """A table: a line per side. `columns`: the figures to show, and their headings."""
    print(f"\n{title}: median (min-max)")
    print(f"  {'':<36}{'recovered':>10}" + "".join(f"{heading:>24}" for heading in columns.values()))
    for side, came in outcomes.items():
        cells = "".join(f"{shown(summary.get(name, {}).get(side)):>24}" for name in columns)
        recovered = f"{came.count('recovered')} of {len(came)}"
        print(f"  {labels[side]:<36}{recovered:>10}{cells}", flush=True)


def is_unmeasured(outcomes: Mapping[str, Iterable[str]]) -> bool:
    """Whether a side could not be measured at all: no job of it started."""
    return any(set(came) <= {"broken_start"} for came in outcomes.values())
