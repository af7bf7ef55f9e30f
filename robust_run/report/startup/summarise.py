"""From what all nodes tell of a start to what is kept of it: the ranks' rows, phases, stragglers, who came last. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from robust_run.report.startup.phases import phases_of
from robust_run.report.startup.types import (
    ALL_NODES,
    ALL_RANKS,
    DETAILED_ATTEMPTS,
    MOST_ATTEMPTS,
    MOST_NAMES,
    MOST_ROW_SPANS,
    SLOWEST_NODES,
    SLOWEST_RANKS,
    WAITS,
    AttemptStartup,
    FetchRow,
    NodeStart,
    Phase,
    RankMarks,
    RankRow,
    SchedulerQueue,
    StartSpan,
    Startup,
)
from robust_run.tracer.files.marks import KINDS

#: Gaps between spans that are shorter are no phase of their own.
GAP_S = 0.01
#: The index in `KINDS` from which on they are ways to load a checkpoint.
_FIRST_LOADER = 3


def summarise(
    starts: Sequence[NodeStart],
    *,
    world_size: int,
    nodes: int,
    unix_offset_s: float,
    is_first: bool = False,
    queue: SchedulerQueue | None = None,
) -> AttemptStartup | None:
    """Return what one attempt's start was; None if nothing is known of it. All times of `starts` are of one clock.

    `unix_offset_s`: what wall time is ahead of that clock. `is_first`: this controller has heard of no attempt before it. What
    launchers did before belongs to it, unless the controller is a successor, and nodes are here that had a part before.
    """
    if not starts:
        return None
    is_first = is_first and (starts[0].attempt == 0 or all(start.launched_s is not None for start in starts))
    origins = [_origin(start, is_first) for start in starts]
    began_s = min(origins)
    queue = queue if is_first else None
    lead_s = max(began_s + unix_offset_s - queue.eligible_unix_s, 0.0) if queue is not None else 0.0
    waited = _waited(queue, lead_s)
    rows = [_row(start, rank, began_s, waited, is_first) for start in starts for rank in start.ranks]
    rows = [row for row in rows if row.spans]
    is_complete = len(starts) >= nodes and all(start.is_last for start in starts)
    stepped = [row.first_step_s for row in rows if row.first_step_s is not None]
    seen_s = max(start.seen_s for start in starts) - began_s
    total_s = max(stepped) if len(stepped) == len(rows) and stepped else max([*stepped, seen_s])
    late = sorted(rows, key=lateness, reverse=True)
    by_node: dict[str, RankRow] = {}
    for row in late:
        by_node.setdefault(row.node, row)
    node_rows = _some(list(by_node.values()), ALL_NODES, SLOWEST_NODES) if nodes > 1 else ()
    return AttemptStartup(
        attempt=starts[0].attempt,
        began_unix_s=round(began_s + unix_offset_s, 3),
        ranks=world_size,
        nodes=nodes,
        seen_ranks=len(rows),
        stepped_ranks=len(stepped),
        complete=is_complete,
        total_s=round(total_s, 3),
        phases=phases_of(rows, total_s + lead_s),
        critical=late[0] if late else None,
        rows=_some(late, ALL_RANKS, SLOWEST_RANKS),
        node_rows=node_rows,
        other_nodes=_names(by_node, node_rows) if nodes > 1 else (),
        fetched=_fetched(starts, began_s),
        uses=tuple(sorted({use for start in starts for use in start.uses})),
        how=_how(rows),
    )


def _fetched(starts: Sequence[NodeStart], began_s: float) -> tuple[FetchRow, ...]:
    """Return what nodes fetched beside this start, and not before it; the slowest where there are many, in the order of nodes."""
    rows = [
        FetchRow(
            start.node,
            msgspec.structs.replace(
                each,
                began_s=round(max(each.began_s - began_s, 0.0), 3),
                ended_s=round(each.ended_s - began_s, 3),
            ),
        )
        for start in starts
        for each in start.fetches
        if each.ended_s > began_s
    ]
    late = sorted(rows, key=lambda row: row.fetch.ended_s, reverse=True)[:SLOWEST_NODES]
    return tuple(row for row in rows if row in late) if len(rows) > ALL_NODES else tuple(rows)


def _some(late: list[RankRow], all_of: int, slowest: int) -> tuple[RankRow, ...]:
    chosen = late if len(late) <= all_of else late[:slowest]
    return tuple(sorted(chosen, key=lambda row: row.rank))


def _names(nodes: Iterable[str], rows: Iterable[RankRow]) -> tuple[str, ...]:
    """Return the nodes without a row; nothing if they are too many."""
    names = sorted({*nodes} - {row.node for row in rows})
    return tuple(names) if len(names) <= MOST_NAMES else ()


def _origin(start: NodeStart, is_first: bool) -> float:
    return start.launched_s if is_first and start.launched_s is not None else start.began_s


def _waited(queue: SchedulerQueue | None, lead_s: float) -> list[StartSpan]:
    """Return what came before the launcher, in negative times."""
    if queue is None or lead_s <= 0.0:
        return []
    in_queue_s = min(max(queue.started_unix_s - queue.eligible_unix_s, 0.0), lead_s)
    spans = [StartSpan("queue", -lead_s, in_queue_s - lead_s)]
    if queue.is_batch and lead_s > in_queue_s:
        spans.append(StartSpan("script", in_queue_s - lead_s, 0.0))
    return spans


def _row(start: NodeStart, rank: RankMarks, began_s: float, waited: list[StartSpan], is_first: bool) -> RankRow:
    """Return a rank's start as spans that follow each other."""
    end_s = rank.first_step_s if rank.first_step_s is not None else start.seen_s
    marks = [(KINDS[mark.kind], mark.began_s, mark.ended_s) for mark in rank.spans if 0 < mark.kind < len(KINDS)]
    if 0 < rank.open_kind < len(KINDS) and rank.first_step_s is None:
        marks.append((KINDS[rank.open_kind], rank.opened_s, start.seen_s))
    spans = [*_before(start, is_first)]
    if rank.armed_s is None:
        spans.append(("spawn" if rank.first_step_s is None else "program", start.began_s, end_s))
    else:
        spans.append(("spawn", start.began_s, rank.armed_s))
        spans += _worked(marks, rank.armed_s, end_s, rank.first_step_s is not None)
    moved = [
        StartSpan(phase, round(max(begin - began_s, 0.0), 3), round(max(end - began_s, 0.0), 3))
        for phase, begin, end in spans
        if end > begin
    ]
    loaders = dict.fromkeys(kind for kind, _, _ in marks if kind in KINDS[_FIRST_LOADER:])
    return RankRow(
        rank=rank.rank,
        node=start.node,
        how=rank.how,
        spans=tuple(coarse([*waited, *moved], MOST_ROW_SPANS)),
        first_step_s=round(rank.first_step_s - began_s, 3) if rank.first_step_s is not None else None,
        loaders=tuple(loaders),
        read_bytes=rank.read_bytes,
    )


