"""Messages between agents and the controller. No behaviour.

An agent dials; nobody dials an agent. Each side first sends one line of ASCII (see `preamble`), so that peers of different
versions can refuse each other in words; then frames follow: four bytes of length, big-endian, and a msgpack map (see `frames`).

    controller: Challenge        agent: Hello
    controller: Welcome or Refused
    then, in any order           agent: Heartbeat, Report, ToldToLeave, Leaving, Notice, Sights, Paces, Starts,
                                        CodeWanted, FactsTold, PlaceOpened, ChecksSaid, CheckpointsSeen, NcclWindow,
                                        ReducedValues
                                 controller: Beat, Orders, Candidates, CodeParts

Both sides prove that they know the job's token without sending it (see `handshake`); each frame after that is sealed (`sealing`).
"""

from __future__ import annotations

import msgspec

from robust_run.launcher.model.actions import Order
from robust_run.launcher.model.check_events import CheckAnswer
from robust_run.launcher.model.checkpoints_seen import CheckpointsSeen
from robust_run.launcher.model.events import NodeEvent
from robust_run.launcher.model.job import NodeInfo, Paces, Sights
from robust_run.launcher.model.nccl_windows import NcclWindow
from robust_run.launcher.model.reduced_values import ReducedValues
from robust_run.launcher.model.start_notes import Starts
from robust_run.launcher.records.code.types import TreeParts

PROTOCOL = 2
"""Counts changes that an older peer would misunderstand. 2: frames are sealed."""


class Challenge(msgspec.Struct, frozen=True, tag="challenge", kw_only=True):
    """First frame of the controller."""

    nonce: bytes
    """32 random bytes."""


class Hello(msgspec.Struct, frozen=True, tag="hello", kw_only=True):
    """First frame of an agent."""

    nonce: bytes = b""
    """32 random bytes; filled in by `client.dial`."""
    proof: bytes = b""
    """HMAC-SHA256 with the token over both nonces and all of this message; filled in by `client.dial`."""
    node: NodeInfo
    job: str = ""
    """The job it wants to join (--rdzv-id or --run-id); empty: whatever runs there."""
    nnodes: str = ""
    """What it was told of the job's size, `MIN:MAX`: a mistyped command line is found here."""
    term: int = 0
    """Newest controller it has obeyed; 0: none."""
    attempt: int = -1
    """Newest attempt it was told to start; -1: none."""
    now_s: float = 0.0
    """Its monotonic clock."""
    events: tuple[NodeEvent, ...] = ()
    """All it has reported of that attempt, for a controller that missed some."""
    asks_setup: bool = False
    """It does not join yet, and only wants to know the job's snapshot."""
    cannot_start: str = ""
    """Why it never will join, for the record: it is refused, and nobody waits for its node any more."""
    events_follow: bool = False
    """`events` is empty here, because it may be large: a Report with them comes next. Set and undone by the connection."""


class Welcome(msgspec.Struct, frozen=True, tag="welcome", kw_only=True):
    """The agent is in."""

    proof: bytes = b""
    """HMAC-SHA256 with the token over both nonces and all of this message; filled in by `server.ControlServer`."""
    term: int
    run_id: str
    rdzv_id: str
    heartbeat_s: float
    lease_s: float
    candidates: tuple[str, ...] = ()
    """HOST:PORT of agents that may be the next controller."""
    setup: bytes | None = None
    """The manifest of the snapshot that all nodes have, for who asks; empty: there is none. None: it is not told."""
    setup_digest: str = ""
    """Of that."""


class JoinRefused(msgspec.Struct, frozen=True, tag="refused", kw_only=True):
    """The agent is not let in, or not any more."""

    reason: str
    proof: bytes = b""
    """As in a Welcome, where the agent has proven that it knows the token; else empty."""
    final: bool = True
    """Trying again is of no use."""
    wrong_token: bool = False
    """The agent did not prove that it knows the token."""


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat", kw_only=True):
    """Sent every `heartbeat_s`."""

    number: int
    now_s: float = 0.0
    """The agent's monotonic clock."""
    usage: tuple[float, ...] = ()
    """What the node did since the one before (see `health.sensors.usage`); empty: it is not watched."""
    late_s: float = 0.0
    """By how much the agent's timers were late at worst in the last minute."""


class HeartbeatReply(msgspec.Struct, frozen=True, tag="beat", kw_only=True):
    """The answer to a Heartbeat: the agent's lease is renewed from the moment it sent that."""

    number: int
    term: int
    lease_s: float = 0.0
    """Length of the lease that it renews; 0: as the last that was named."""


class EventReport(msgspec.Struct, frozen=True, tag="report", kw_only=True):
    """Things that happened on the agent's node."""

    events: tuple[NodeEvent, ...]


class ControlNotice(msgspec.Struct, frozen=True, tag="notice", kw_only=True):
    """Something for the controller's journal and terminal that decides nothing."""

    text: str


class Leaving(msgspec.Struct, frozen=True, tag="leaving", kw_only=True):
    """The agent ends its workers and goes."""

    reason: str


class ToldToLeave(msgspec.Struct, frozen=True, tag="told_to_leave", kw_only=True):
    """The agent leaves in a moment, because of this signal, unless it hears that the job ends (`JobEnds`)."""

    signal: int


class Orders(msgspec.Struct, frozen=True, tag="orders", kw_only=True):
    """Things to do, in this order. An agent ignores those of a lower term than it has seen."""

    term: int
    orders: tuple[Order, ...]


class CandidateList(msgspec.Struct, frozen=True, tag="candidates", kw_only=True):
    """Who may be the next controller has changed."""

    term: int
    candidates: tuple[str, ...]


class CodeWanted(msgspec.Struct, frozen=True, tag="code_wanted", kw_only=True):
    """The agent lacks a version of the code."""

    tree: str


class CodeParts(msgspec.Struct, frozen=True, tag="code_parts", kw_only=True):
    """Some of it."""

    parts: TreeParts


_Told = Sights | Paces | Starts | CheckAnswer | CheckpointsSeen | NcclWindow | ReducedValues
FromAgent = Hello | Heartbeat | EventReport | ControlNotice | Leaving | ToldToLeave | CodeWanted | _Told
FromController = Challenge | Welcome | JoinRefused | HeartbeatReply | Orders | CandidateList | CodeParts
