"""Rule 3: ranks wait for each other in a circle, so one of them makes its calls in another order than it should.

Each rank's calls, over all groups and peers in the order of time, are a stream that repeats itself. The culprit is the rank
with a passage that occurs nowhere else: neither in its own earlier rounds nor in those of ranks that play the same part. The
shortest such passage counts: a call that is never made (1), a pair that never follows each other (2), and so on; victims
stop in the middle of passages that are usual. Comparing with the longest context that was seen before then tells what is
missing, too much or swapped. Refines tracing.md section 6, rule 3 (rarest pair).
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import NamedTuple

from robust_run.tracer.types import LIFECYCLE, P2P, Op, TraceVerdict
from robust_run.tracer.verdict.draft import draft
from robust_run.tracer.verdict.picture import Picture, WaitPlace
from robust_run.tracer.verdict.rules import away
from robust_run.tracer.verdict.rules.certainty import surely_missing
from robust_run.tracer.verdict.rules.held import all_tied
from robust_run.tracer.verdict.rules.sequences import following
from robust_run.tracer.words import count_words, op_name, ranks_words, short_site

#: Passages up to so many calls are compared.
_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24)
#: In so large a world only short ones, to stay within a second.
_MANY_RANKS, _MANY_LENGTHS = 512, (1, 2, 3)
#: Only passages that end among the newest so many calls: older ones did no harm.
_RECENT = 32
#: Peers whose streams are compared to name what is missing.
_SOURCES = 4
#: Streams that share this much of their pairs are of the same part; compared with so many parts.
_SAME_PART = 0.7
_PARTS = 16


class Token(NamedTuple):
    """A call without what differs between ranks that play the same part."""

    role: str
    op: str
    peer: int
    """Distance to the peer; 0: none."""


class Oddity(NamedTuple):
    """A passage that occurs nowhere else."""

    rank: int
    position: int
    """Of its last call in the rank's stream."""
    length: int


def _parts(streams: dict[int, tuple[Token, ...]]) -> list[list[int]]:
    """Group ranks by the pairs of calls that follow each other in their streams: those of one pipeline stage have the same.

    Streams that resemble a larger group's for the most part belong to it: they may be those of a culprit.
    """
    same: dict[frozenset[tuple[Token, Token]], list[int]] = {}
    for rank, stream in streams.items():
        same.setdefault(frozenset(pairwise(stream)), []).append(rank)
    kept: list[tuple[frozenset[tuple[Token, Token]], list[int]]] = []
    for pairs, ranks in sorted(same.items(), key=lambda item: (-len(item[0]), -len(item[1]))):
        near = max(kept[:_PARTS], key=lambda part: _resemblance(part[0], pairs), default=None)
        if near is not None and _resemblance(near[0], pairs) >= _SAME_PART:
            near[1].extend(ranks)
        else:
            kept.append((pairs, list(ranks)))
    return [ranks for _, ranks in kept]


def _resemblance(one: frozenset[tuple[Token, Token]], other: frozenset[tuple[Token, Token]]) -> float:
    """Return how much of the shorter stream is in the longer one: victims have not come as far."""
    return len(one & other) / max(1, min(len(one), len(other)))


