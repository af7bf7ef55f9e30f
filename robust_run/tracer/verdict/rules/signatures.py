"""Rule 1: members of a group that make different calls at the same place.

The same number in the same group must be the same operation, of the same size, type and root. The majority is right; in a tie
the group's own history is, then what other groups of the same kind do there. A rank that has left out or added a call shows
other calls from there on although each is right in itself: if one call left out or added makes its sequence fit, that is said
instead. In a loop the two often look alike, so which of them it was is said only where the other cannot be.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Literal, NamedTuple

from robust_run.tracer.types import BACKWARD, WORLD, Group, Op, TraceVerdict
from robust_run.tracer.verdict.alike import Signature, differ, fits, signature, tolerated
from robust_run.tracer.verdict.draft import draft
from robust_run.tracer.verdict.picture import Picture, WaitPlace
from robust_run.tracer.verdict.rules.certainty import in_doubt
from robust_run.tracer.verdict.rules.held import all_held_in
from robust_run.tracer.verdict.rules.sequences import following
from robust_run.tracer.words import count_words, one_line, short_site

#: Parts of different sizes are allowed by NCCL.
_MAY_BE_UNEVEN = frozenset({"all_gather", "reduce_scatter"})

#: By type of tensors.
ITEM_BYTES = {
    **dict.fromkeys(("int8", "uint8", "bool"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16"), 2),
    **dict.fromkeys(("float32", "int32"), 4),
    **dict.fromkeys(("float64", "int64", "complex64"), 8),
}

#: "either": a call was left out or added, and what was seen fits both.
Shift = Literal["", "skipped_op", "extra_op", "either"]


class Mismatch(NamedTuple):
    """The earliest place where members differ."""

    here: WaitPlace
    right: Signature
    wrong: dict[int, Signature]
    sites: dict[int, str]
    shift: Shift
    certain: bool


def earliest_mismatch(picture: Picture, older_than_s: float) -> Mismatch | None:
    """Return the first unfinished place, in time, where members differ and have been for the given time."""
    found: list[tuple[float, tuple[str, int, int, int], int]] = []
    for key, places in picture.collectives.items():
        if key[0] == WORLD:
            continue
        for seq in sorted(places):
            calls = places[seq]
            if len(calls) < 2 or _is_over(picture, calls) or not differ(calls):
                continue
            if not tolerated(places, seq):
                begun_s = max(op.at_s for op in calls.values())
                if picture.scene.at_s - begun_s >= older_than_s:
                    found.append((begun_s, key, seq))
                break
    if not found:
        return None
    _, key, seq = min(found)
    return _explain(picture, key, seq)


def _is_over(picture: Picture, calls: dict[int, Op]) -> bool:
    """Whether no rank is in some calls, nor may come back to them: also those that ended in an error which was caught."""
    return all(
        op.state != "issued" and op.state not in picture.blocking and not picture.is_on_gpu(rank, op)
        for rank, op in calls.items()
    )


def judge(picture: Picture, found: Mismatch) -> TraceVerdict:
    """Turn a mismatch into a verdict."""
    ranks = tuple(sorted(found.wrong))
    first = ranks[0]
    place = f"#{found.here.seq} of {picture.label(found.here.group)}"
    where = _at(found.sites.get(first))
    peer = next((rank for rank in found.here.waiters if rank not in found.wrong), None)
    there = _at(found.sites.get(peer)) if peer is not None else ""
    others = count_words(len(found.here.waiters) - len(ranks), "other")
    if not found.certain:
        calls = {call.words(): _at(found.sites.get(rank)) for rank, call in sorted(found.wrong.items(), reverse=True)}
        calls = {found.right.words(): "", **calls}
        told = " against ".join(f"{call}{calls[call]}" for call in sorted(calls))
        sentence = f"{picture.who(ranks)} make different calls as {place}: {told}"
    elif found.shift in ("skipped_op", "extra_op"):
        verb = "left out a call" if found.shift == "skipped_op" else "made one call too many"
        sentence = (
            f"{picture.who(ranks)} {verb} before {place}: {found.wrong[first].words()} there{where}, "
            f"where {others} made {found.right.words()}{there}"
        )
    else:
        sentence = (
            f"{picture.who(ranks)} called {found.wrong[first].words()} as {place}{where}, "
            f"where {others} called {found.right.words()}{there}"
        )
    return draft(
        picture,
        kind="desync" if found.shift else "mismatch",
        ranks=ranks,
        rule=found.shift if found.shift in ("skipped_op", "extra_op") else "signature",
        sentence=sentence,
        confidence="high" if found.certain else "low",
        here=found.here,
        over_evicted=() if found.certain else ranks,
        evidence=_evidence(found, peer),
        proven=_can_never_be(found) and all_held_in(picture, found.here) and _counted_alike(picture, found.here),
    )


def _at(site: str | None) -> str:
    return f" (at {short_site(site)})" if site else ""


def _evidence(found: Mismatch, peer: int | None) -> tuple[str, ...]:
    """Return the calls that differ and where they were made, and those of a peer that made the right one."""
    told = sorted(found.wrong.items())[:8] + ([(peer, found.right)] if peer is not None else [])
    return tuple(one_line(f"rank {rank}: {call.words()} {found.sites.get(rank, '')}") for rank, call in told)


def _can_never_be(found: Mismatch) -> bool:
    """Whether no backend would complete the calls. Some gather and scatter parts of uneven size, and wait for a rank to come."""
    calls = (found.right, *found.wrong.values())
    if all(_moves_alike(one, calls[0]) for one in calls):
        return False
    if any(one.op != calls[0].op or not fits(one._replace(numel=-1), calls[0]) for one in calls):
        return True
    return found.here.op not in _MAY_BE_UNEVEN


def _moves_alike(one: Signature, other: Signature) -> bool:
    """Whether two calls move as many bytes: gloo and NCCL do not compare types, so they complete, with what they make of it."""
    sizes = [call.numel * ITEM_BYTES.get(call.dtype, 0) for call in (one, other)]
    if (one.op, one.root) != (other.op, other.root):
        return False
    return one == other or (sizes[0] == sizes[1] if min(sizes) > 0 else one.numel == other.numel)


def _counted_alike(picture: Picture, here: WaitPlace) -> bool:
    """Whether torch's own records do not contradict the rings: a rank may make a call by a door that its ring does not see.

    DDP is such a door, with `Join` for some ranks only: where it is used, records that are silent are no agreement.
    """
    if in_doubt(picture):
        return False
    ahead = set()
    for rank in here.waiters:
        sight = picture.sights.get(rank)
        own = [op.seq for op in sight.recorded if op.group == here.group.name] if sight is not None else []
        key = picture.sequence(rank, here.group.name, here.op)
        last = picture.last.get(key, {}).get(rank)
        if own and last is not None:
            ahead.add(max(own) - last)
        elif (
            sight is None or sight.trace is None or sight.is_silent or any(op.op == BACKWARD for op in sight.trace.ops)
        ):
            return False
    return len(ahead) <= 1


def _explain(picture: Picture, key: tuple[str, int, int, int], seq: int) -> Mismatch:
    places = picture.collectives[key]
    calls = places[seq]
    history = [_usual(places[before]) for before in sorted(places) if before < seq]
    counts = Counter(signature(op) for op in calls.values() if op.op != BACKWARD or len(calls) == 1)
    counts = counts or Counter(signature(op) for op in calls.values())
    top = counts.most_common()
    right: Signature | None = top[0][0]
    if len(top) > 1 and top[0][1] == top[1][1]:
        right = _settle_tie(picture, key, seq, history, [call for call, _ in top])
    group = picture.group_of(key)
    here = WaitPlace(
        group=group,
        op=next(iter(calls.values())).op,
        seq=seq,
        waiters=tuple(sorted(calls)),
        missing=(),
        since_s=max(op.at_s for op in calls.values()),
    )
    sites = {rank: op.site for rank, op in calls.items()}
    if right is None:
        wrong = {rank: signature(op) for rank, op in calls.items()}
        return Mismatch(here, top[0][0], wrong, sites, "", certain=False)
    wrong = {rank: signature(op) for rank, op in calls.items() if not fits(signature(op), right)}
    shifts = {_shift(places, seq, rank, history, set(wrong)) for rank in list(wrong)[:8]}
    shift: Shift = shifts.pop() if len(shifts) == 1 else "" if "" in shifts else "either"
    return Mismatch(here, right, wrong, sites, shift, certain=True)


def _usual(calls: dict[int, Op]) -> Signature:
    return Counter(signature(op) for op in calls.values()).most_common(1)[0][0]


def _settle_tie(
    picture: Picture, key: tuple[str, int, int, int], seq: int, history: list[Signature], choices: list[Signature]
) -> Signature | None:
    """Return which of the choices is right, by the group's history, else by its sisters; None if neither tells."""
    for predicted in following(history, [history], 1):
        for choice in choices:
            if fits(choice, predicted):
                return choice
    votes: Counter[Signature] = Counter()
    for sister, places in picture.collectives.items():
        if sister != key and sister[0] != WORLD and _alike(picture.group_of(sister), picture.group_of(key)):
            votes.update(signature(op) for op in places.get(seq, {}).values())
    seen = Counter(history)
    for counter in (votes, seen):
        ranked = sorted(choices, key=lambda choice: -counter[choice])
        if counter[ranked[0]] > counter[ranked[1]]:
            return ranked[0]
    return None


