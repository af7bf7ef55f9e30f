"""Who waits for whom, drawn: ranks that wait in the same call for the same peers are one box, those at fault another; arrows lead to those awaited. Pure.

Boxes stand in layers: those that no rank waits for on top, those that all waits lead to at the bottom. Of many boxes only
those are drawn from which the ranks at fault are reached in the fewest steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from robust_run.report.pages.markup import text
from robust_run.report.pages.states import STATE_WORDS, RankState, State, worst
from robust_run.report.pages.words import count
from robust_run.tracer.types import Wait
from robust_run.tracer.wake.types import WakeChain
from robust_run.tracer.words import span

#: Boxes that are drawn, and those of one layer.
MOST_BOXES = 14
MOST_BESIDE = 4

#: States that give a box its colour: ranks that wait in the same call without being at fault stand in a box of their own.
_GUILTY = ("culprit", "suspect")

_WIDE, _HIGH, _GAP_X, _GAP_Y, _EDGE = 300, 66, 28, 54, 6
#: Room beside the boxes for arrows that lead back up.
_BESIDE = 30
#: Lines of a box, and characters of one, in bold and in plain type.
_LINES, _BOLD, _PLAIN = 3, 30, 40


class RankBox(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that do the same."""

    ranks: tuple[int, ...]
    what: str
    """The call they wait in; empty: they wait for no rank that is known."""
    awaited: tuple[int, ...] = ()
    since_s: float = 0.0
    state: State = "waiting"
    doing: str = ""
    name: str = ""
    """Of what is no rank but may wake one: a process, a service, a file."""


class WaitDrawing(msgspec.Struct, frozen=True, kw_only=True):
    """Boxes in layers, top first, and arrows between their indexes."""

    boxes: tuple[RankBox, ...]
    layers: tuple[tuple[int, ...], ...]
    edges: tuple[tuple[int, int], ...]
    left_out: int = 0
    """Boxes that are not drawn."""


def graph_of(
    waits: Sequence[Wait], states: Mapping[int, RankState], chains: Sequence[tuple[int, WakeChain]] = ()
) -> WaitDrawing:
    """Return the picture of who waits for whom; without boxes where no rank waits. `chains`: what ranks wait for, by rank."""
    newest: dict[int, Wait] = {}
    for wait in waits:
        newest.setdefault(wait.waiter, wait)
    members: dict[tuple[str, tuple[int, ...], bool], list[Wait]] = {}
    for wait in newest.values():
        known_state = states.get(wait.waiter)
        guilty = known_state is not None and known_state.state in _GUILTY
        members.setdefault((wait.what, wait.awaited, guilty), []).append(wait)
    boxes = [
        RankBox(
            ranks=tuple(sorted(wait.waiter for wait in same)),
            what=what,
            awaited=awaited,
            since_s=max(wait.since_s for wait in same),
            state=worst([states[wait.waiter].state for wait in same if wait.waiter in states]),
        )
        for (what, awaited, _), same in members.items()
    ]
    ends: dict[tuple[State, str], list[int]] = {}
    for rank in sorted({rank for box in boxes for rank in box.awaited} - set(newest)):
        known = states.get(rank, RankState("unseen"))
        ends.setdefault((known.state, known.doing), []).append(rank)
    first = -1
    for (state, doing), ranks in ends.items():
        chain = next((chain for rank, chain in chains if rank in ranks), None)
        links = _links(chain, first) if chain is not None else []
        awaited = (first,) if links else ()
        boxes += [RankBox(ranks=tuple(ranks), what="", awaited=awaited, state=state, doing=doing), *links]
        first -= len(links)
    return _arranged(boxes)


def _links(chain: WakeChain, first: int) -> list[RankBox]:
    """Return the boxes of a chain after the rank itself. They stand for no rank, so they have numbers below zero."""
    named = [(f"pid {link.pid} {link.command}".rstrip(), link.wait.doing) for link in chain.links[1:]]
    named += [(" or ".join(chain.ends), "")] if chain.ends else []
    return [
        RankBox(
            ranks=(first - at,),
            what="",
            awaited=(first - at - 1,) if at + 1 < len(named) else (),
            state="unseen",
            doing=doing,
            name=name,
        )
        for at, (name, doing) in enumerate(named)
    ]