def _before(start: NodeStart, is_first: bool) -> list[tuple[Phase, float, float]]:
    """Return what a node did before its workers: robust-run itself, a place for them, waiting for the others."""
    if not is_first or start.launched_s is None:
        return []
    ready_s = min(start.ready_s if start.ready_s is not None else start.began_s, start.began_s)
    spans: list[tuple[Phase, float, float]] = []
    at_s = start.launched_s
    if start.place and at_s <= start.place_began_s <= start.place_ended_s <= ready_s:
        spans += [("agent", at_s, start.place_began_s), (start.place, start.place_began_s, start.place_ended_s)]
        at_s = start.place_ended_s
    return [*spans, ("agent", at_s, ready_s), ("meet", ready_s, start.began_s)]


def _worked(
    marks: Iterable[tuple[str, float, float]], armed_s: float, end_s: float, has_stepped: bool
) -> list[tuple[Phase, float, float]]:
    """Return what a worker did from its interpreter's start to `end_s`: what it noted, and what lies between."""
    spans: list[tuple[Phase, float, float]] = []
    at_s = armed_s
    for kind, began_s, ended_s in marks:
        phase: Phase = "imports" if kind == "imports" else "init" if kind == "init" else "load"
        begin, end = max(began_s, at_s), min(ended_s, end_s)
        if end <= begin:
            continue
        if begin - at_s >= GAP_S:
            spans.append(("program", at_s, begin))
        else:
            begin = at_s
        spans.append((phase, begin, end))
        at_s = end
    if end_s > at_s:
        spans.append(("first_step" if has_stepped else "program", at_s, end_s))
    return spans


def coarse(spans: Sequence[StartSpan], most: int) -> list[StartSpan]:
    """Return at most so many spans that cover the same time: short ones become part of what is before them."""
    limit_s = 0.0
    kept = _merged(spans, limit_s)
    while len(kept) > most:
        limit_s = max(2.0 * limit_s, 0.001)
        kept = _merged(kept, limit_s)
    return kept


def _merged(spans: Sequence[StartSpan], limit_s: float) -> list[StartSpan]:
    kept: list[StartSpan] = []
    for span in spans:
        last = kept[-1] if kept else None
        if last is not None and (last.phase == span.phase or span.ended_s - span.began_s < limit_s):
            kept[-1] = StartSpan(last.phase, last.began_s, span.ended_s)
        else:
            kept.append(span)
    return kept


def lateness(row: RankRow) -> float:
    """Return how long a rank worked before its first step, from the first launcher's start on: the longest was waited for.

    In the waiting phases it waits for others, and in the program's own time it may: in an all_reduce before a late import.
    """
    worked_s = sum(
        (span.ended_s - span.began_s) * (0.5 if span.phase == "program" else 1.0)
        for span in row.spans
        if span.phase not in WAITS and span.began_s >= 0.0
    )
    return next((span.began_s for span in row.spans if span.began_s >= 0.0), 0.0) + worked_s


def _how(rows: Sequence[RankRow]) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.how] = counts.get(row.how, 0) + 1
    return tuple(sorted(counts.items()))


def with_attempt(startup: Startup, attempt: AttemptStartup) -> Startup:
    """Return a job's starts with one that is new, or better known; of old ones only the phases are kept."""
    others = [each for each in startup.attempts if each.attempt != attempt.attempt]
    ordered = sorted([*others, attempt], key=lambda each: each.attempt)
    if len(ordered) > MOST_ATTEMPTS:
        ordered = [ordered[0], *ordered[-(MOST_ATTEMPTS - 1) :]]
    bare = range(1, len(ordered) - DETAILED_ATTEMPTS)
    kept = [_bare(each) if index in bare else each for index, each in enumerate(ordered)]
    return msgspec.structs.replace(startup, attempts=tuple(kept))


def _bare(attempt: AttemptStartup) -> AttemptStartup:
    return msgspec.structs.replace(attempt, rows=(), node_rows=(), other_nodes=())
