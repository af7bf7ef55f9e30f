"""One simulated agent of `simulated_agents.py`: the real protocol over its own connection, and no workers."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

import msgspec

from robust_run.health.types import Finding
from robust_run.launcher.control import frames
from robust_run.launcher.control.greeting import AgentHalf
from robust_run.launcher.control.handshake import OURS
from robust_run.launcher.control.messages import (
    EventReport,
    FromAgent,
    FromController,
    Heartbeat,
    HeartbeatReply,
    Hello,
    Orders,
)
from robust_run.launcher.model.actions import Dismiss, EndAttempt, Finish, OpenStore, Order, StartAttempt
from robust_run.launcher.model.events import (
    AttemptEnded,
    AttemptStarted,
    FirstStep,
    NodeEvent,
    RankExited,
    StoreOpened,
)
from robust_run.launcher.model.job import NodeInfo, Placement, Progress, RankEvidence
from robust_run.launcher.start.many.wire_trim import brief

if TYPE_CHECKING:
    from simulated_agents import Fleet

FIRST_STEP_S = 1.0

TRACEBACK = "\n".join(
    f'  File "/home/user/train/model_{n}.py", line {n}, in forward\n    x = layer(x)' for n in range(12)
)
PEER = Finding(
    kind="peer_connection",
    line="torch.distributed.DistBackendError: NCCL communicator was aborted on rank 7",
    exception="torch.distributed.DistBackendError",
    message="[Rank 7] NCCL watchdog thread terminated with exception: connection closed by remote peer " * 4,
    frame="/home/user/train/step.py:88 in all_reduce",
    excerpt=f"Traceback (most recent call last):\n{TRACEBACK}\nDistBackendError: connection closed",
)
BUG = Finding(
    kind="exception",
    line="ValueError: loss is nan",
    exception="ValueError",
    message="loss is nan",
    frame="/home/user/train/train.py:70 in step",
    excerpt=f"Traceback (most recent call last):\n{TRACEBACK}\nValueError: loss is nan",
)
TAIL = "step 123456 loss 1.2345 lr 3.0e-4 tokens/s 123456.7 mfu 0.52\n" * 64


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one process simulates."""

    first: int
    """Number of its first agent; names and ids follow from the numbers."""
    agents: int
    nproc: int
    nodes: int
    """--nnodes of the job."""
    port: int
    source: str
    """Address that its agents dial from."""
    token: str


def id_of(number: int) -> str:
    """Return the id of an agent."""
    return f"{number:016x}"


