"""The words of tracing: what is seen of the ranks of an attempt, and what is concluded from it. No behaviour.

Evidence is plain data: agents collect it, the controller judges it, tests write it by hand. All times are seconds of one
monotonic clock (of the node where they were taken; the controller rebases them), ranks are global unless a name says otherwise.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from robust_run.health.types import Finding
from robust_run.tracer.nccl.types import NcclNote, NcclTrace
from robust_run.tracer.ras.types import RasReport
from robust_run.tracer.wake.types import WakeReading

OpState = Literal["entered", "issued", "waiting", "done", "failed"]
"""entered: inside the call that begins it. issued: the call returned, no thread waits for it (yet). waiting: its thread is
blocked until it is done. done: a wait for it returned, or it was seen to have completed. failed: the call or the wait raised."""

#: Operations that are no collectives of a group: a member that is not in one is waited for by the peer alone.
P2P = frozenset({"send", "recv", "recv_any"})
#: Where every rank must come by that has no group yet: they are recorded as operations of the group `WORLD`.
LIFECYCLE = frozenset({"init_process_group", "new_group", "destroy_process_group"})
WORLD = "(world)"
#: The backward pass of DistributedDataParallel, whose collectives torch starts in C++.
BACKWARD = "ddp_backward"


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A process group that the program made."""

    name: str
    """As torch calls it; the same on all its members. `WORLD` for the operations in `LIFECYCLE`."""
    desc: str = ""
    """What the program calls it, if it says."""
    ranks: tuple[int, ...]
    limit_s: float = 0.0
    """How long torch lets a call of it take before it aborts the program, on the rank that says so; 0: not known. While that rank
    is in a call with a short limit of its own: that one."""
    backends: str = ""
    """What moves its tensors, by device: `cpu:gloo,cuda:nccl`; "": not known."""


