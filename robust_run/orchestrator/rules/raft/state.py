"""State of one voter. No behaviour but small questions. What outlives the process is said to be on record."""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.orchestrator.model.succession_words import LEAD_S, Append, Entry, Message, Run

#: Who was heard so lately is here.
HERE_S = 3.0

Part = Literal["follows", "stands", "leads"]
Followers = Literal["ready", "not yet", "none"]
"""Of a leader that would leave: others could lead on now; perhaps soon; not as long as the voters are these."""


class Other(msgspec.Struct):
    """Another voter, as the leader knows it."""

    is_here: bool = False
    """There is a connection."""
    match: int = 0
    """It has the leader's log up to here."""
    after: int = 0
    """It is sent what follows this."""
    is_busy: bool = False
    """It has not answered yet."""
    acked_s: float = float("-inf")
    """When the newest sign of life was sent that it has answered."""
    through: int = 0
    """Its log is made anew, and whole with this entry; 0: it is not."""
    is_leaving: bool = False
    """Its node was told to leave."""


class ReplicaState(msgspec.Struct, kw_only=True):
    """One voter. Changed in place by `core.step`."""

    name: str
    seats: tuple[str, ...]
    """All voters that the job began with, in the order in which they stand for election."""
    counting: list[tuple[int, tuple[str, ...]]] = []
    """Of the log: from which entry on who counts (`members`); until there all do."""
    term: int = 0
    """On record."""
    voted: str = ""
    """For whom in this term. On record."""
    runs: list[Run] = []
    """Of the log: see `Run`."""
    last: int = 0
    """Index of its last entry."""
    dropped: int = 0
    """Entries up to here may be missing, because what came later made them void."""
    committed: int = 0
    part: Part = "follows"
    leader: str = ""
    """Of this term, as far as it is known."""
    heard_s: float = 0.0
    """When the leader was heard, or this process began: an earlier one may have heard it just before."""
    stand_s: float = 0.0
    """follows, stands: when it stands for election, if no leader is heard."""
    stands: bool = True
    """Whether it ever stands for election; not where its node is about to leave."""
    is_try: bool = False
    granted: tuple[str, ...] = ()
    since_s: float = 0.0
    """leads: since when."""
    others: dict[str, Other] = {}
    anew: int | None = None
    """A log that is sent from its beginning is here up to this index."""
    anew_counting: list[tuple[int, tuple[str, ...]]] = []

    @property
    def voters(self) -> tuple[str, ...]:
        """Who counts."""
        return self.counting[-1][1] if self.counting else self.seats

    @property
    def majority(self) -> int:
        """So many voters decide."""
        return len(self.voters) // 2 + 1

    @property
    def last_term(self) -> int:
        """Term of the last entry."""
        return self.runs[-1][1] if self.runs else 0

    def term_at(self, index: int) -> int:
        """Return the term of an entry; 0 where there is none."""
        if not 0 < index <= self.last:
            return 0
        return next(term for first, term in reversed(self.runs) if first <= index)

    def confirmed(self) -> int:
        """Return up to where a majority has the leader's log."""
        matches = [self.last if name == self.name else self.others[name].match for name in self.voters]
        return sorted(matches, reverse=True)[self.majority - 1]

    def until_s(self) -> float:
        """Return until when a leader leads by what it has heard: by when that was asked, not by when it was answered."""
        if self.majority == 1:
            return float("inf")
        acked = sorted((self.others[name].acked_s for name in self.voters if name != self.name), reverse=True)
        return acked[self.majority - 2] + LEAD_S

    def may_act(self, now_s: float) -> bool:
        """Whether this voter leads beyond doubt."""
        return self.part == "leads" and now_s < self.until_s()

    def followers(self, now_s: float) -> Followers:
        """Whether the other voters that are here, know all that is decided and stay are a majority without this one."""
        others = [other for name, other in self.others.items() if name in self.voters]
        stay = [each for each in others if not each.is_leaving]
        here = [each for each in stay if each.is_here and now_s - each.acked_s < HERE_S]
        ready = [each for each in here if each.match >= self.committed]
        return "ready" if len(ready) > len(others) // 2 else "not yet" if len(stay) > len(others) // 2 else "none"

    def may_write(self, now_s: float) -> bool:
        """Whether it may decide: as long as it leads, and in the moment before the first answer."""
        return self.part == "leads" and now_s < max(self.until_s(), self.since_s + LEAD_S)


# What happens.


class Tick(msgspec.Struct, frozen=True):
    """Time has passed, or there is something to send."""


class Wrote(msgspec.Struct, frozen=True):
    """The leader has put one more entry at the end of its own log."""


class Dropped(msgspec.Struct, frozen=True):
    """Entries up to `index`, all committed, may be missing from the log now."""

    index: int


class Came(msgspec.Struct, frozen=True):
    """There is a connection to a voter."""

    name: str


class Went(msgspec.Struct, frozen=True):
    """It is gone."""

    name: str


class Leaves(msgspec.Struct, frozen=True):
    """The node of a voter was told to leave; or another process of it is here, and stays."""

    name: str
    is_leaving: bool = True


class Resign(msgspec.Struct, frozen=True):
    """This voter's node leaves: it is to lead no more, if it does."""


class Heard(msgspec.Struct, frozen=True):
    """A voter has said something."""

    name: str
    message: Message


Event = Tick | Wrote | Dropped | Came | Went | Leaves | Resign | Heard

# What is to be done, in this order.


class Record(msgspec.Struct, frozen=True):
    """Put term and vote on record, before anything else is said."""


class Say(msgspec.Struct, frozen=True):
    """Send a message to a voter."""

    to: str
    message: Message


class Ship(msgspec.Struct, frozen=True):
    """Send a voter what follows, with as many entries as fit into a message."""

    to: str
    message: Append


class Cut(msgspec.Struct, frozen=True):
    """Remove all entries after this one from the log."""

    after: int


class Store(msgspec.Struct, frozen=True):
    """Put entries at the end of the log, before the answer is sent."""

    entries: tuple[Entry, ...]


class StoreAnew(msgspec.Struct, frozen=True):
    """Put entries at the end of another log, which is begun with `begins`, and takes the place of this one with `is_whole`."""

    entries: tuple[Entry, ...]
    begins: bool
    is_whole: bool


class Committed(msgspec.Struct, frozen=True):
    """A majority has all up to this entry."""

    index: int


class Lead(msgspec.Struct, frozen=True):
    """This voter leads from now on."""


class StopLeading(msgspec.Struct, frozen=True):
    """It leads no more: nothing is said or written as leader."""

    why: str


class Follow(msgspec.Struct, frozen=True):
    """Another leads."""

    leader: str


Action = Record | Say | Ship | Cut | Store | StoreAnew | Committed | Lead | StopLeading | Follow