def _alike(one: Group, other: Group) -> bool:
    """Whether two groups play the same part, in different places: tensor parallel groups of different replicas."""
    if len(one.ranks) != len(other.ranks):
        return False
    return [rank - one.ranks[0] for rank in one.ranks] == [rank - other.ranks[0] for rank in other.ranks]


def _shift(places: dict[int, dict[int, Op]], seq: int, rank: int, history: list[Signature], wrong: set[int]) -> Shift:
    """Say whether one call left out or added explains what a rank does from here on; "either" where both do."""
    mine = [signature(places[after][rank]) for after in sorted(places) if after >= seq and rank in places[after]]
    theirs: list[Signature] = []
    for after in sorted(places):
        calls = {other: op for other, op in places[after].items() if other not in wrong}
        if after >= seq and calls:
            theirs.append(_usual(calls))
    usual = theirs + following([*history, *theirs], [history], len(mine) + 2 - len(theirs))
    if len(mine) > 1 and len(usual) > 1 and _matches(mine[1:], usual[1:]):
        return ""
    pairs = set(pairwise(history))
    comes_next = len(mine) == 1 and len(theirs) == 1 and (theirs[0], mine[0]) in pairs
    left_out = comes_next or (len(usual) > 1 and _matches(mine, usual[1:]))
    is_new = left_out and _is_new_line(places, seq, rank)
    if len(mine) > 1:
        if _matches(mine[1:], usual):
            return "either" if left_out and not is_new else "extra_op"
        return "either" if is_new else "skipped_op" if left_out else ""
    # What comes after one call alone is not known. In a loop the call before comes again in any case, be it made twice or
    # all between left out; and one that may follow the call before may be one too many as well.
    repeats = bool(history) and mine[0] == history[-1]
    may_follow = bool(history) and (fits(mine[0], history[-1]) or (history[-1], mine[0]) in pairs)
    if left_out and not may_follow and not is_new:
        return "skipped_op"
    return "either" if left_out or repeats else ""


def _is_new_line(places: dict[int, dict[int, Op]], seq: int, rank: int) -> bool:
    """Whether a rank made such calls before, but never from this line: then it is none of those that usually come."""
    call = places[seq][rank]
    made = [calls[rank] for before, calls in places.items() if before < seq and rank in calls]
    lines = {op.site for op in made if fits(signature(op), signature(call))}
    return bool(call.site and lines) and "" not in lines and call.site not in lines


def _matches(one: list[Signature], other: list[Signature]) -> bool:
    """Whether what both have fits."""
    return all(fits(a, b) for a, b in zip(one, other, strict=False))