class CallStreams:
    """The streams of all ranks, and who plays the same part."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._roles: dict[tuple[int, str], str] = {}
        self.ops: dict[int, list[Op]] = {}
        self.tokens: dict[int, tuple[Token, ...]] = {}
        for sight in picture.scene.ranks:
            ops = list(sight.trace.ops) if sight.trace is not None else []
            self.ops[sight.rank] = ops
            self.tokens[sight.rank] = tuple(self._token(sight.rank, op) for op in ops)
        #: Ranks that play the same part, and of each rank which part that is.
        self.parts = _parts(self.tokens)
        self.part = {rank: number for number, ranks in enumerate(self.parts) for rank in ranks}

    def _token(self, rank: int, op: Op) -> Token:
        peer = (op.peer - rank) % self._picture.scene.world_size if op.op in P2P and op.peer >= 0 else 0
        return Token(self.role(rank, op.group), op.op, peer)

    def role(self, rank: int, name: str) -> str:
        """Return what sister groups have in common: their description without a number, else their size and stride."""
        found = self._roles.get((rank, name))
        if found is None:
            group = self._picture.group_of(self._picture.key(rank, name))
            label = self._picture.label(group)
            if label.startswith(f"group {group.desc}") and group.desc:
                found = re.sub(r"[\W_]*\d+$", "", group.desc)
            else:
                stride = group.ranks[1] - group.ranks[0] if len(group.ranks) > 1 else 0
                found = f"{len(group.ranks)}x{stride}"
            self._roles[rank, name] = found
        return found


def oddities(streams: CallStreams, ranks: tuple[int, ...]) -> list[Oddity]:
    """Return the ranks among the given ones with the shortest passage that occurs nowhere else, earliest first."""
    lengths = _LENGTHS if len(streams.tokens) <= _MANY_RANKS else _MANY_LENGTHS
    wanted = set(ranks)
    parts = sorted({streams.part[rank] for rank in ranks})
    for length in lengths:
        found: list[Oddity] = []
        for part in parts:
            members = streams.parts[part]
            if length == 1 and not _have_history(streams, members):
                continue
            counts = _passages(streams, members, length)
            before = _passages(streams, members, length - 1) if length > 1 else counts
            for rank in members:
                stream = streams.tokens[rank]
                position = _first_unique(stream, counts, before, length) if rank in wanted else -1
                if length == 1 and len(members) == 1 and position >= 0 and stream[position].op in LIFECYCLE:
                    continue  # a group is made once: that says nothing
                if position >= 0:
                    found.append(Oddity(rank, position, length))
        if found and (length > 1 or len(found) < len(ranks)):
            return sorted(found, key=lambda odd: streams.ops[odd.rank][odd.position].at_s)
    return []


def _have_history(streams: CallStreams, ranks: list[int]) -> bool:
    """Whether a call that occurs once says anything: there are others to compare with, or earlier rounds."""
    stream = streams.tokens[ranks[0]]
    return len(ranks) > 1 or len(set(stream)) * 2 < len(stream)


def _passages(streams: CallStreams, ranks: list[int], length: int) -> Counter[tuple[Token, ...]]:
    counts: Counter[tuple[Token, ...]] = Counter()
    for stream, times in Counter(streams.tokens[rank] for rank in ranks).items():
        for end in range(length, len(stream) + 1):
            counts[stream[end - length : end]] += times
    return counts


def _first_unique(
    stream: tuple[Token, ...], counts: Counter[tuple[Token, ...]], before: Counter[tuple[Token, ...]], length: int
) -> int:
    """Return where the first recent passage ends that occurs once although how it begins is usual; -1 without one."""
    for end in range(max(length, len(stream) - _RECENT + 1), len(stream) + 1):
        passage = stream[end - length : end]
        if counts[passage] == 1 and (length == 1 or before[passage[:-1]] > 1):
            return end - 1
    return -1


def judge(picture: Picture, circle: tuple[int, ...]) -> TraceVerdict:
    """Name the rank of a circle of waits that made its calls in another order, else the whole circle."""
    streams = CallStreams(picture)
    odd = [] if _all_begin(streams, circle) else oddities(streams, circle)
    places = [here for here in picture.places if not set(here.waiters).isdisjoint(circle) and here.missing]
    here = min(places, key=lambda one: one.since_s)
    waited = f"{count_words(len(circle))} have been waiting for each other for {picture.waited_s(here):.1f} s"
    apart = away.apart(picture, circle)
    if apart is not None and (not odd or _goes_on(streams, odd[0], apart[1])):
        return away.judge(picture, *apart, waited, proven=is_closed(picture, circle))
    # A passage that several have alone has its cause in the first of them, if the evidence is that they are few.
    if odd and (len(odd) == 1 or len(odd) <= max(1, len(circle) // 4)):
        first = odd[0]
        op = streams.ops[first.rank][first.position]
        where = f" at {short_site(op.site)}" if op.site else ""
        return draft(
            picture,
            kind="desync",
            ranks=(first.rank,),
            rule="order",
            sentence=f"{picture.who((first.rank,))} {difference(picture, streams, first)}{where}; {waited}",
            confidence="high" if len(odd) == 1 and first.length <= 2 else "medium",
            here=next((one for one in places if first.rank in one.waiters), here),
            proven=is_closed(picture, circle),
        )
    where = picture.where(circle[0])
    return draft(
        picture,
        kind="desync",
        ranks=circle,
        rule="cycle",
        sentence=f"{waited} in {picture.what(here)} and other calls: {ranks_words(circle)} make calls in orders that exclude"
        f" each other{'; rank ' + str(circle[0]) + ' is in ' + where if where else ''}",
        confidence="low",
        here=here,
        over_evicted=circle,
        proven=is_closed(picture, circle),
    )


def _goes_on(streams: CallStreams, odd: Oddity, few: WaitPlace) -> bool:
    """Whether a rank that is in another call than most made that call before: it goes on, and is odd by what it did not do."""
    stream = streams.tokens[odd.rank]
    return odd.rank in few.waiters and stream[odd.position] in stream[: odd.position]


def _all_begin(streams: CallStreams, circle: tuple[int, ...]) -> bool:
    """Whether all of a circle are in the first message of their lives, in the same direction: none has a usual peer yet."""
    messages = [[op.op for op in streams.ops[rank] if op.op in P2P] for rank in circle]
    return all(len(one) == 1 for one in messages) and len({one[0] for one in messages}) == 1


def is_closed(picture: Picture, circle: tuple[int, ...]) -> bool:
    """Whether no thread of the ranks of a circle is free to make the call that another waits for, and none has made it."""
    awaited = [
        (here, rank)
        for here in picture.places
        if not set(here.waiters).isdisjoint(circle)
        for rank in here.missing
        if rank in circle
    ]
    return all_tied(picture, circle) and surely_missing(picture, awaited)


def difference(picture: Picture, streams: CallStreams, odd: Oddity) -> str:
    """Say how a rank's calls differ from what should have come: left out, made too many, swapped."""
    stream, ops = streams.tokens[odd.rank], streams.ops[odd.rank]
    at = odd.position
    mates = [rank for rank in streams.parts[streams.part[odd.rank]] if rank != odd.rank][:_SOURCES]
    usual = following(stream[:at], [stream[:at], *(streams.tokens[rank] for rank in mates)], 4)
    made = _call(picture, odd.rank, ops[at])
    after = stream[at + 1] if at + 1 < len(stream) else None
    if not usual or usual[0] == stream[at]:
        return f"called {made} where no other rank does"
    due = _token_words(streams, usual[0], odd.rank, picture)
    if usual[0].op == stream[at].op and usual[0].role == stream[at].role and stream[at].peer != usual[0].peer:
        return f"called {made} instead of {due}"
    if len(usual) > 1 and stream[at] == usual[1] and after == usual[0]:
        return f"called {made} before {due}, not after it"
    again = after is None and at > 0 and stream[at] == stream[at - 1]
    # Made twice, or what comes in between left out: that is open where it may come twice, or comes again soon.
    if after == usual[0] or (again and odd.length <= 2 and stream[at] not in usual):
        return f"called {made} once too often, before {due}"
    if stream[at] in usual[1:] and not again:
        return f"called {made} without {due}, which comes before it"
    return f"called {made} where {due} comes otherwise"


def _call(picture: Picture, rank: int, op: Op) -> str:
    if op.op in LIFECYCLE:
        return op.op
    if op.op in P2P:
        return f"{op.op} {'to' if op.op == 'send' else 'from'} {'any rank' if op.peer < 0 else f'rank {op.peer}'}"
    return f"{op_name(op.op)} #{op.seq} of {picture.label(picture.group_of(picture.key(rank, op.group)))}"


def _token_words(streams: CallStreams, token: Token, rank: int, picture: Picture) -> str:
    if token.op in P2P:
        return (
            f"{token.op} {'to' if token.op == 'send' else 'from'} rank {(rank + token.peer) % picture.scene.world_size}"
        )
    if token.op in LIFECYCLE:
        return token.op
    sight = picture.sights[rank]
    own = sight.trace.groups if sight.trace is not None else ()
    groups = [group for group in own if streams.role(rank, group.name) == token.role]
    return f"{op_name(token.op)} of {picture.label(groups[0])}" if groups else op_name(token.op)