def _arranged(boxes: Sequence[RankBox]) -> WaitDrawing:
    box_of = {rank: index for index, box in enumerate(boxes) for rank in box.ranks}
    onward = [
        sorted({box_of[rank] for rank in box.awaited if rank in box_of} - {index}) for index, box in enumerate(boxes)
    ]
    chosen = _relevant(boxes, onward)
    depth = _depths(chosen, onward)
    by_depth: dict[int, list[int]] = {}
    for index in chosen:
        by_depth.setdefault(depth[index], []).append(index)
    layers: list[tuple[int, ...]] = []
    for level in sorted(by_depth, reverse=True):
        row = sorted(by_depth[level], key=lambda index: boxes[index].ranks)
        layers += [tuple(row[start : start + MOST_BESIDE]) for start in range(0, len(row), MOST_BESIDE)]
    edges = tuple((index, to) for index in chosen for to in onward[index] if to in depth)
    return WaitDrawing(boxes=tuple(boxes), layers=tuple(layers), edges=edges, left_out=len(boxes) - len(chosen))


def _relevant(boxes: Sequence[RankBox], onward: Sequence[Sequence[int]]) -> list[int]:
    """Return the boxes nearest to those at fault, against the arrows."""
    back: dict[int, list[int]] = {}
    for index, targets in enumerate(onward):
        for to in targets:
            back.setdefault(to, []).append(index)
    begin = [index for index, box in enumerate(boxes) if box.state in _GUILTY]
    begin = begin or [index for index, targets in enumerate(onward) if not targets]
    chosen: dict[int, None] = dict.fromkeys(begin)
    queue = list(begin)
    while queue:
        for index in sorted(back.get(queue.pop(0), ()), key=lambda one: -len(boxes[one].ranks)):
            if index not in chosen:
                chosen[index] = None
                queue.append(index)
    rest = sorted(set(range(len(boxes))) - set(chosen), key=lambda one: -len(boxes[one].ranks))
    return [*chosen, *rest][:MOST_BOXES]


