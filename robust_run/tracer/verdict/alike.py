"""When two calls are the same call: operation, size, type and root. Places whose waiters made different calls, apart. Pure."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from robust_run.tracer.types import LIFECYCLE, P2P, Op
from robust_run.tracer.verdict.picture import Picture, WaitPlace

ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
#: Of these, members give inputs of different sizes by design.
_UNEVEN = frozenset({"scatter", "gather", "all_to_all", "barrier", "monitored_barrier"})


class Signature(NamedTuple):
    """What must be equal. -1 and "" mean: not known, fits everything."""

    op: str
    numel: int
    dtype: str
    root: int

    def words(self) -> str:
        """`all_reduce of 512 float32`."""
        size = f" of {self.numel} {self.dtype}".rstrip() if self.numel > 0 else ""
        root = f" from root {self.root}" if self.root >= 0 else ""
        return f"{self.op}{size}{root}"


def signature(op: Op) -> Signature:
    """Return what of a call must be equal on all members."""
    return Signature(
        op=op.op,
        numel=-1 if op.op in _UNEVEN else op.numel,
        dtype="" if op.op in ("barrier", "monitored_barrier") else op.dtype,
        root=op.peer if op.op in ROOTED else -1,
    )


def fits(one: Signature, other: Signature) -> bool:
    """Whether both can be the same call."""
    return (
        one.op == other.op
        and (one.numel == other.numel or min(one.numel, other.numel) < 0)
        and (one.dtype == other.dtype or not one.dtype or not other.dtype)
        and (one.root == other.root or min(one.root, other.root) < 0)
    )


def finished(calls: dict[int, Op]) -> bool:
    """Whether all of some calls are over."""
    return all(op.state == "done" for op in calls.values())


def tolerated(places: dict[int, dict[int, Op]], seq: int) -> bool:
    """Whether members differed before, in the same operation, and it went well: sizes that may differ."""
    names = {op.op for op in places[seq].values()}
    return len(names) == 1 and any(
        before < seq and {op.op for op in calls.values()} == names and finished(calls) and differ(calls)
        for before, calls in places.items()
    )


def differ(calls: dict[int, Op]) -> bool:
    """Whether some calls cannot all be the same call."""
    if len({(op.op, op.numel, op.dtype, op.peer) for op in calls.values()}) == 1:
        return False
    ordered = list({signature(op) for op in calls.values()})
    return any(not fits(one, other) for one in ordered[:8] for other in ordered)


class Part(NamedTuple):
    """Waiters of a place that made the same call."""

    here: WaitPlace
    call: Signature | None
    """Set where others made another call of the same name: then only size, type or root tell them apart."""


def parts_of(picture: Picture, here: WaitPlace) -> tuple[Part, ...]:
    """Return a place by the calls that its waiters made.

    The same number is no common call where ranks differ: each part waits for those who made another call there, as well as
    for those who have not come.
    """
    if not here.waiters or here.inside or here.op in P2P or here.op in LIFECYCLE:
        return (Part(here, None),)
    key = picture.sequence(here.waiters[0], here.group.name, here.op)
    numbered = picture.collectives.get(key, {})
    calls = numbered.get(here.seq, {})
    members: list[tuple[Signature, list[int]]] = []
    of: dict[Signature, list[int]] = {}
    for rank in here.waiters:
        op = calls.get(rank)
        if op is None:
            return (Part(here, None),)
        made = signature(op)
        if made not in of:
            alike = next((ranks for known, ranks in members if fits(known, made)), None)
            if alike is None:
                alike = []
                members.append((made, alike))
            of[made] = alike
        of[made].append(rank)
    if len(members) < 2 or tolerated(numbered, here.seq):
        return (Part(here, None),)
    several = len({made.op for made, _ in members}) < len(members)
    every = set(here.waiters) | set(here.missing)
    return tuple(
        Part(
            msgspec.structs.replace(here, op=made.op, waiters=tuple(ranks), missing=tuple(sorted(every - set(ranks)))),
            made if several else None,
        )
        for made, ranks in members
    )
