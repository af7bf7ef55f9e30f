"""What all rules put into a verdict in the same way: nodes, waits, stacks for readers who want to check."""

from __future__ import annotations

from typing import Literal

from robust_run.tracer.stacks.normal import main_stacks, telling_frames
from robust_run.tracer.types import TraceKind, TraceVerdict, Wait
from robust_run.tracer.verdict.alike import Part, parts_of
from robust_run.tracer.verdict.chains import all_chains, chains_to
from robust_run.tracer.verdict.limits import expires_s
from robust_run.tracer.verdict.picture import Picture, WaitPlace
from robust_run.tracer.words import SENTENCE_CHARACTERS, one_line, op_name, span

Confidence = Literal["high", "medium", "low"]
#: Waits in a verdict; `robust why` shows the rest.
_WAITS = 256
_EVIDENCE_LINES = 40
_STACK_FRAMES = 10
_STACKS = 3


def draft(  # noqa: PLR0913 - a verdict has so many parts
    picture: Picture,
    *,
    kind: TraceKind,
    ranks: tuple[int, ...],
    rule: str,
    sentence: str,
    confidence: Confidence,
    here: WaitPlace | None = None,
    over_evicted: tuple[int, ...] = (),
    evidence: tuple[str, ...] = (),
    onset_s: float | None = None,
    proven: bool = False,
) -> TraceVerdict:
    """Complete a verdict with what follows from the picture."""
    lines = [
        *evidence,
        *chains_to(picture, sorted(ranks)).lines,
        *_waiting_lines(picture)[:12],
        *_stack_lines(picture, ranks),
    ]
    if onset_s is None:
        onset_s = here.since_s if here is not None else min((one.since_s for one in picture.places), default=None)
    return TraceVerdict(
        kind=kind,
        ranks=tuple(sorted(ranks)),
        nodes=picture.nodes(ranks),
        group=picture.label(here.group) if here is not None else "",
        confidence=confidence,
        rule=rule,
        sentence=one_line(sentence),
        over_evicted=tuple(sorted(over_evicted)),
        waits=waits_of(picture)[:_WAITS],
        evidence=tuple(line[:SENTENCE_CHARACTERS] for line in lines[:_EVIDENCE_LINES]),
        onset_s=onset_s,
        proven=proven,
        expires_s=expires_s(picture),
        where=picture.where(min(ranks)) if ranks else "",
    )


def waits_of(picture: Picture) -> tuple[Wait, ...]:
    """Return an edge for each rank that waits, longest first; no rank awaited where all have come."""
    edges = [
        Wait(
            waiter=rank,
            awaited=_awaited(picture, part.here, rank),
            what=_what(picture, part),
            since_s=picture.waited_s(here),
        )
        for here in picture.places
        for part in parts_of(picture, here)
        for rank in part.here.waiters
    ]
    return tuple(sorted(edges, key=lambda edge: (-edge.since_s, edge.waiter)))


def _what(picture: Picture, part: Part) -> str:
    """Name the call of a part; with size, type and root where its name is the same as others'."""
    what = picture.what(part.here)
    return what if part.call is None else what.replace(op_name(part.call.op), part.call.words(), 1)


def _awaited(picture: Picture, here: WaitPlace, rank: int) -> tuple[int, ...]:
    """Return whom a rank waits for in a call: who has not come; inside NCCL its neighbours, where all have."""
    if here.missing or not here.inside or picture.inside is None:
        return here.missing
    return picture.inside.awaited.get(rank, ())


def _waiting_lines(picture: Picture) -> list[str]:
    """Say of each call that ranks wait in who waits there for whom, longest first."""
    lines: list[str] = []
    for place in sorted(picture.places, key=lambda one: one.since_s):
        for part in parts_of(picture, place):
            here = part.here
            if here.waiters:
                verb = "has" if len(here.waiters) == 1 else "have"
                awaited = (
                    f"for rank{'s' if len(here.missing) > 1 else ''} {span(here.missing)}"
                    if here.missing
                    else "though all have come"
                )
                plural = "s" if len(here.waiters) > 1 else ""
                lines.append(
                    f"rank{plural} {span(here.waiters)} {verb} been waiting for {picture.waited_s(here):.1f} s "
                    f"in {_what(picture, part)} {awaited}"
                )
    return lines


def _stack_lines(picture: Picture, ranks: tuple[int, ...]) -> list[str]:
    """Return the innermost frames of the first few ranks."""
    lines: list[str] = []
    for rank in ranks[:_STACKS]:
        sight = picture.sights.get(rank)
        stacks = main_stacks(sight) if sight is not None else ()
        if stacks:
            frames = (telling_frames(stacks[-1]) or stacks[-1].frames)[:_STACK_FRAMES]
            lines.append(f"rank {rank}:")
            lines += [f"  {frame.file}:{frame.line} {frame.function}" for frame in frames]
    return lines


def describe(picture: Picture, limit: int) -> list[str]:
    """Return lines for people: who is waited for in the end, and who waits where, for whom; at most `limit`."""
    lines = [*all_chains(picture).lines, *_waiting_lines(picture)]
    if len(lines) > limit:
        return [*lines[: max(0, limit - 1)], f"and {len(lines) - limit + 1} more"]
    return lines
