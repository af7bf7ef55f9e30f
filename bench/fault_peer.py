"""What torch's own `torchfrtrace` says of the flight recorder's dumps of a run: the peer of `faults.py`.

It is given every advantage: all ranks that can write a dump do so at once, the process groups' members, which a dump of gloo
lacks (it would end with a KeyError), are put in, and it may work without the dumps of dead ranks.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

LIMIT_S = 60.0
BLAME = re.compile(r"missing ranks: \{([\d, ]+)\}|(Culprit rank \d+;.*)")
CULPRIT = re.compile(r"Culprit rank (\d+);")
EXACT, AMBIGUOUS, WRONG, UNDECIDED = "exact", "ambiguous", "wrong", "undecided"


@dataclass(frozen=True)
class Opinion:
    """What it came to."""

    result: str
    """exact: those at fault and nobody else; ambiguous: others too, or not all; wrong: others; undecided: nobody."""
    ranks: tuple[int, ...] = ()
    reason: str = ""
    first: str = UNDECIDED
    """The same of the first entry alone that it finds fault with: what a generous reader takes for the cause."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"result": self.result, "ranks": list(self.ranks), "reason": self.reason, "first": self.first}


def available() -> str:
    """Why it cannot be asked here; empty if it can."""
    from importlib.util import find_spec

    missing = [name for name in ("torch.distributed.flight_recorder", "tabulate") if find_spec(name) is None]
    return f"{', '.join(missing)} is not installed (pip install tabulate; torch >= 2.10)" if missing else ""


def ask(folder: str, at_fault: Iterable[int]) -> Opinion:
    """Let it read the dumps in a folder and hold what it says against the truth."""
    if not os.path.isdir(folder) or not os.listdir(folder):
        return Opinion(UNDECIDED, reason="no rank wrote a dump")
    argv = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", folder, "-p", "rank_"]
    try:
        done = subprocess.run(
            [*argv, "--allow-incomplete-ranks"], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Opinion(UNDECIDED, reason=f"not done after {LIMIT_S:g} s")
    said = done.stdout + done.stderr
    reason = "" if done.returncode == 0 else said.strip().splitlines()[-1][:200]
    blamed = blamed_in(said)
    everybody = tuple(sorted({rank for entry in blamed for rank in entry}))
    first = compare(blamed[0] if blamed else (), at_fault)
    return Opinion(compare(everybody, at_fault), everybody, reason, first)


def blamed_in(said: str) -> list[tuple[int, ...]]:
    """Return the ranks that its output blames, entry by entry."""
    found = []
    for missing, culprits in BLAME.findall(said):
        words = missing.split(",") if missing else CULPRIT.findall(culprits)
        found.append(tuple(sorted({int(word) for word in words})))
    return found


def compare(named: tuple[int, ...], at_fault: Iterable[int]) -> str:
    """Hold the ranks that it blames against those at fault."""
    truth = set(at_fault)
    if not named:
        return UNDECIDED
    if set(named) == truth:
        return EXACT
    return AMBIGUOUS if truth & set(named) else WRONG
