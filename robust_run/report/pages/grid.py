"""The grid of ranks, coloured by state: by node, or by the program's parallel groups. Pure.

MegaScale (arXiv 2402.15627, section 5.2) draws its ranks in their parallel groups, so that one that is stuck stands out among those
that wait for it. Up to `MOST_CELLS` ranks have a cell each; of more, neighbours share one that has the colour of the
worst, and are looked at one by one from the data in the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from robust_run.report.pages.families import GroupFamily
from robust_run.report.pages.frame import data_block
from robust_run.report.pages.markup import join, text
from robust_run.report.pages.states import STATE_WORDS, WORST_FIRST, RankState, worst
from robust_run.report.pages.types import NodePlace
from robust_run.report.pages.words import number
from robust_run.tracer.words import span

#: Ranks that have a cell each.
MOST_CELLS = 512
#: Ranks whose cells have room for their number.
NUMBERED = 128
#: Cells of a view where ranks share them, and lines of such a view.
SHARED_CELLS = 1024
MOST_ROWS = 24
#: Ranks that are listed in words because they are not as the others.
MOST_LISTED = 64

_PANEL = (
    "<div class='panel screen' id=rank-panel role=status aria-live=polite>"
    "<span class=dim>Choose a rank to see what it did: click it, or go there with Tab and the arrow keys.</span></div>"
)

_Row = tuple[str, tuple[int, ...]]


def grid(places: Sequence[NodePlace], kinds: Sequence[GroupFamily], states: Mapping[int, RankState]) -> str:
    """Return legend, views and the panel where a rank is looked at."""
    views = [("by node", _rows_of_nodes(places, states))]
    views += [(kind.name, [(group.label, group.ranks) for group in kind.groups]) for kind in kinds]
    views = [(name, rows) for name, rows in views if rows]
    dense = " dense" if NUMBERED < len(states) <= MOST_CELLS else " mass" if len(states) > MOST_CELLS else ""
    return (
        _legend(states)
        + _tabs([name for name, _ in views])
        + join(
            f"<div class='view v{index}{dense}' role=group aria-label='{text(name)}'>{_view(rows, states)}</div>"
            for index, (name, rows) in enumerate(views)
        )
        + (_PANEL if len(states) > MOST_CELLS or any(each.doing for each in states.values()) else "")
        + _listed(states)
        + data_block("rank-data", _data(places, states))
    )


def _legend(states: Mapping[int, RankState]) -> str:
    counts = Counter(each.state for each in states.values())
    return (
        "<ul class=legend>"
        + join(
            f"<li><i class='swatch s-{state}'></i>{number(counts[state])} {STATE_WORDS[state]}</li>"
            for state in WORST_FIRST
            if counts[state]
        )
        + "</ul>"
    )


def _tabs(names: Sequence[str]) -> str:
    """Return what chooses a view: radio buttons, which need no script; the first is chosen."""
    rules = join(
        f"#pick{index}:checked~.v{index}{{display:block}}#pick{index}:checked~.tabs label[for=pick{index}]"
        "{background:var(--ink);color:var(--paper);border-color:var(--ink)}"
        f"#pick{index}:focus-visible~.tabs label[for=pick{index}]{{outline:2px solid var(--link);outline-offset:2px}}"
        for index in range(len(names))
    )
    picks = join(
        f"<input class=pick type=radio name=view id=pick{index}{' checked' if not index else ''} "
        f'aria-label="{text(name)}">'
        for index, name in enumerate(names)
    )
    labels = join(f"<label for=pick{index}>{text(name)}</label>" for index, name in enumerate(names))
    tabs = f"<div class=tabs>{labels}</div>" if len(names) > 1 else ""
    return f"<style>{rules}</style>{picks}{tabs}"


def _rows_of_nodes(places: Sequence[NodePlace], states: Mapping[int, RankState]) -> list[_Row]:
    rows = [(place.node, tuple(range(place.first_rank, place.first_rank + place.nproc))) for place in places]
    known = sum(len(ranks) for _, ranks in rows)
    if known < len(states):
        rows.append(("node not known", tuple(rank for rank in states if rank >= known)))
    return rows


def _view(rows: Sequence[_Row], states: Mapping[int, RankState]) -> str:
    if len(states) <= MOST_CELLS:
        return join(
            _row(name, [(rank,) for rank in ranks], states, first=not at) for at, (name, ranks) in enumerate(rows)
        )
    together = -(-len(rows) // MOST_ROWS)
    share = max(1, -(-len(states) // SHARED_CELLS))
    pieces = []
    for start in range(0, len(rows), together):
        block = rows[start : start + together]
        name = block[0][0] if len(block) == 1 else f"{block[0][0]} to {block[-1][0]}"
        ranks = tuple(rank for _, members in block for rank in members)
        cells = [ranks[at : at + share] for at in range(0, len(ranks), share)]
        pieces.append(_row(name, cells, states, first=not start))
    return join(pieces)


def _row(name: str, cells: Sequence[Sequence[int]], states: Mapping[int, RankState], *, first: bool) -> str:
    drawn, hit = [], False
    for index, ranks in enumerate(cells):
        state = worst([states[rank].state for rank in ranks if rank in states])
        hit = hit or state in ("culprit", "suspect", "shown")
        who = _spans(ranks)
        doing = states[ranks[0]].doing if len(ranks) == 1 and ranks[0] in states else ""
        said = f"rank{'' if len(ranks) == 1 else 's'} {who}: {STATE_WORDS[state]}{'; ' + doing if doing else ''}"
        tab = 0 if first and not index else -1
        number_in = who if len(states) <= NUMBERED else ""
        drawn.append(
            f"<button type=button class='cell s-{state}' data-r={who} tabindex={tab} "
            f'title="{text(said, 200)}">{number_in}</button>'
        )
    cells_in = f"<div class=cells>{join(drawn)}</div>"
    return f"<div class='row{' hit' if hit else ''}'><span>{text(name, 80)}</span>{cells_in}</div>"


def _spans(ranks: Sequence[int]) -> str:
    """Return all ranks as `0-3,7`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs)