class Agent(asyncio.Protocol):
    """One agent."""

    __slots__ = (
        "attempt", "dialed_s", "ended", "exits", "fleet", "half", "info", "is_silent", "number", "placement", "sent",
        "slot", "transport", "valid_from_s",
    )  # fmt: skip

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.fleet = fleet
        self.info = NodeInfo(
            id=id_of(number),
            name=f"gpu-{number}",
            nproc=fleet.plan.nproc,
            address=fleet.plan.source,
            pid=number,
            version="0",
        )
        self.half: AgentHalf | None = None
        self.transport: asyncio.Transport | None = None
        self.slot: dict[Agent, None] | None = None
        self.number = 0
        self.sent: dict[int, float] = {}
        self.valid_from_s = 0.0
        self.dialed_s = 0.0
        self.attempt = self.ended = -1
        self.placement: Placement | None = None
        self.exits: dict[int, RankEvidence] = {}
        self.is_silent = False

    # --- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        plan = self.fleet.plan
        hello = Hello(
            node=self.info,
            nnodes=f"{plan.nodes}:{plan.nodes}",
            attempt=self.attempt,
            term=self.fleet.term,
            now_s=time.monotonic(),
            events=self.history(),
        )
        self.half = AgentHalf(plan.token.encode(), OURS, hello, "the controller")
        transport.write(self.half.opening())

    def data_received(self, data: bytes) -> None:
        """Take what was received, unless this node is dead."""
        half = self.half
        if self.is_silent or half is None:
            return
        if half.welcome is None:
            assert self.transport is not None
            answer = half.take(data)
            if answer:
                self.transport.write(answer)
            if half.welcome is None:
                return
            self.fleet.joined(self)
        else:
            half.reader.feed(data)
        while (payload := half.reader.next()) is not None:
            self.take(frames.decode_from_controller(payload))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Find the controller again."""
        self.transport = None
        self.fleet.disconnected(self)

    def report(self, event: NodeEvent) -> None:
        """Tell the controller."""
        if self.transport is not None and not self.is_silent:
            self.write(EventReport(events=(brief(event),)))

    def heartbeat(self, now_s: float) -> None:
        """Ask for the lease."""
        if self.transport is None or self.is_silent:
            return
        self.number += 1
        self.sent[self.number] = now_s
        self.write(Heartbeat(number=self.number, now_s=now_s))

    def write(self, message: FromAgent) -> None:
        """Send a message with its seal."""
        assert self.transport is not None and self.half is not None and self.half.sealer is not None
        frame = frames.encode(message)
        self.transport.write(frame + self.half.sealer.seal(frame))

    def take(self, message: FromController) -> None:
        """Do what the controller says."""
        if type(message) is HeartbeatReply:
            sent_s = self.sent.pop(message.number)
            self.fleet.answered(time.monotonic() - sent_s, sent_s - self.valid_from_s)
            self.valid_from_s = sent_s
        elif type(message) is Orders:
            self.fleet.term = max(self.fleet.term, message.term)
            for order in message.orders:
                self.obey(order)

    # --- orders

    def obey(self, order: Order) -> None:
        """Carry an order out; nothing takes any time here."""
        match order:
            case OpenStore():
                self.report(StoreOpened(attempt=order.attempt, node=self.info.id, address="10.0.0.1", port=29500))
            case StartAttempt() if order.attempt > self.attempt:
                self.start(order)
            case EndAttempt() if order.attempt > self.ended:
                self.ended = order.attempt
                self.fleet.note("ended", order.attempt)
                self.report(self.last_words())
            case Finish() | Dismiss():
                self.fleet.dismissed(self)
            case _:
                pass

    def start(self, order: StartAttempt) -> None:
        """Start the workers of an attempt."""
        self.attempt = order.attempt
        self.placement = order.placements[0]
        self.exits = {}
        self.fleet.note("started", order.attempt)
        self.report(self.started())
        self.fleet.loop.call_later(FIRST_STEP_S * random.random(), self.step, order.attempt)

    def started(self) -> AttemptStarted:
        """Return the report that all workers run."""
        nproc = self.info.nproc
        how = ("promote" if self.attempt else "spawn",) * nproc
        return AttemptStarted(
            attempt=self.attempt, node=self.info.id, pids=tuple(range(4000, 4000 + nproc)), port=29500, how=how
        )  # fmt: skip

    def step(self, attempt: int) -> None:
        """Make the first step of an attempt, if it still runs."""
        if attempt == self.attempt > self.ended:
            self.report(FirstStep(attempt=attempt, node=self.info.id, at_s=time.monotonic()))

    def fail(self, attempt: int, finding: Finding) -> None:
        """All workers of an attempt fail, each reported for itself."""
        if self.placement is None or not attempt == self.attempt > self.ended:
            return
        for rank in range(self.placement.first_rank, self.placement.first_rank + self.placement.nproc):
            self.exits[rank] = self.evidence(rank, 1, finding)
            self.report(RankExited(attempt=self.attempt, rank=rank, exit_code=1, finding=finding))

    def evidence(self, rank: int, exit_code: int, finding: Finding | None) -> RankEvidence:
        """Return what is known of a rank that ends now."""
        now_s = time.monotonic()
        return RankEvidence(
            rank=rank,
            pid=4000 + rank,
            exit_code=exit_code,
            exited_at_s=now_s,
            signalled_at_s=None if finding is not None else now_s - 0.001,
            spoke_at_s=now_s - 0.01 if finding is not None else None,
            finding=finding,
            steps=1000,
            stderr_path=f"attempt_{self.attempt}/{rank}/stderr.log",
            stderr_tail=TAIL,
        )

    def last_words(self) -> AttemptEnded:
        """Return the report that nothing of the attempt is left."""
        place = self.placement
        ranks = range(place.first_rank, place.first_rank + place.nproc) if place is not None else range(0)
        evidence = tuple(self.exits.get(rank) or self.evidence(rank, -15, None) for rank in ranks)
        return AttemptEnded(
            attempt=self.ended,
            node=self.info.id,
            started_at_s=time.monotonic() - 1.0,
            ranks=evidence,
            progress=Progress(lived_s=1.0, steps=1000),
        )

    def history(self) -> tuple[NodeEvent, ...]:
        """Return what is told to a controller that may have missed it."""
        if self.attempt < 0:
            return ()
        return (self.started(), brief(self.last_words())) if self.ended == self.attempt else (self.started(),)