class Op(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One communication call of one rank."""

    group: str
    """Name of its group."""
    op: str
    """all_reduce, broadcast, all_gather, reduce_scatter, all_to_all, reduce, gather, scatter, barrier, monitored_barrier, send,
    recv, recv_any, or one of `LIFECYCLE`, or `BACKWARD`."""
    seq: int
    """Counts the collectives of its group on this rank, from 1; the same call has the same number on all members. Point-to-point
    calls count for themselves, by (group, direction, peer, tag)."""
    state: OpState
    at_s: float
    """When the call was made."""
    waiting_at_s: float | None = None
    done_at_s: float | None = None
    numel: int = 0
    """Elements of the input, all tensors together; -1: not comparable between ranks."""
    dtype: str = ""
    peer: int = -1
    """Root of a rooted collective, peer of a point-to-point call; -1: none."""
    site: str = ""
    """`file:line function` of the innermost frame of the user's program, where known."""
    thread: int = 0
    """0: the main thread; others are numbered as they appear."""
    on_gpu: bool | None = None
    """Whether its kernel has begun on the GPU; None: not known (no GPU, or torch does not time collectives)."""
    tag: int = 0
    """Of a point-to-point call of tensors on the CPU: calls of other tags do not meet."""


class StepMark(msgspec.Struct, frozen=True, array_like=True):
    """The end of one optimizer step."""

    at_s: float
    blocked_s: float
    """For how long, all in all, the main thread had been waiting for peers by then."""


class StepPhases(msgspec.Struct, frozen=True, array_like=True):
    """What one step consisted of, in milliseconds, as the GPU's clock has it. Each phase is without what was waited in it."""

    step: int
    at_s: float
    """When the program had enqueued all of it: the GPU was done with it then, or later."""
    forward_ms: float
    """From the end of the step before, so with the loading of data, without the backward passes, of which there may be several.
    All of it where the program starts those other than by `backward()`."""
    forward_waiting_ms: float
    backward_ms: float
    backward_waiting_ms: float
    optimizer_ms: float
    """From the end of the last backward pass to the end of the step."""
    optimizer_waiting_ms: float

    @property
    def own_ms(self) -> float:
        """Without waiting for peers."""
        return self.forward_ms + self.backward_ms + self.optimizer_ms

    @property
    def waiting_ms(self) -> float:
        """For which the GPU had nothing to do but to wait for collectives, and what they move."""
        return self.forward_waiting_ms + self.backward_waiting_ms + self.optimizer_waiting_ms

    @property
    def step_ms(self) -> float:
        """Length of the step."""
        return self.own_ms + self.waiting_ms


#: One of the doubts of a ring: of an attempt that is over it says nothing, since no rank went on.
WENT_ON = "went on after a call that failed"


class RankTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank's ring holds."""

    rank: int
    world_size: int
    pid: int
    steps: int
    last_at_s: float
    """Of the newest event."""
    blocked_s: float
    ops: tuple[Op, ...]
    """Oldest first; on the wire the newest of each rank only."""
    groups: tuple[Group, ...]
    marks: tuple[StepMark, ...] = ()
    """Of the newest steps, oldest first; the last belongs to step number `steps`."""
    doubts: tuple[str, ...] = ()
    """Why what the calls look like proves nothing, as clauses whose subject is the rank."""
    phases: tuple[StepPhases, ...] = ()
    """Of the newest steps that were timed on the GPU, oldest first; only for pictures, where nothing of it is sent."""


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One line of a stack."""

    function: str
    file: str
    line: int


class ThreadStack(msgspec.Struct, frozen=True, kw_only=True):
    """What one thread was doing."""

    name: str = ""
    is_main: bool = False
    tid: int = 0
    """The kernel's number of the thread; 0: not known."""
    frames: tuple[Frame, ...]
    """Innermost first."""


class StuckConnection(msgspec.Struct, frozen=True, array_like=True):
    """A TCP connection on which data is sent again and again, and the other end's kernel acknowledges none of it."""

    here: str
    """`10.0.0.1:4000`, `[fd00::1]:4000`."""
    there: str
    unsent_bytes: int
    """Written to it and not acknowledged."""
    retries: int
    """Retransmissions in a row without an answer."""


class ThreadUse(msgspec.Struct, frozen=True, kw_only=True):
    """What one thread used while its process was looked at."""

    cpu: float
    """Share of one core."""
    io_bytes: int
    """Bytes it read and wrote."""
    starved: float
    """In what part of the look, 0 to 1, it was runnable and got no CPU."""


class ProcessSight(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a rank's tree, looked at a few times within a second."""

    pid: int
    parent: int
    is_rank: bool
    """It is the rank itself, not a child (DataLoader worker, checkpoint writer, ...)."""
    command: str
    """What it runs, short."""
    state: str
    """As in /proc: R S D T t Z; X: gone."""
    cpu: float = 0.0
    """Share of one core it used while it was looked at."""
    io_bytes: int = 0
    """Bytes it read and wrote meanwhile, by system calls or to and from disks, whichever is more."""
    stacks: tuple[tuple[ThreadStack, ...], ...] = ()
    """A sample each time it was looked at; none where no stack could be had."""
    starved: float = 0.0
    """In what part of the look, 0 to 1, a thread of it was runnable and got no CPU: the machine has more to do than CPUs."""
    main: ThreadUse | None = None
    """Of a rank: what its main thread used of that; None: not known."""
    stopped_by: int = 0
    """The signal that stopped it; 0: it is not stopped, or the kernel does not say."""
    waits_in: str = ""
    """What the kernel says it sleeps in, where that is known (`pipe_read`, `futex_wait_queue`, ...)."""
    links: tuple[StuckConnection, ...] = ()
    """Its connections that were stuck during the whole look, the most stuck first."""
    turns: str = ""
    """How often its main thread was given a CPU; "": not known."""
    frozen_by: str = ""
    """The file of the cgroup by which it was frozen during the whole look, and can be thawed; "": it is not frozen."""
    acting: tuple[int, ...] | None = ()
    """Of a rank: threads beside the main one, by the kernel's numbers, that may act by themselves; None: that was not read."""
    gpu_wait: str = ""
    """Of a rank: the call in which its main thread waits for its GPU, `.item()`; "": it does not, as far as is known."""


class GroupProgress(msgspec.Struct, frozen=True, array_like=True):
    """How far a rank is in one group, and since when it has not got further."""

    name: Annotated[str, msgspec.Meta(max_length=100)]
    """As torch calls the group on all its members."""
    enqueued: int
    completed: int
    open_since_s: float | None = None
    """Since when something is under way and none of it was completed; None: nothing is under way."""
    comparable: bool = True
    """Its counts may be compared with those of the other members."""
    size: int = 0
    """Members of the group, its first and its last; 0: not known. Groups without a common member may share a name."""
    first: int = -1
    last: int = -1
    made: int = 0
    """Goes up when a group of this name is made again."""


class FlightSight(msgspec.Struct, frozen=True, kw_only=True):
    """What regular looks at a rank's recorder said. Times are of its node's monotonic clock."""

    at_s: float
    """Of the newest look."""
    moved_at_s: float | None = None
    """Something was completed after this; None: not seen yet."""
    groups: tuple[GroupProgress, ...] = ()


#: Groups of each rank of which a controller is told in a round.
TOLD_GROUPS = 16


class RankClocks(msgspec.Struct, frozen=True, array_like=True):
    """What a rank says of its groups in one round."""

    rank: int
    at_s: float
    groups: Annotated[tuple[GroupProgress, ...], msgspec.Meta(max_length=TOLD_GROUPS)]


class RankSight(msgspec.Struct, frozen=True, kw_only=True):
    """All that is seen of one rank at one moment."""

    rank: int
    node: str
    """Name of its host."""
    exit_code: int | None = None
    """None while it lives."""
    ended_at_s: float | None = None
    finding: Finding | None = None
    """What its stderr says."""
    had_ended: bool = False
    """Its program had come to its end when it died of a signal: nobody needs it any more than one that ended with exit code 0."""
    trace: RankTrace | None = None
    """None: not traced (ROBUST_TRACE=0, no Python, no torch yet, a damaged ring)."""
    recorded: tuple[Op, ...] = ()
    """Collectives that torch's own flight recorder knows of, also those started in C++; newest last."""
    is_silent: bool = False
    """torch's own flight recorder was asked and knows of no collective, although there were some: it did not answer in time, or
    is off."""
    processes: tuple[ProcessSight, ...] = ()
    lost_children: tuple[str, ...] = ()
    """Children that ended badly while it waited for them, in words."""
    address: str = ""
    """Where workers of other nodes reach its host; "": not known."""
    nccl: NcclTrace | None = None
    """What NCCL did in it, where that is traced."""
    nccl_before: NcclTrace | None = None
    """The same at the beginning of the look: those of the flows that have changed since, as they were (`nccl.cut`)."""
    nccl_shift_s: float = 0.0
    """To be added to the times in both, so that they are of the scene's clock."""
    nccl_log: tuple[NcclNote, ...] = ()
    """How counters changed while a stall was forming, oldest first."""
    ras: RasReport | None = None
    """What NCCL's RAS said of the whole job; on one rank of a node at most."""
    wake: WakeReading | None = None
    """What its process was in, where no call of its ring tells it, and who might wake it; None: not read."""
    wake_before: tuple[WakeReading, ...] = ()
    """The same a little earlier in the same look, oldest first, where it might prove that nothing can."""
    quiet_s: float | None = None
    """For how long no byte has come on any of its TCP connections; None: it has none, or the kernel does not say."""
    flight: FlightSight | None = None
    """What regular looks at torch's flight recorder said before this one; None: nothing."""
    hidden: str = ""
    """Why the kernel does not let us see what it waits for, as a clause; "": it does, or that was not asked."""

    @property
    def is_done(self) -> bool:
        """Whether its program has come to its end."""
        return self.exit_code == 0 or self.had_ended


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt at one moment: what a verdict is reached from."""

    at_s: float
    """Of the controller's clock, as all times within."""
    at_unix_s: float = 0.0
    """The same as seconds since the epoch, for people; 0: not known."""
    attempt: int
    world_size: int
    ranks: tuple[RankSight, ...]
    """Those of nodes that answered, in order."""
    silent_nodes: tuple[str, ...] = ()
    """Those that did not."""


TraceKind = Literal["crash", "stopped", "hang", "mismatch", "desync", "comm_stall", "slow", "unknown"]


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """One edge of the picture of who waits for whom."""

    waiter: int
    awaited: tuple[int, ...]
    what: str
    """`all_reduce #482 of group dp_1`."""
    since_s: float
    """For how long."""


class TraceVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the evidence says."""

    kind: TraceKind
    ranks: tuple[int, ...]
    """At fault; where no single one is certain, all that may be."""
    nodes: tuple[str, ...]
    """Hosts of those ranks."""
    group: str = ""
    """The parallel group at fault or in which the fault shows, as people know it."""
    confidence: Literal["high", "medium", "low"]
    rule: str
    """Name of the rule that spoke."""
    sentence: str
    """For people: who, what, where, since when. One line."""
    over_evicted: tuple[int, ...] = ()
    """Those of `ranks` that are named only because no single one is certain."""
    waits: tuple[Wait, ...] = ()
    evidence: tuple[str, ...] = ()
    """Further lines, for readers who want to check: stacks of the culprit, what others wait in. At most 40."""
    onset_s: float | None = None
    """Since when (controller's monotonic clock)."""
    proven: bool = False
    """Nothing that a rank may still do ends it: no healthy job looks like this, so it may be acted on at once. All else may be a
    wait that ends by itself."""
    expires_s: float | None = None
    """When torch itself ends the first of the waits by a time limit (controller's monotonic clock); None: no rank waits."""
    inside_since_s: float | None = None
    """Since when nothing has moved in the calls that ranks wait in, though all have come (controller's monotonic clock): only the
    network may end that by itself. None: something moves, or that cannot be told."""
    inside_patience_s: float = 0.0
    """How long that network is given for it."""
    where: str = ""
    """Where the first of the ranks at fault is: `data.py:88 get`; "": not known."""
    for_person: bool = False
    """The ranks at fault wait for a person at a terminal or a debugger."""
    at_work: bool = False
    """The ranks at fault do work: they may yet come, and to end a job that does its work costs more than to wait."""
    only_told: bool = False
    """Nothing is done about it, whatever is asked for: nobody is seen to wait, and torch would not end it either."""


class SceneLook(msgspec.Struct, frozen=True, kw_only=True):
    """What came of looking at a scene: a verdict, or when to look again, or that nothing is wrong."""

    verdict: TraceVerdict | None = None
    again_s: float | None = None
    """Look again after so long; None without a verdict: the suspicion is lifted."""
    reason: str = ""
    """Why no verdict yet, as a clause: `rank 0 is writing a checkpoint (12 MB/s)`."""
    worked: tuple[tuple[int, float], ...] = ()
    """Ranks that others wait for and that were seen at work, and when last: to be given to the next look."""
