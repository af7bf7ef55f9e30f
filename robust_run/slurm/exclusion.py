"""Which nodes a job is kept from when it is requeued.

Those that were evicted; and, where too few were left, those that are dead. A node whose agent died is not: a program that fills
the memory, or ends the agents itself, does so wherever it runs, and would take one healthy node after the other out of the job.
What is dead may be many, or look so to a node that is cut off; so there is a bound, the one on evictions (`--max-evict-share`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from robust_run.errors import UserError
from robust_run.slurm.rules.hostlist import expand

LOOK_S = 10.0
"""How long dead nodes are looked for: Slurm waits for nobody who is about to end."""


class ExclusionCandidates(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that may have to be left out, and how many may be."""

    evicted: tuple[str, ...] = ()
    known_dead: tuple[str, ...] = ()
    """Slurm has said so already."""
    lost: tuple[str, ...] = ()
    """They went silent: dead, or their agent is."""
    before: frozenset[str] = frozenset()
    """Nodes of this job that it was kept from at earlier requeues."""
    most: int = 1
    """How many may ever be left out without anybody's having said so."""


def most_excluded(share: float, nodes: int) -> int:
    """Return how many nodes a share of the job's is: at least one, unless it is 0. Pure."""
    return max(int(share * nodes + 1e-9), 1) if share > 0 else 0


def excluded_before(text: str, members: Sequence[str]) -> frozenset[str]:
    """Return those names of an ExcNodeList that were nodes of this job: what a user left out never was. Pure."""
    try:
        return frozenset(expand(text)) & frozenset(members)
    except UserError:
        return frozenset()


def chosen(
    candidates: ExclusionCandidates, is_dead: Callable[[str], bool], now_s: Callable[[], float] = time.monotonic
) -> tuple[str, ...]:
    """Return the nodes to leave out, each once. `is_dead` may block; it is asked no longer than `LOOK_S` in all."""
    names = dict.fromkeys(candidates.evicted)
    room = candidates.most - len(candidates.before | names.keys())
    give_up_at_s = now_s() + LOOK_S
    for name in dict.fromkeys((*candidates.known_dead, *candidates.lost)):
        if room <= 0 or now_s() >= give_up_at_s:
            break
        if name not in names and name not in candidates.before and (name in candidates.known_dead or is_dead(name)):
            names[name] = None
            room -= 1
    return tuple(names)