def _listed(states: Mapping[int, RankState]) -> str:
    """Return in words what those ranks do that matter, for paper and for readers who see no colours."""
    counts = Counter(each.state for each in states.values())
    usual = counts.most_common(1)[0][0] if counts else "working"
    special = [
        (rank, each)
        for rank, each in states.items()
        if each.doing and (each.state in ("culprit", "suspect") or (each.state != usual and counts[each.state] <= 8))
    ]
    special.sort(key=lambda one: (WORST_FIRST.index(one[1].state), one[0]))
    if not special:
        return ""
    lines = join(
        f"<li>rank {rank} {STATE_WORDS[each.state]}: {text(each.doing, 300)}</li>"
        for rank, each in special[:MOST_LISTED]
    )
    more = f"<li>and {len(special) - MOST_LISTED} more</li>" if len(special) > MOST_LISTED else ""
    return f"<ul class=small>{lines}{more}</ul>"


def _data(places: Sequence[NodePlace], states: Mapping[int, RankState]) -> dict[str, object]:
    """Return what the script shows of ranks: stretches of ranks of one state and text, `[length, index, ...]`."""
    texts: dict[tuple[str, str], int] = {}
    runs: list[int] = []
    for rank in range(len(states)):
        one = states[rank]
        index = texts.setdefault((one.state, one.doing[:300]), len(texts))
        if runs and runs[-1] == index:
            runs[-2] += 1
        else:
            runs += [1, index]
    return {
        "nodes": [[place.node, place.first_rank, place.nproc] for place in places],
        "texts": [list(each) for each in texts],
        "of": runs,
        "words": STATE_WORDS,
    }


def summary(states: Mapping[int, RankState]) -> str:
    """Return in one line how the ranks were."""
    by_state: dict[str, list[int]] = {}
    for rank, each in states.items():
        by_state.setdefault(each.state, []).append(rank)
    return "; ".join(f"{STATE_WORDS[state]}: {span(by_state[state])}" for state in WORST_FIRST if state in by_state)
