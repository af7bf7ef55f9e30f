"""The words of what NCCL does inside a rank. Plain data, no behaviour.

Times are seconds of the monotonic clock of the rank's node. Those of steps are as coarse as the kernel's tick (1 to 10 ms), and
by that much early. Ranks and peers are of the communicator, not of the world.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Direction = Literal["send", "recv"]
OpKind = Literal["collective", "p2p"]
Algorithm = Literal["", "ring", "tree", "other"]
Network = Literal["", "rdma", "sockets"]
"""What moves a rank's bytes. sockets take and keep data that no receiver has asked for, and call it delivered when the kernel has
it; with rdma a sender knows what has come to its peer's memory. Empty: unknown; taken for rdma until counters say otherwise."""

FlowState = Literal[
    "idle",
    "played",
    "not_started",
    "gpu_not_ready",
    "not_transmitted",
    "not_delivered",
    "not_flushed",
]
"""Where a flow stands (after Mycroft, arXiv 2509.03018, table 2). idle: nothing is in flight. played: it has done its part of the
operation. not_started: nothing is offered. gpu_not_ready: the GPU of this rank does not fill or consume what is offered to it.
not_transmitted (sender only): the network does not take it. not_delivered: it does not arrive. not_flushed (receiver only)."""
FlowCause = Literal["none", "local", "remote", "either"]
"""Where the cause of a state is to be looked for: at this rank, at the peer (or behind it), or only both together tell."""

FaultKind = Literal["late", "gpu", "proxy", "network", "dead", "unseen", "deadlock", "straggler"]
"""late: did not make the call. gpu: its GPU does not go on. proxy: its proxy thread offers or takes nothing (stopped, starved of
CPU, refused by the network). network: between two ranks, or at one. dead: its process ended. unseen: nothing is known of it.
deadlock: ranks wait for each other in a circle. straggler: comes again and again later than its peers."""
FaultScope = Literal["flow", "rank", "node"]
"""How much of what the rank (the node) does is concerned."""
Confidence = Literal["high", "medium", "low"]


Thread = Literal["", "runs", "still"]
"""What a proxy thread does between two looks. NCCL's never sleeps as long as it has work. still: it got no CPU at all."""


class Communicator(msgspec.Struct, frozen=True, kw_only=True):
    """One communicator that the rank made."""

    serial: int
    """Counts the communicators of the process, from 1. Means nothing on other ranks."""
    hash: int
    """The same on all its members; 0: unknown (interface v3, before its first operation)."""
    name: str
    """As the program (torch: the process group) calls it; empty: unknown."""
    rank: int | None
    ranks: int | None
    nodes: int | None
    opened_s: float
    closed_s: float | None
    """None: in use."""
    channels: int = 0
    """That it uses, where flows were left out; 0: as many as the flows show."""
    thread: int = 0
    """Number of the proxy thread that works for it, as the process sees it; 0: unknown."""
    proxy: Thread = ""
    """What that thread does; empty: unknown."""


