"""What the leader and the other nodes of a job of several roles say to each other. No behaviour.

A node that has heard nothing of the leader for `LEASE_S` tells its launchers to end, and kills them `KILL_S` later; its guard
does that, too, for a process that is stopped or has no CPU (`guarding.words.Lease`). The leader takes a node for gone when it has
heard nothing of it for `GONE_S`, which is longer: by then nothing of it can run, and its members may be started elsewhere. A
connection that breaks says nothing: links come back, and leaders are started again.
"""

from __future__ import annotations

import msgspec

from robust_run.launcher.records.code.types import TreeParts
from robust_run.orchestrator.model.command import Meets
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.spec import MANY, RoleSpec
from robust_run.orchestrator.model.succession_words import Voter
from robust_run.orchestrator.model.update_words import UpdateMember
from robust_run.orchestrator.model.words import Event, RestartMember, StartMember, StopMember
from robust_run.roles.words import Tls

NODE = "@node"
"""In the place of a role, where a node says who it is."""
BEAT_S = 1.0
LEASE_S = 20.0
KILL_S = 5.0
SILENT_S = 8.0
"""A node that has no answer for so long connects anew."""
GONE_S = 45.0
"""Longer than both together, and than what timers of a busy machine are late."""


class Several(msgspec.Struct, frozen=True, kw_only=True):
    """Where the nodes of a job meet, and what this one is called."""

    host: str
    port: int
    nodes: int
    """So many at most."""
    fewest: int = 0
    """The job begins with so many, a while after they are there; 0: with all."""
    last_call_s: float = 30.0
    name: str
    secret: bytes
    join_timeout_s: float = 600.0
    is_leader: bool = True
    taken: str = ""
    """Why this node, which was not told whether it leads, cannot listen where all meet; empty: it was told, or can."""
    tls: Tls | None = None
    """Files of this node; None: connections are sealed, not hidden."""
    members_options: tuple[str, ...] = ()
    """With which launchers of members of several nodes trust each other: files of this node."""


class LauncherNow(msgspec.Struct, frozen=True, kw_only=True):
    """A launcher that a node knows."""

    member: MemberName
    serial: int
    code: int | None = None
    """None: it runs."""


class Offer(msgspec.Struct, frozen=True, kw_only=True, tag="offer"):
    """First word of a node, each time it comes: what it is, and what runs on it, from an earlier process of it too."""

    name: str
    boot: str
    """Random, of the process that speaks: it counts what happened from the beginning."""
    guard: str
    """Of its guard, whose children the launchers are: one that is another's knows nothing of those that may still run."""
    slots: int
    devices: int
    address: str
    cpus: int = MANY
    labels: tuple[str, ...] = ()
    port: int = 0
    """Where it listens; 0: it does not."""
    launchers: tuple[LauncherNow, ...] = ()


class Happened(msgspec.Struct, frozen=True, kw_only=True, tag="happened"):
    """Something happened to a member there. It is said again until it is taken in."""

    number: int
    event: Event


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """A sign of life, and its answer, which repeats when it was sent: by the clock of the node."""

    sent_s: float


class Leaving(msgspec.Struct, frozen=True, kw_only=True, tag="leaving"):
    """The node was told to leave. It ends what runs on it, and goes."""

    why: str


class NodeWelcome(msgspec.Struct, frozen=True, kw_only=True, tag="node_welcome"):
    """First word to a node: which job this is. It answers with what it is, and what runs on it."""

    run_id: str
    job: str
    """Name of the job."""
    term: int = 0
    """Of the leader; 0: nobody else can lead this job."""


class Founded(msgspec.Struct, frozen=True, kw_only=True, tag="founded"):
    """All nodes are here: these keep what is decided, and one of them leads on when the leader is lost."""

    voters: tuple[Voter, ...]


class Order(msgspec.Struct, frozen=True, kw_only=True, tag="order"):
    """Start a launcher. One that is known is not started a second time."""

    role: RoleSpec
    start: StartMember
    meets: Meets | None = None
    """Where the nodes of a member of several meet."""


class StopOrder(msgspec.Struct, frozen=True, kw_only=True, tag="stop_order"):
    """Tell a launcher to end."""

    stop: StopMember


class UpdateOrder(msgspec.Struct, frozen=True, kw_only=True, tag="update_order"):
    """Have a launcher put a version of its role's code in place. The code has come before."""

    order: UpdateMember


class CodeParts(msgspec.Struct, frozen=True, kw_only=True, tag="code_parts"):
    """A part of a version's code."""

    parts: TreeParts


class CodeWanted(msgspec.Struct, frozen=True, kw_only=True, tag="code_wanted"):
    """The leader does not have code that the node may have; or the node lacks what it should keep."""

    tree: str


class CodeKept(msgspec.Struct, frozen=True, kw_only=True, tag="code_kept"):
    """A voter should have this code, for when it leads. It asks for what it lacks."""

    trees: tuple[str, ...]


class RestartOrder(msgspec.Struct, frozen=True, kw_only=True, tag="restart_order"):
    """Ask a launcher to start its workers again."""

    restart: RestartMember


class Taken(msgspec.Struct, frozen=True, kw_only=True, tag="taken"):
    """What happened, up to this number, is on record."""

    number: int


class NotYet(msgspec.Struct, frozen=True, kw_only=True, tag="not_yet"):
    """The node cannot come in now, and may try again."""

    why: str


class JobOver(msgspec.Struct, frozen=True, kw_only=True, tag="job_over"):
    """The job is over. `sentence`: how it ended."""

    code: int
    sentence: str = ""


FromNode = Offer | Happened | Beat | Leaving | CodeParts | CodeWanted
ToNode = (
    NodeWelcome
    | Founded
    | Order
    | StopOrder
    | RestartOrder
    | UpdateOrder
    | CodeParts
    | CodeWanted
    | CodeKept
    | Taken
    | Beat
    | NotYet
    | JobOver
)
