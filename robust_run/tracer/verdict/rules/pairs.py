"""Point-to-point calls that never meet: other tags on both sides, and receivers from any rank to which no rank can send."""

from __future__ import annotations

from robust_run.tracer.types import TraceVerdict
from robust_run.tracer.verdict.draft import draft
from robust_run.tracer.verdict.graph import nobody_sends
from robust_run.tracer.verdict.picture import Picture
from robust_run.tracer.verdict.rules.order import is_closed


def judge(picture: Picture, older_than_s: float) -> TraceVerdict | None:
    """Name ranks whose point-to-point calls can never meet; None if there are none, or only just."""
    return _other_tags(picture, older_than_s) or _nobody_sends(picture, older_than_s)


def _other_tags(picture: Picture, older_than_s: float) -> TraceVerdict | None:
    """Name a pair of which one sends with a tag and the other receives with another, each waiting for the other.

    A slow network looks different: a send of gloo waits until the receive of its tag is there, however small it is, and one that
    has its receive is none of these waits.
    """
    waits = [here for here in picture.places if here.missing and picture.waited_s(here) >= older_than_s]
    receives = {(here.waiters[0], here.peer, here.group.name): here for here in waits if here.op == "recv"}
    for here in waits:
        other = receives.get((here.peer, here.waiters[0], here.group.name)) if here.op == "send" else None
        if other is None or other.tag == here.tag:
            continue
        ranks = (here.waiters[0], other.waiters[0])
        return draft(
            picture,
            kind="mismatch",
            ranks=ranks,
            rule="tag",
            sentence=f"rank {ranks[0]} sends to rank {ranks[1]} with tag {here.tag}, and rank {ranks[1]} receives from it "
            f"with tag {other.tag}: {picture.wait_words(2, picture.waited_s(here))} for each other",
            confidence="high",
            here=here,
            over_evicted=ranks,
            proven=is_closed(picture, ranks),
        )
    return None


def _nobody_sends(picture: Picture, older_than_s: float) -> TraceVerdict | None:
    receivers, stuck = nobody_sends(picture, older_than_s)
    if not receivers or any(_is_under_way(picture, rank) for rank in receivers):
        return None
    here = min(
        (one for one in picture.places if one.any_sender and set(one.waiters) <= set(receivers)),
        key=lambda one: one.since_s,
    )
    rest = tuple(rank for rank in stuck if rank not in receivers)
    who = f"; {picture.who(rest)} {'waits' if len(rest) == 1 else 'wait'} for it" if rest else ""
    return draft(
        picture,
        kind="hang",
        ranks=receivers,
        rule="nobody_sends",
        sentence=f"{picture.who(here.waiters)} has been waiting in {picture.what(here)} for {picture.waited_s(here):.1f} s, and "
        f"no rank is left that could send{who}",
        confidence="medium",
        here=here,
    )


def _is_under_way(picture: Picture, receiver: int) -> bool:
    """Whether more has been sent to a rank than it has received: large messages take their time. Calls count from the first."""
    sent: dict[tuple[int, str, int], int] = {}
    received: dict[tuple[str, str, int, int], int] = {}
    for sight in picture.scene.ranks:
        for op in sight.trace.ops if sight.trace is not None else ():
            if op.op == "send" and op.peer == receiver:
                key = sight.rank, op.group, op.tag
                sent[key] = max(op.seq, sent.get(key, 0))
            elif sight.rank == receiver and op.op in ("recv", "recv_any") and op.state == "done":
                place = op.op, op.group, op.peer, op.tag
                received[place] = max(op.seq, received.get(place, 0))
    return sum(sent.values()) > sum(received.values())