class Flow(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What goes in one direction between this rank and a peer, on one channel, over the network.

    Steps climb four rungs, and each counter says how many have reached it since the flow began: posted >= gpu_ready >=
    transmitted >= done. The names are those of a sender (after Mycroft, arXiv 2509.03018):

    =============  ===================================  ===========================================
    rung           send                                 recv
    =============  ===================================  ===========================================
    posted         a buffer is offered to the GPU       a buffer is offered to the network
    gpu_ready      the GPU has filled it                data has arrived in it
    transmitted    the network has taken it             it is flushed, the GPU may have it
    done           the network says it is delivered     the GPU has consumed it
    =============  ===================================  ===========================================

    With interface v3 the second rung of a sender is reached with the third.
    """

    comm: int
    """`Communicator.serial`; of a foreign flow the pid of the process it is done for (its lowest 24 bits)."""
    foreign: bool
    """Done for another process of the node (PXN)."""
    rank: int
    """Whose flow it is."""
    channel: int
    peer: int
    direction: Direction
    op: int | None
    """`NcclOp.number` of the newest operation that began in it; None: unknown."""
    op_seq: int
    op_started_s: float | None
    op_base: int
    """Steps that were done when that operation began."""
    op_steps: int
    """Steps that it takes."""
    steps: int
    """Of all operations so far, also those that wait for their turn."""
    posted: int
    gpu_ready: int
    transmitted: int
    done: int
    posted_s: float | None
    """When the counter last grew; None: never."""
    gpu_ready_s: float | None
    transmitted_s: float | None
    done_s: float | None
    bytes: int
    """Handed to the network, or come from it. 0 with interface v3."""
    open_ops: int
    """Operations begun or waiting, not ended. 0: nothing is in flight, also where the other counters differ (`steps` stays ahead
    of `done` for ever where an operation ended early). NCCL ends an operation in all its flows at once: one with `done == steps`
    has played its part, and waits for the others."""


class NcclOp(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One collective or point-to-point call that the rank gave to NCCL."""

    number: int
    """Counts the operations of the process, from 0."""
    comm: int
    kind: OpKind
    func: str
    """As NCCL calls it: AllReduce, AllGather, Send..."""
    seq: int
    """Of a collective: its number among those of its communicator and func, from 0, the same on all members. Point-to-point: its
    number among those of its communicator on this rank."""
    count: int
    dtype: str
    """float32, bfloat16, int64..."""
    peer: int
    """Root of a rooted collective, peer of a point-to-point call."""
    started_s: float
    """When it was enqueued: long before the GPU comes to it."""
    stopped_s: float | None
    """When it had been enqueued."""
    proxy_first_s: float | None
    """When its first flow was opened; None: none yet (it needs none within a node)."""
    proxy_last_s: float | None
    """When the newest flow ended."""
    opened: int
    """Flows that work or worked for it."""
    closed: int
    """Flows that have done their part. It is complete on the network when all have."""
    sent_bytes: int
    received_bytes: int
    kernel_first_s: float | None
    """When its first kernel was seen to start; None also where kernels are not traced."""
    kernel_last_s: float | None
    algorithm: Algorithm = ""
    """How NCCL carries out a collective; empty: unknown."""


class NcclGlance(msgspec.Struct, frozen=True, kw_only=True):
    """How the tracing of a rank is doing."""

    pid: int
    """Of the process that writes, as it sees itself; 0: none yet."""
    api: int
    """Version of NCCL's profiler interface in use, 3 to 6; 0: no communicator was made yet."""
    communicators: int
    """Made so far."""
    ops: int
    event_s: float | None
    """Of the newest event: two looks that see the same saw no progress."""
    dropped: int
    """Events that found no room."""
    foreign: int
    """Proxy operations done for other processes of the node."""
    unknown: int
    """Events and states that this version does not know."""
    stale: int
    """Events that fit no operation."""


class NcclTrace(msgspec.Struct, frozen=True, kw_only=True):
    """All that the file of a rank says."""

    glance: NcclGlance
    communicators: tuple[Communicator, ...]
    flows: tuple[Flow, ...]
    ops: tuple[NcclOp, ...]
    """Oldest first."""
    left_out: int = 0
    """Flows in flight that were left out to save room."""
    network: Network = ""


class NcclNote(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A flow at a moment while a stall was forming; noted when its counters changed."""

    at_s: float
    comm: int
    """`Communicator.serial`."""
    channel: int
    peer: int
    direction: Direction
    posted: int
    gpu_ready: int
    transmitted: int
    done: int


class NcclSight(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one rank at one moment."""

    rank: int
    """Of the world."""
    node: str
    trace: NcclTrace | None
    """None: there is no file, or it is not readable."""
    before: NcclTrace | None = None
    """The same, a moment (seconds) earlier."""
    alive: bool = True
    shift_s: float = 0.0
    """To be added to the times of the trace, so that those of all nodes are of one clock."""


class NcclWait(msgspec.Struct, frozen=True, kw_only=True):
    """A rank waits for another inside NCCL. Ranks of the world."""

    waiter: int
    awaited: int
    what: str
    """`all_gather #1204 of tp_3`."""


class NcclFault(msgspec.Struct, frozen=True, kw_only=True):
    """Who keeps the others waiting, and in what."""

    kind: FaultKind
    scope: FaultScope
    state: FlowState
    ranks: tuple[int, ...]
    """At fault, of the world; where no single one is certain, all that may be. Empty: a member that no sight is of."""
    nodes: tuple[str, ...]
    suspects: tuple[int, ...] = ()
    """Ranks that may be at fault instead."""
    comm: str = ""
    """Name of the communicator in which it shows."""
    func: str = ""
    """As NCCL calls it."""
    seq: int | None = None
    waiting: tuple[int, ...] = ()
    """Ranks that wait, directly or not, for those at fault."""
    confidence: Confidence
    rule: str
    """Name of the rule that spoke."""
    sentence: str
    """For people. One line."""
    evidence: tuple[str, ...] = ()
    """Counters of the flows that led there, a line each. At most `EVIDENCE`."""


#: Lines of evidence of one fault.
EVIDENCE = 16


class NcclDiagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What the traces of all ranks say."""

    faults: tuple[NcclFault, ...]
    """Most certain first."""
    waits: tuple[NcclWait, ...]


#: Communicators that are told apart by name in `CommRate`s; the others are one.
NAMES = 32
NAME_CHARACTERS = 64

_Count = Annotated[int, msgspec.Meta(ge=0)]


class CommRate(msgspec.Struct, frozen=True, array_like=True):
    """What was completed in communicators of one name, all ranks together (see `rates`)."""

    name: Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS)]
    operations: _Count
    """Of all ranks: an all_reduce of four ranks is four."""
    sent_bytes: _Count
    """Over the network; 0 with NCCL 2.26, which does not say."""
    received_bytes: _Count
    seconds: Annotated[float, msgspec.Meta(ge=0)]
    """Between the first and the last thing that operations did on the network, added up."""


Rates = Annotated[tuple[CommRate, ...], msgspec.Meta(max_length=NAMES + 1)]
