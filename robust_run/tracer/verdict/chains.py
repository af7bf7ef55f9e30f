"""Who waits for whom over ranks and hosts, in one line: `ranks 1-7 ← rank 0 (gpu-03) ← pid 4711 curl ← 10.0.0.3:443`. Pure.

A chain is drawn against its waits: ranks that are waited for in the end stand behind those that wait for them, nearest last. All
ranks that are equally far are one part, so that each of a part waits for one of the next.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from robust_run.tracer.verdict.graph import deadlocked, dependents, sinks
from robust_run.tracer.verdict.picture import Picture, WaitPlace
from robust_run.tracer.verdict.wake import ARROW, CHAINS, Wake
from robust_run.tracer.words import SENTENCE_CHARACTERS, count_words, one_line, ranks_words, span

#: Of ranks that are missed in the same calls, so many are looked at.
_LOOKED_AT = 64
#: Parts of ranks, or of processes, that are drawn of many; of a circle of more the calls are not said.
_MOST_PARTS = 6
_TOLD_PARTS = 4
#: What differs between ranks that wait alike: numbers of processes, and times.
_OWN = re.compile(r"(?<=pid )\d+|(?<=child )\d+|(\d+(\.\d+)? (s|min|h)\b ?)+")


class RankChain(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that wait, whom they wait for in the end, and what that waits for."""

    line: str
    """For people."""
    ranks: tuple[int, ...]
    """Who is waited for in the end; of a circle all that are in it."""
    waiters: tuple[int, ...] = ()
    """All that wait for these, directly or over others."""
    since_s: float = 0.0
    """For how long."""
    is_circle: bool = False


class RankChains(msgspec.Struct, frozen=True, kw_only=True):
    """The first few chains of a scene, and whom further ones would be about."""

    drawn: tuple[RankChain, ...] = ()
    left_out: tuple[int, ...] = ()

    @property
    def lines(self) -> list[str]:
        """Return a line for each, and one for those that are not drawn."""
        more = f"{count_words(len(self.left_out), 'more rank')} are waited for ({span(self.left_out)})"
        return [chain.line for chain in self.drawn] + ([more] if self.left_out else [])


def chains_to(picture: Picture, ranks: Sequence[int]) -> RankChains:
    """Return the chains that end at these ranks."""
    missed = sinks(picture)
    circles: list[RankChain] = []
    for rank in ranks[:_LOOKED_AT]:
        is_new = rank not in missed and not any(rank in one.ranks for one in circles)
        if is_new and len(circles) < CHAINS and (found := _circle(picture, rank)) is not None:
            circles.append(found)
    circling = {rank for one in circles for rank in one.ranks}
    ends = {rank: missed.get(rank, []) for rank in ranks if rank not in circling}
    return _drawn(picture, circles, ends)


def all_chains(picture: Picture) -> RankChains:
    """Return the chains of a scene: to those that wait for no rank, and circles."""
    circles: list[RankChain] = []
    places = [here for here in picture.places if not here.inside]
    rest = set(deadlocked(picture, 0.0, places))
    while rest and len(circles) < CHAINS:
        rank = min(rest)
        found = _circle(picture, rank)
        circles += [found] if found is not None else []
        rest -= {rank}
        rest -= {*found.ranks, *found.waiters} if found is not None else set()
    return _drawn(picture, circles, sinks(picture))


def _drawn(picture: Picture, circles: list[RankChain], ends: dict[int, list[WaitPlace]]) -> RankChains:
    alike: dict[tuple[int, ...], list[int]] = {}
    for rank, places in ends.items():
        alike.setdefault(tuple(id(here) for here in places), []).append(rank)
    by_missing = _by_missing(picture)
    wake = Wake(picture)
    drawn = list(circles)
    left_out: list[int] = []
    groups = sorted(alike.values(), key=lambda ranks: (-sum(len(here.waiters) for here in ends[ranks[0]]), min(ranks)))
    for ranks in groups:
        ranks.sort()
        if len(drawn) >= CHAINS:
            left_out += ranks if ends[ranks[0]] else []
            continue
        layers = _layers(by_missing, ranks) if ends[ranks[0]] else []
        same: dict[str, list[int]] = {}
        parts = {rank: wake.parts(rank) for rank in ranks[:_LOOKED_AT]}
        for rank, tail in parts.items():
            same.setdefault(_OWN.sub("#", ARROW.join([picture.where(rank), *tail])), []).append(rank)
        for each in same.values():
            chain = _chain(picture, each, ends[ranks[0]], layers, parts[each[0]])
            if chain is not None and len(drawn) < CHAINS:
                drawn.append(chain)
            elif chain is not None and chain.waiters:
                left_out += each
        left_out += ranks[_LOOKED_AT:] if layers else []
    return RankChains(drawn=tuple(drawn), left_out=tuple(sorted(left_out)))


def _by_missing(picture: Picture) -> dict[int, list[WaitPlace]]:
    found: dict[int, list[WaitPlace]] = {}
    for here in picture.places:
        for rank in here.missing:
            found.setdefault(rank, []).append(here)
    return found


def _layers(by_missing: dict[int, list[WaitPlace]], ranks: Iterable[int]) -> list[tuple[int, ...]]:
    """Return those that wait for the given ranks directly, those that wait for these, and so on."""
    reached = set(ranks)
    places: set[int] = set()
    layers: list[tuple[int, ...]] = []
    near = list(ranks)
    while near:
        new: list[int] = []
        for rank in near:
            for here in by_missing.get(rank, ()):
                if id(here) not in places:
                    places.add(id(here))
                    new += [waiter for waiter in here.waiters if waiter not in reached]
                    reached.update(here.waiters)
        if new:
            layers.append(tuple(sorted(set(new))))
        near = new
    return layers


