"""Lemon nodes: those that fail more often than chance explains. Pure.

Where all nodes fail at one rate, and that rate is not known, a node's share of all failures is binomial with its share of the
node time: an exact test against the fleet itself. As many nodes are looked at, the least probable one is named only if it stays
improbable times their number (Bonferroni); then it is taken out, and the others are compared with each other. Bonferroni and not
Benjamini-Hochberg: a name keeps a node out of jobs, so that none may be wrong by chance, not one in twenty.

What looks the same and is no lemon, and how it is told apart:

- a node on which one fault struck again and again until it was repaired: failures within an hour are one;
- the node of a rank whose data or code is bad, which fails wherever it runs: programs and shared storage do not count, and what a
  program may have done as well (a CUDA error, a hang, no known part) counts once in a run;
- nodes behind a switch, or of a group of which one is guilty: an incident that names several is nobody's own;
- the node of a process that somebody killed, or that somebody sent away: what has no known part counts only where ranks waited;
- a guess: verdicts of low confidence do not count;
- a node that was seen for an hour and failed at once: fewer than three failures name nobody.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from robust_run.fleet.poisson import share_at_least
from robust_run.fleet.rates import AGAIN_S, MACHINE, rate
from robust_run.fleet.results import Lemon, LemonSearch
from robust_run.fleet.words import IncidentFacts, RunFacts

LEVEL = 0.01
"""How probable it may be that any healthy node of a fleet is named."""
FEWEST = 3
TIMES = 2.0
"""Who fails less than so many times as often as the others is not named, however sure it is."""
_MOST_NAMED = 1000
#: What sensors see that may be the rank's work, not its node.
_ALSO_PROGRAMS = ("training.", "outlier.", "memory.")
#: Where a node has nearly all the time, no number of failures is improbable.
_MOST_MORE = 1000
#: Rules of what people or their list of nodes asked for.
_ORDERED = frozenset({"node_evicted", "operator", "node_left"})


class Failure(msgspec.Struct, frozen=True):
    """One failure of a node's own."""

    at_s: float
    kind: str
    run: int
    """A number of its run."""


def own_failures(runs: Sequence[RunFacts]) -> dict[str, list[Failure]]:
    """Return what counts against each node, in order."""
    found: dict[str, list[Failure]] = {}
    seen: set[tuple[int, str]] = set()
    for index, run in enumerate(runs):
        for each in sorted(run.incidents, key=lambda each: (each.at_s, each.number)):
            if not _counts(each):
                continue
            node = each.nodes[0]
            if not _is_certain(each):
                if (index, node) in seen:
                    continue
                seen.add((index, node))
            found.setdefault(node, []).append(Failure(each.at_s, each.kind, index))
    return {node: _apart(failures) for node, failures in sorted(found.items())}


def _counts(incident: IncidentFacts) -> bool:
    if len(incident.nodes) != 1 or incident.confidence == "low" or incident.rule in _ORDERED:
        return False
    if incident.component in MACHINE:
        return incident.kind not in ("stopped", "code", "nan")
    return incident.component == "unknown" and incident.kind in ("hang", "comm_stall", "slow")


def _is_certain(incident: IncidentFacts) -> bool:
    """Whether no program can have done it: a sensor or a check saw it, or it is the hardware's by its nature."""
    trouble = incident.trouble.removeprefix("worker.")
    is_seen = "." in trouble and not trouble.startswith(_ALSO_PROGRAMS)
    is_hardware = trouble in ("ecc", "gpu_lost") or incident.kind in ("node_lost", "node_fault")
    return incident.component in MACHINE and (is_seen or is_hardware)


def _apart(failures: Iterable[Failure]) -> list[Failure]:
    """Return the first of each row of failures that follow each other within an hour."""
    kept: list[Failure] = []
    last_s = float("-inf")
    for each in sorted(failures, key=lambda each: (each.at_s, each.kind, each.run)):
        if each.at_s - last_s > AGAIN_S:
            kept.append(each)
        last_s = each.at_s
    return kept


def search(failures: Mapping[str, Sequence[Failure]], node_s: Mapping[str, float]) -> LemonSearch:
    """Return the lemons among nodes whose time is known."""
    left = {node: lasted_s for node, lasted_s in node_s.items() if lasted_s > 0.0}
    counts = {node: len(failures.get(node, ())) for node in left}
    nodes, total = len(left), sum(counts.values())
    lemons: list[Lemon] = []
    while len(left) > 1 and len(lemons) < _MOST_NAMED:
        sum_s, sum_count = sum(left.values()), sum(counts[node] for node in left)
        worst, chance = _least_probable(counts, left, sum_count, sum_s)
        if not worst or chance * len(left) > LEVEL:
            break
        lemons.append(_lemon(worst, failures[worst], chance * len(left), left, sum_count, sum_s))
        del left[worst]
    named = tuple(each for each in lemons if each.times >= TIMES)
    return LemonSearch(lemons=named, nodes=nodes, failures=total, needed=_needed(counts, left))


def _least_probable(
    counts: Mapping[str, int], node_s: Mapping[str, float], total: int, sum_s: float
) -> tuple[str, float]:
    found, least = "", 1.0
    for node, lasted_s in node_s.items():
        if counts[node] < FEWEST:
            continue
        chance = share_at_least(counts[node], total, lasted_s / sum_s)
        if chance < least:
            found, least = node, chance
    return found, least


def _lemon(
    node: str, failures: Sequence[Failure], chance: float, node_s: Mapping[str, float], total: int, sum_s: float
) -> Lemon:
    others = (total - len(failures)) / (sum_s - node_s[node])
    own = rate(len(failures), node_s[node])
    assert own is not None, "its time is known"
    kinds: dict[str, int] = {}
    for each in failures:
        kinds[each.kind] = kinds.get(each.kind, 0) + 1
    # Others without any failure: as if they had one, else it would be infinitely many times as often.
    against = max(others, 1.0 / (sum_s - node_s[node]))
    return Lemon(
        node=node,
        failures=len(failures),
        expected=others * node_s[node],
        times=len(failures) / node_s[node] / against,
        chance=chance,
        rate=own,
        kinds=dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0]))),
        runs=len({each.run for each in failures}),
        last_s=max(each.at_s for each in failures),
    )


def _needed(counts: Mapping[str, int], node_s: Mapping[str, float]) -> int | None:
    """Return from how many failures on a typical node would be named, beside what the others have; None: no number would do."""
    if len(node_s) < 2:
        return None
    total = sum(counts[node] for node in node_s)
    share = statistics.median_low(node_s.values()) / sum(node_s.values())
    least = max(FEWEST, int(total * share))
    for count in range(least, least + _MOST_MORE):
        if share_at_least(count, total + count, share) * len(node_s) <= LEVEL:
            return count
    return None
