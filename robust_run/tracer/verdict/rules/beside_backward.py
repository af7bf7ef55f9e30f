"""Collectives of the program's own beside the backward pass of DDP, once gloo has said that calls of different sizes met.

Both are collectives of one group, but those of the backward pass are started by torch, so rings count passes apart from calls: no
number of theirs is the same. What tells is who is where: ranks in a pass that others have not begun, and those others in a call
that the first have not made. Ranks are apart like that for a moment in each step of a healthy job too, so it is asked only where
gloo says that their calls have met. Fewer ranks are wrong, as in all mismatches; where they are as many nothing tells.
"""

from __future__ import annotations

from typing import NamedTuple

from robust_run.tracer.types import BACKWARD, Op, TraceVerdict
from robust_run.tracer.verdict.alike import signature
from robust_run.tracer.verdict.draft import Confidence, draft
from robust_run.tracer.verdict.groups import GroupKey
from robust_run.tracer.verdict.picture import Picture, WaitPlace
from robust_run.tracer.verdict.rules.certainty import in_doubt
from robust_run.tracer.words import count_words, op_name, ranks_words, short_site

RULE = "beside_backward"


class Crossing(NamedTuple):
    """Members of a group in a call of the program's, and those in the backward pass."""

    key: GroupKey
    calls: dict[int, Op]
    passes: dict[int, Op]


def judge(picture: Picture) -> TraceVerdict | None:
    """Name who is in a call where the others are in the backward pass, or the other way round; None if nobody is."""
    found = next(filter(None, (_crossing(picture, key) for key in picture.collectives)), None)
    if found is None:
        return None
    callers, others = tuple(sorted(found.calls)), tuple(sorted(found.passes))
    few, many = sorted((callers, others), key=len)
    is_even = len(few) == len(many)
    ranks = tuple(sorted((*callers, *others))) if is_even else few
    confidence: Confidence = "low" if is_even else "medium" if in_doubt(picture) else "high"
    first = callers if is_even or few == callers else others
    here = _place(picture, found)
    return draft(
        picture,
        kind="mismatch",
        ranks=ranks,
        rule=RULE,
        sentence=_sentence(picture, found, first, is_even=is_even),
        confidence=confidence,
        here=here,
        over_evicted=ranks if is_even else (),
        evidence=tuple(
            f"rank {rank}: {_words(op)} {op.site}".rstrip()
            for rank, op in (*sorted(found.calls.items())[:4], *sorted(found.passes.items())[:4])
        ),
    )


def _crossing(picture: Picture, key: GroupKey) -> Crossing | None:
    """Return who of a group is in a call, and who in a pass that these have not begun, if both are known."""
    group = picture.group_of(key)
    passes = picture.collectives.get(picture.sequence(group.ranks[0], group.name, BACKWARD), {})
    if not passes or picture.sequence(group.ranks[0], group.name, "") != key:
        return None
    newest = {rank: op for seq in sorted(passes) for rank, op in passes[seq].items()}
    open_passes = {rank: op for rank, op in newest.items() if op.state != "done"}
    calls = {rank: op for seq in sorted(picture.collectives[key]) for rank, op in picture.collectives[key][seq].items()}
    begun = {rank: op for rank, op in calls.items() if op.state != "done"}
    callers = {
        rank: op
        for rank, op in begun.items()
        if any(_is_beside(picture, key, op, _passes_before(passes, rank, op), other) for other in open_passes.items())
    }
    others = {
        rank: one
        for rank, one in open_passes.items()
        if rank not in callers
        and any(
            _is_beside(picture, key, op, _passes_before(passes, caller, op), (rank, one))
            for caller, op in callers.items()
        )
    }
    return Crossing(key, callers, others) if callers and others else None


def _passes_before(passes: dict[int, dict[int, Op]], rank: int, call: Op) -> int:
    """Return how many passes a rank had begun when it made a call."""
    return max((seq for seq, ops in passes.items() if rank in ops and ops[rank].at_s < call.at_s), default=0)


def _is_beside(picture: Picture, key: GroupKey, call: Op, before: int, other: tuple[int, Op]) -> bool:
    """Whether a rank in a pass has gone past a call that another makes: it is in a later pass, and has not made the call."""
    rank, its_pass = other
    return its_pass.seq > before and picture.last[key].get(rank, 0) < call.seq


def _place(picture: Picture, found: Crossing) -> WaitPlace:
    op = next(iter(found.calls.values()))
    return WaitPlace(
        group=picture.group_of(found.key),
        op=op.op,
        seq=op.seq,
        waiters=tuple(sorted(found.calls)),
        missing=tuple(sorted(found.passes)),
        since_s=min(one.at_s for one in (*found.calls.values(), *found.passes.values())),
    )


def _sentence(picture: Picture, found: Crossing, first: tuple[int, ...], *, is_even: bool) -> str:
    group = f" of {picture.label(picture.group_of(found.key))}"
    is_call = first == tuple(sorted(found.calls))
    rest = tuple(sorted(found.passes if is_call else found.calls))
    who = ranks_words(rest) if is_even else count_words(len(rest), "other")
    mine, theirs = (found.calls, found.passes) if is_call else (found.passes, found.calls)
    return f"{picture.who(first)} {_did(mine, group)}, where {who} {_did(theirs, '')}"


def _did(ops: dict[int, Op], group: str) -> str:
    op = ops[min(ops)]
    at = f" (at {short_site(op.site)})" if op.site else ""
    if op.op == BACKWARD:
        return f"{'is' if len(ops) == 1 else 'are'} in {op_name(op.op)} #{op.seq}{group}{at}"
    return f"called {_words(op)} as #{op.seq}{group}{at}"


def _words(op: Op) -> str:
    return op_name(op.op) if op.op == BACKWARD else signature(op).words()