def _chain(
    picture: Picture, ranks: list[int], places: list[WaitPlace], layers: list[tuple[int, ...]], tail: list[str]
) -> RankChain | None:
    """Return the chain to ranks that are alike; None if there is nothing to draw: no rank waits, and no more is known."""
    if not layers:
        places, layers = _held_by_stopped(picture, ranks)
    if not layers and not (any(tail) and ranks[0] in picture.sights and picture.sights[ranks[0]].exit_code is None):
        return None
    who = f"{_named(ranks)}{_whereabouts(picture, ranks)}{tail[0]}"
    after = tail[1:]
    if len(ranks) > 1 and after:
        after = [f"of rank {ranks[0]}: {after[0]}", *after[1:]]
    parts = [*_cut([_named(layer) for layer in reversed(layers)]), who]
    head, since_s = f"what {_named(ranks)} {'waits' if len(ranks) == 1 else 'wait'} for: ", 0.0
    if places:
        here = min(places, key=lambda one: (one.any_sender, one.since_s))
        since_s = picture.waited_s(here)
        verb = "has" if len(ranks) == 1 else "have"
        head = f"{ranks_words(ranks)} {verb} been waited for in {picture.what(here)} for {since_s:.1f} s: "
    waiters = tuple(sorted(rank for layer in layers for rank in layer))
    return RankChain(line=_fitting(head, parts, after), ranks=tuple(ranks), waiters=waiters, since_s=since_s)


def _held_by_stopped(picture: Picture, ranks: list[int]) -> tuple[list[WaitPlace], list[tuple[int, ...]]]:
    """Return where others wait for a rank that has come, and was stopped there."""
    sights = [picture.sights[rank] for rank in ranks if rank in picture.sights]
    if not any(one.is_rank and one.state == "T" for sight in sights for one in sight.processes):
        return [], []
    places = [here for rank in ranks for here in picture.waiting.get(rank, ()) if not here.missing]
    others = sorted({rank for here in places for rank in here.waiters} - set(ranks))
    return (places, [tuple(others)]) if others else ([], [])


def _circle(picture: Picture, rank: int) -> RankChain | None:
    """Return the shortest circle of waits that a rank is in; None if it is in none."""
    path = _way_back(picture, rank)
    if not path:
        return None
    steps = [
        sorted(set(here.waiters) & set(before.missing)) for before, here in zip([path[-1], *path], path, strict=False)
    ]
    is_told = len(path) <= _TOLD_PARTS
    parts = [
        _named(step) + (_whereabouts(picture, step, f"in {picture.what(here)}") if is_told else "")
        for step, here in zip(steps, path, strict=True)
    ]
    since_s = min(picture.waited_s(here) for here in path)
    ranks = tuple(sorted({one for step in steps for one in step}))
    waiters = tuple(sorted(dependents(picture, ranks) - set(ranks)))
    head = f"{ranks_words(ranks)} have been waiting for each other for {since_s:.1f} s: "
    line = _fitting(head, [*_cut(parts), _named(steps[0])], [])
    if waiters:
        line += f" ({_named(waiters)} {'waits' if len(waiters) == 1 else 'wait'} for them)"
    return RankChain(line=line, ranks=ranks, waiters=waiters, since_s=since_s, is_circle=True)


def _way_back(picture: Picture, rank: int) -> list[WaitPlace]:
    """Return the calls of the shortest circle through a rank, its own first; waits for any sender are none."""
    first = [here for here in picture.waiting.get(rank, ()) if here.missing and not here.any_sender]
    before: dict[int, WaitPlace | None] = {id(here): None for here in first}
    queue = deque(first)
    while queue:
        here = queue.popleft()
        if rank in here.missing:
            path: list[WaitPlace] = []
            back: WaitPlace | None = here
            while back is not None:
                path.append(back)
                back = before[id(back)]
            return path[::-1]
        for missing in here.missing:
            for further in picture.waiting.get(missing, ()):
                if id(further) not in before and not further.any_sender:
                    before[id(further)] = here
                    queue.append(further)
    return []


def _named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {span(ranks)}"


def _whereabouts(picture: Picture, ranks: Sequence[int], doing: str = "") -> str:
    """Return hosts, where the job has several, and the place in the program, in parentheses."""
    nodes = picture.nodes(tuple(ranks)) if picture.several_nodes else ()
    said = [" and ".join(nodes) if len(nodes) <= 2 else count_words(len(nodes), "node")] if nodes else []
    said += [doing or picture.where(ranks[0])]
    text = ", ".join(filter(None, said))
    return f" ({text})" if text else ""


def _cut(parts: list[str]) -> list[str]:
    """Return of many parts the first and the last, and how many are left out."""
    if len(parts) <= _MOST_PARTS:
        return parts
    return [*parts[:2], f"... {len(parts) - _MOST_PARTS + 2} more ...", *parts[-(_MOST_PARTS - 4) :]]


def _fitting(head: str, parts: list[str], after: list[str]) -> str:
    """Return the line; of one that is too long some processes are left out: what is waited for in the end is told."""
    line = head + ARROW.join([*parts, *after])
    middle = len(after) - 1
    while len(line) > SENTENCE_CHARACTERS and middle > 0:
        middle -= 1
        line = head + ARROW.join([*parts, *after[:middle], f"... {len(after) - 1 - middle} more ...", after[-1]])
    return one_line(line)
