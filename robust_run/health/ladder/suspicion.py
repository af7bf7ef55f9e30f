"""Suspicion of nodes: what was held against them, halved with every half-life. Pure; times are the caller's clock.

A suspicion is no verdict. It decides when nodes are checked, and who goes first where one of several has to; alone it evicts a
node only if that was blamed again and again, stands out from all others, and checks could not say why it failed again.
What is long ago counts for nothing, so a node that was unlucky once is as good as any other soon.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

#: What one verdict that names a single node weighs; one that names several is shared by them.
BLAMED = 1.0
#: A node counts as suspect from here on: one verdict within a half-life.
SUSPECT = 0.5
#: Blamed about twice within a short time: it may be taken out for that alone, where it stands out and another can take over.
OFTEN = 1.5
#: It stands out if no other has more than this share of its weight.
OTHERS = 0.5
#: Checks that found nothing on a node leave so much: faults come and go, and so pass checks.
AFTER_CHECKS = 0.5
#: Below this nothing is remembered.
FORGOTTEN = 1 / 16
#: So many nodes are remembered, those with most.
MOST = 1000
HALF_LIFE_S = 12 * 3600.0


class Suspicion(msgspec.Struct, frozen=True, kw_only=True):
    """What is held against one node."""

    weight: float
    """At `at_s`."""
    at_s: float
    why: str = ""
    """The newest reason, a sentence."""


Suspicions = Mapping[str, Suspicion]
"""By host name."""


def weight_of(found: Suspicions, name: str, now_s: float, half_life_s: float = HALF_LIFE_S) -> float:
    """Return what is held against a node now."""
    one = found.get(name)
    if one is None:
        return 0.0
    return float(one.weight * 0.5 ** (max(now_s - one.at_s, 0.0) / half_life_s))


def suspect(
    found: Suspicions,
    names: Iterable[str],
    weight: float,
    why: str,
    now_s: float,
    half_life_s: float = HALF_LIFE_S,
    *,
    at_most: float = float("inf"),
) -> dict[str, Suspicion]:
    """Return the suspicions with `weight` more, shared by these nodes.

    `at_most`: this kind of reason lifts none above it, however often it comes. A bug that only rank 0 has looks like a node that
    crashes again and again, and a machine with too much to do logs each of its CPUs.
    """
    names = tuple(dict.fromkeys(names))
    kept = _faded(found, now_s, half_life_s)
    for name in names:
        before = kept[name].weight if name in kept else 0.0
        after = max(min(before + weight / len(names), at_most), before)
        kept[name] = Suspicion(weight=after, at_s=now_s, why=why[:500])
    most = sorted(kept, key=lambda name: -kept[name].weight)[:MOST]
    return {name: one for name, one in kept.items() if len(kept) <= MOST or name in most}


def passed(
    found: Suspicions, names: Iterable[str], now_s: float, half_life_s: float = HALF_LIFE_S
) -> dict[str, Suspicion]:
    """Return the suspicions after checks that found nothing on these nodes."""
    kept = _faded(found, now_s, half_life_s)
    for name in set(names).intersection(kept):
        kept[name] = msgspec.structs.replace(kept[name], weight=kept[name].weight * AFTER_CHECKS)
    return kept


def held_together(found: Suspicions, names: Iterable[str], now_s: float, half_life_s: float = HALF_LIFE_S) -> float:
    """Return what is held against nodes together: a verdict may name one of them now and several next time."""
    return sum(weight_of(found, name, now_s, half_life_s) for name in set(names))


def worst_first(
    found: Suspicions, names: Iterable[str], now_s: float, half_life_s: float = HALF_LIFE_S
) -> tuple[str, ...]:
    """Return nodes by what is held against them, most first; equals stay in the order they came in."""
    return tuple(sorted(dict.fromkeys(names), key=lambda name: -weight_of(found, name, now_s, half_life_s)))


def outstanding(
    found: Suspicions, names: Iterable[str], least: float, now_s: float, half_life_s: float = HALF_LIFE_S
) -> str:
    """Return the one of these nodes that is suspect and stands out from the others; empty: none does, or two do."""
    ordered = worst_first(found, names, now_s, half_life_s)
    weights = [weight_of(found, name, now_s, half_life_s) for name in ordered[:2]]
    if not weights or weights[0] < least or (len(weights) > 1 and weights[1] > OTHERS * weights[0]):
        return ""
    return ordered[0]


def from_now(found: Suspicions, now_s: float) -> dict[str, Suspicion]:
    """Return the suspicions by another clock: how much time went by is not known, so none did."""
    return {name: msgspec.structs.replace(one, at_s=now_s) for name, one in found.items()}


def _faded(found: Suspicions, now_s: float, half_life_s: float) -> dict[str, Suspicion]:
    """Return what is left now, all of it at this time."""
    left = {name: weight_of(found, name, now_s, half_life_s) for name in found}
    return {
        name: msgspec.structs.replace(found[name], weight=weight, at_s=now_s)
        for name, weight in left.items()
        if weight >= FORGOTTEN
    }
