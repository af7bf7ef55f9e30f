"""What workers of a job of several roles and its orchestrator say to each other. No behaviour.

A request carries a number, which its answer repeats. `Told` comes unasked, whenever what is known of a member has changed.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.roles.queue_words import Counts, Item, Position, QueueEvent
from robust_run.roles.view_words import RolesView

PROTOCOL = 1
MOST_FRAME_BYTES = 64 << 20
UNPROVEN_FRAME_BYTES = 16 << 10
"""Largest frame of a peer that has not proven that it knows the job's secret."""


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """Files that connections are hidden with; see `robust_run.tls`."""

    cert: str = ""
    key: str = ""
    ca: str = ""


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """Who a worker is, as its environment says."""

    role: str
    index: int
    """Of its member: `rollout/3` has 3."""
    rank: int
    """In its member's world."""
    serial: int
    """Counts the launchers of its member."""
    attempt: int
    """Counts the attempts of that launcher."""

    @property
    def member(self) -> str:
        """Name of its member."""
        return f"{self.role}/{self.index}"

    @property
    def consumer(self) -> str:
        """What queues know it by: the same after each restart."""
        return f"{self.role}/{self.index}:{self.rank}"

    @property
    def incarnation(self) -> tuple[int, int]:
        """Which of those that have this name it is: a later one is larger."""
        return self.serial, self.attempt


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a role, as all others know it."""

    role: str
    index: int
    generation: int = 0
    """Grows each time that its workers are started; 0: they never were."""
    state: str = "waits"
    """waits, starting, running, stopping, pausing, done, given_up, held."""
    ready: bool = False
    addresses: tuple[str, ...] = ()
    """By rank: what it gave to `ready()`; empty where it has not called it."""
    nodes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`rollout/3`."""
        return f"{self.role}/{self.index}"


OPERATOR = ""
"""Role of `Me` that is no worker but somebody who looks, or asks for something: `robust roles`."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """First word of a worker."""

    protocol: int = PROTOCOL
    version: str = ""
    nonce: bytes


class Challenge(msgspec.Struct, frozen=True, kw_only=True, tag="challenge"):
    """First word of the orchestrator: it knows the secret."""

    nonce: bytes
    proof: bytes


class Proof(msgspec.Struct, frozen=True, kw_only=True, tag="proof"):
    """The worker knows it too, and says who it is."""

    proof: bytes
    me: Me


class Holds(msgspec.Struct, frozen=True, kw_only=True, tag="holds"):
    """First word after the proof: items that it works on, by queue; it was connected before."""

    numbers: dict[str, tuple[int, ...]] = {}


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """It is let in."""

    members: tuple[Member, ...]


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """It is not."""

    why: str


class ReadyCall(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """This rank is ready."""

    number: int
    address: str = ""


class QueueCall(msgspec.Struct, frozen=True, kw_only=True, tag="queue"):
    """Something for a queue. The consumer's name in it is not looked at: it is who sent it."""

    number: int
    queue: str
    event: QueueEvent
    wait_s: float = 0.0
    """How long the answer may wait for an item, or for room."""


class PositionCall(msgspec.Struct, frozen=True, kw_only=True, tag="position"):
    """What has this worker kept, and how full is the queue."""

    number: int
    queue: str


class LookCall(msgspec.Struct, frozen=True, kw_only=True, tag="look"):
    """How is the job."""

    number: int


class AskCall(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """The job is to end, or a role is to have so many members."""

    number: int
    what: Literal["stop", "scale"]
    role: str = ""
    members: int = 0
    by: str = ""


class CodeCall(msgspec.Struct, frozen=True, kw_only=True, tag="code"):
    """Which versions of its code does a role have."""

    number: int
    role: str


class UpdateCall(msgspec.Struct, frozen=True, kw_only=True, tag="update"):
    """A version is to reach the members of a role."""

    number: int
    role: str
    wish: bytes
    """As a job of one world is asked (`launcher.operator.views.code_words.UpdateWish`), JSON."""


class RollbackCall(msgspec.Struct, frozen=True, kw_only=True, tag="rollback"):
    """An earlier version of a role is wanted back."""

    number: int
    role: str
    wish: bytes
    """`RollbackWish`, JSON."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """To a request."""

    number: int
    items: tuple[Item, ...] = ()
    accepted: bool = True
    lost: tuple[int, ...] = ()
    error: str = ""
    position: Position | None = None
    counts: Counts | None = None
    view: RolesView | None = None
    data: bytes = b""
    """About code: JSON."""
    has_moved: bool = False
    """Another version came in between."""
    is_coming: bool = False
    """Code is not with the leader yet, and was asked for: ask again."""


class Told(msgspec.Struct, frozen=True, kw_only=True, tag="told"):
    """A member has changed."""

    member: Member


FromWorker = (
    Hello
    | Proof
    | Holds
    | ReadyCall
    | QueueCall
    | PositionCall
    | LookCall
    | AskCall
    | CodeCall
    | UpdateCall
    | RollbackCall
)
ToWorker = Challenge | Welcome | Refused | Answer | Told