def _depths(chosen: Sequence[int], onward: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return how many arrows lead on from each box at most; a circle is cut where it is entered again."""
    depth: dict[int, int] = {}

    def measure(index: int, path: frozenset[int]) -> int:
        if index not in depth:
            further = [measure(to, path | {index}) for to in onward[index] if to in allowed and to not in path]
            depth[index] = 1 + max(further, default=-1)
        return depth[index]

    allowed = set(chosen)
    for index in chosen:
        measure(index, frozenset((index,)))
    return depth


def wait_graph(graph: WaitDrawing) -> str:
    """Return the picture as SVG with the same in words below it."""
    if not graph.boxes:
        return ""
    widest = max(len(layer) for layer in graph.layers)
    level_of = {index: level for level, layer in enumerate(graph.layers) for index in layer}
    leads_back = any(level_of[one] >= level_of[other] for one, other in graph.edges)
    width = widest * _WIDE + (widest - 1) * _GAP_X + 2 * (_BESIDE if leads_back else _EDGE)
    height = len(graph.layers) * _HIGH + (len(graph.layers) - 1) * _GAP_Y + 2 * _EDGE
    places: dict[int, tuple[float, float]] = {}
    for level, layer in enumerate(graph.layers):
        left = (width - len(layer) * _WIDE - (len(layer) - 1) * _GAP_X) / 2
        for column, index in enumerate(layer):
            places[index] = (left + column * (_WIDE + _GAP_X), _EDGE + level * (_HIGH + _GAP_Y))
    edges = "".join(_edge(places[one], places[other]) for one, other in graph.edges)
    boxes = "".join(_box(graph.boxes[index], *places[index]) for index in places)
    more = f"<p class=dim>{count(graph.left_out, 'group')} of ranks that wait elsewhere are not drawn</p>"
    return (
        f"<div class='graph scroll' tabindex=0 role=region aria-label='who waits for whom'>"
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role=img '
        'aria-label="boxes are ranks, arrows lead to those they wait for">'
        '<defs><marker id=tip viewBox="0 0 8 8" refX=7 refY=4 markerWidth=8 markerHeight=8 orient=auto>'
        f'<path class=tip d="M0 0L8 4L0 8z"/></marker></defs>{edges}{boxes}</svg></div>{more if graph.left_out else ""}'
    )


def _edge(one: tuple[float, float], other: tuple[float, float]) -> str:
    x, y = one[0] + _WIDE / 2, one[1] + _HIGH
    to_x, to_y = other[0] + _WIDE / 2, other[1] - 2
    if to_y > y:  # downwards
        bend = (to_y - y) / 2
        return f'<path class=edge marker-end="url(#tip)" d="M{x:g} {y:g}C{x:g} {y + bend:g} {to_x:g} {to_y - bend:g} {to_x:g} {to_y:g}"/>'
    y, to_y = one[1] + _HIGH / 2, other[1] + _HIGH / 2  # back up or beside: from side to side
    right = other[0] >= one[0]
    x, to_x = (one[0] + _WIDE, other[0] - 2) if right and other[0] > one[0] else (one[0], other[0] + _WIDE + 2)
    if other[0] == one[0]:
        x, to_x = one[0] + _WIDE, other[0] + _WIDE + 2
    bend = 24 if x < to_x or other[0] == one[0] else -24
    back = -bend if other[0] != one[0] else bend
    return f'<path class=edge marker-end="url(#tip)" d="M{x:g} {y:g}C{x + bend:g} {y:g} {to_x + back:g} {to_y:g} {to_x:g} {to_y:g}"/>'


def _box(box: RankBox, x: float, y: float) -> str:
    guilty = box.state in _GUILTY
    lines = _told(box)
    strong = len(_wrapped(lines[0], _BOLD))
    shown = [each for at, line in enumerate(lines) for each in _wrapped(line, _BOLD if at == 0 else _PLAIN)]
    if len(shown) > _LINES:
        shown = [*shown[: _LINES - 1], f"{shown[_LINES - 1][: _BOLD - 1]}…"]
    ink = f" s-{box.state}-ink" if guilty else ""
    # Texts stand in a picture of their own, whose edges nothing can leave: no font is sure to be as narrow as we think.
    return (
        f"<g><title>{text('; '.join(lines), 400)}</title>"
        f'<rect class="box s-{box.state}" x="{x:g}" y="{y:g}" width="{_WIDE}" height="{_HIGH}" rx="7"/>'
        f'<svg x="{x:g}" y="{y:g}" width="{_WIDE - 6}" height="{_HIGH}">'
        + "".join(
            f'<text class="{f"strong{ink}" if at < strong else "dim"}" x=12 y={height}>{text(line)}</text>'
            for at, (line, height) in enumerate(zip(shown, (21, 39, 56), strict=False))
        )
        + "</svg></g>"
    )


def _told(box: RankBox) -> list[str]:
    """Return what is said of a box: who it is, what it waits in or does, and for whom it waits."""
    if box.name:
        return [box.name, *filter(None, [box.doing])]
    who = count(len(box.ranks), "rank") + f" ({span(box.ranks)})" if len(box.ranks) > 1 else f"rank {box.ranks[0]}"
    if box.state in _GUILTY or not box.what:
        who = f"{who}: {STATE_WORDS[box.state]}"
    else:
        who = f"{who} wait{'' if len(box.ranks) > 1 else 's'}"
    if not box.what:
        return [who, *filter(None, [box.doing])]
    awaited = (
        f"for {'rank' if len(box.awaited) == 1 else 'ranks'} {span(box.awaited)}"
        if box.awaited
        else "though all have come"
    )
    return [who, _cut(f"in {box.what}"), _cut(f"{awaited}, {box.since_s:.1f} s so far")]


def _wrapped(line: str, most: int) -> list[str]:
    """Return a line as several that are not too long, broken at spaces where there are any."""
    found: list[str] = []
    while len(line) > most:
        at = line.rfind(" ", 1, most + 1)
        found.append(line[:at] if at > 0 else line[:most])
        line = line[at + 1 :] if at > 0 else line[most:]
    return [*found, line]


def _cut(line: str, most: int = _PLAIN) -> str:
    return line if len(line) <= most else f"{line[: most - 1]}…"
