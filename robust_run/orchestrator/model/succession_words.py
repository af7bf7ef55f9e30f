"""What voters of a job say to each other, and how long they wait. No behaviour. Times are of the monotonic clock of who
measures."""

from __future__ import annotations

from typing import Literal

import msgspec

PEER = "@peer"
"""In the place of a role, where a voter says that it is one."""
ASKS = "@asks"
"""In the place of a role, where somebody asks a voter which run it is part of."""
FEWEST_NODES = 3
"""With fewer there is no majority without the node that is lost."""
MOST_VOTERS = 5
"""Two of them may be lost. More would make each entry wait for more nodes."""
LEAD_S = 6.0
"""A leader whose signs of life of so long ago were answered by no majority leads no more."""
VOTE_WAIT_S = 8.0
"""A voter that has heard the leader votes for no other so long. Longer than `LEAD_S` by more than clocks differ in speed."""
STAGGER_S = 1.0
"""Voters stand for election one after the other, so that they do not divide the votes."""
TRY_AGAIN_S = 2.0
"""An election that nobody has won is over."""
BATCH_BYTES = 4 << 20
"""So much is sent at once, or a single entry."""

What = Literal["journal", "queue", "begins", "item", "ends", "voters", "head"]
"""A line of the journal; what happened to a queue; all of a queue, whose earlier entries are void with that; who counts."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of the log. Indices count from 1."""

    index: int
    term: int
    what: What
    name: str
    """Of the queue."""
    data: bytes


Run = tuple[int, int]
"""From this index on entries are of this term."""


class Voter(msgspec.Struct, frozen=True):
    """One of the voters, and where it listens."""

    name: str
    address: str
    port: int


class PeerHello(msgspec.Struct, frozen=True, kw_only=True, tag="peer_hello"):
    """First word of a voter to another."""

    name: str
    run_id: str


class AskVote(msgspec.Struct, frozen=True, kw_only=True, tag="ask_vote"):
    """A voter stands for election. `is_try`: it would, and asks whether it had this vote."""

    term: int
    last: int
    last_term: int
    is_try: bool = False


class Vote(msgspec.Struct, frozen=True, kw_only=True, tag="vote"):
    """The answer. `term`: of `AskVote` where it is granted, else the voter's own."""

    term: int
    granted: bool
    is_try: bool = False


class Append(msgspec.Struct, frozen=True, kw_only=True, tag="append"):
    """A sign of life of the leader, and entries that follow the entry `after`."""

    term: int
    sent_s: float
    after: int
    after_term: int
    entries: tuple[Entry, ...] = ()
    committed: int = 0
    runs: tuple[Run, ...] = ()
    """Not empty: the log is sent from its beginning, without what no longer counts, to take the place of what the voter has."""
    through: int = 0
    """Such a log is whole with this entry."""


class Appended(msgspec.Struct, frozen=True, kw_only=True, tag="appended"):
    """The answer: the voter has what the leader has, up to `match`; not `ok`: it lacks `after`, and has `runs` and `last`."""

    term: int
    sent_s: float
    """Of the `Append`."""
    ok: bool
    match: int = 0
    runs: tuple[Run, ...] = ()
    last: int = 0
    began: int = 0
    """Of a log that is sent anew: it has it up to here."""


class Resigned(msgspec.Struct, frozen=True, kw_only=True, tag="resigned"):
    """The leader of a term leads no more, and its node leaves: others need not wait until they miss it."""

    term: int


class InRun(msgspec.Struct, frozen=True, kw_only=True, tag="in_run"):
    """What a voter says to who `ASKS`: its run, and whether it leads that beyond doubt. Empty: it has no vote."""

    run_id: str
    leads: bool


Message = AskVote | Vote | Append | Appended | Resigned
FromPeer = PeerHello | AskVote | Vote | Append | Appended | Resigned
