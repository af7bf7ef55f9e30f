"""A process full of simulated agents: the real protocol on real sockets, and no workers. Driven by `control_plane.py`.

Reads one JSON object with a `Plan`, then commands, a JSON object a line; writes what it has seen, a JSON object a line, at most
every 20 ms. Each agent makes its own connection and handshake (`AgentHalf`), sends its own heartbeats, and answers orders at
once with reports as large as those of a real one. Its lease is watched but not acted on: one that ran out is counted.
"""

from __future__ import annotations

import asyncio
import random
import socket
import sys
import time
from typing import Any

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
from robust_run.launcher.control.sockets import raise_file_limit, tune
from robust_run.launcher.model.actions import Dismiss, EndAttempt, Finish, OpenStore, Order, StartAttempt
from robust_run.launcher.model.events import (
    AttemptEnded,
    AttemptStarted,
    FirstStep,
    NodeEvent,
    RankExited,
    SignalReceived,
    StoreOpened,
)
from robust_run.launcher.model.job import NodeInfo, Placement, Progress, RankEvidence
from robust_run.launcher.start.many.finding import ONLY_DIAL_S, RETRY_S
from robust_run.launcher.start.many.wire_trim import brief

STATUS_S = 0.02
SLOT_S = 0.01
"""Heartbeats due within this are sent together; each agent keeps the phase it had when it joined."""
SPREAD_S = 0.3
"""Within this after a failure all peers of the failed rank lose their connections."""
FIRST_STEP_S = 1.0
BIND_ADDRESS_NO_PORT = 24
"""IP_BIND_ADDRESS_NO_PORT, which the socket module does not name: ports are counted per pair of addresses."""

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


class Fleet:
    """All agents of this process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = asyncio.get_running_loop()
        self.term = 0
        self.agents = [Agent(self, number) for number in range(plan.first, plan.first + plan.agents)]
        self.seen: dict[str, Any] = {
            "joined": 0, "joins": 0, "dials": 0, "home": 0, "answers": 0, "slowest_answer_s": 0.0, "lapsed": 0,
            "started": {}, "ended": {},
        }  # fmt: skip
        self._lease_s = 3.0
        self._slots: list[dict[Agent, None]] = []
        self._turn = 0
        self._next_slot_s = 0.0
        self._dialing: set[asyncio.Task[None]] = set()
        self._told = b""
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Do as told until everybody is home or nobody reads any more."""
        reader = asyncio.StreamReader()
        await self.loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        self._tell()
        commands = asyncio.ensure_future(self._commands(reader))
        over = asyncio.ensure_future(self._over.wait())
        await asyncio.wait({commands, over}, return_when=asyncio.FIRST_COMPLETED)
        self._tell_once()

    async def _commands(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            command = msgspec.json.decode(line, type=dict[str, Any])
            match command["do"]:
                case "join":
                    self._begin_dialing()
                case "forget":
                    self.seen |= {"answers": 0, "slowest_answer_s": 0.0, "lapsed": 0}
                case "silence":
                    self._silence(int(command["attempt"]))
                case "fail":
                    self._fail(int(command["attempt"]), command["culprit"])
                case "stop":
                    self.agents[0].report(SignalReceived(signal=15))

    # --- what agents do together

    def _begin_dialing(self) -> None:
        for agent in self.agents:
            self._dial_soon(agent)

    def _dial_soon(self, agent: Agent) -> None:
        task = self.loop.create_task(self._dial(agent))
        self._dialing.add(task)
        task.add_done_callback(self._dialing.discard)

    async def _dial(self, agent: Agent) -> None:
        """Dial until the controller lets the agent in, as `start.many.link` does."""
        while True:
            self.seen["dials"] += 1
            agent.dialed_s = time.monotonic()
            wire = socket.socket()
            try:
                wire.setblocking(False)
                wire.setsockopt(socket.IPPROTO_IP, BIND_ADDRESS_NO_PORT, 1)
                wire.bind((self.plan.source, 0))
                tune(wire)
                await self.loop.sock_connect(wire, ("127.0.0.1", self.plan.port))
                agent.half = None
                await self.loop.create_connection(lambda: agent, sock=wire)
            except OSError:
                wire.close()
                await asyncio.sleep(RETRY_S * random.uniform(0.5, 1.5))
                continue
            assert agent.half is not None
            self.loop.call_later(ONLY_DIAL_S, self._check, agent, agent.half)
            return

    def _check(self, agent: Agent, half: AgentHalf) -> None:
        """Give a try up that takes too long."""
        if agent.half is half and half.welcome is None and agent.transport is not None:
            agent.transport.abort()

    def joined(self, agent: Agent) -> None:
        """Begin the agent's heartbeats."""
        assert agent.half is not None and agent.half.welcome is not None
        welcome = agent.half.welcome
        self._lease_s = welcome.lease_s
        now_s = time.monotonic()
        if not self._slots:
            self._slots = [{} for _ in range(round(welcome.heartbeat_s / SLOT_S))]
            self._next_slot_s = now_s
            self._beat()
        agent.slot = self._slots[(self._turn - 1) % len(self._slots)]
        agent.slot[agent] = None
        agent.valid_from_s = agent.dialed_s
        agent.sent.clear()
        agent.heartbeat(now_s)
        self.seen["joined"] += 1
        self.seen["joins"] += 1
        self.seen["joined_at_s"] = now_s

    def disconnected(self, agent: Agent) -> None:
        """Find the controller again, unless the agent is dead or dismissed."""
        if agent.slot is not None:
            del agent.slot[agent]
            agent.slot = None
            self.seen["joined"] -= 1
        if not agent.is_silent:
            self._dial_soon(agent)

    def dismissed(self, agent: Agent) -> None:
        """Let an agent go."""
        agent.is_silent = True
        if agent.transport is not None:
            agent.transport.close()
        self.seen["home"] += 1
        if all(each.is_silent for each in self.agents):
            self._over.set()

    def _beat(self) -> None:
        now_s = time.monotonic()
        while self._next_slot_s <= now_s:
            for agent in self._slots[self._turn % len(self._slots)]:
                agent.heartbeat(time.monotonic())
            self._turn += 1
            self._next_slot_s += SLOT_S
        self.loop.call_later(self._next_slot_s - now_s, self._beat)

    def _silence(self, attempt: int) -> None:
        """A node that is not rank 0's loses power: its connection stays open, and nothing comes of it any more."""
        agent = next(
            a for a in reversed(self.agents) if a.attempt == attempt and a.placement and a.placement.group_rank
        )
        agent.is_silent = True
        self.seen["silent_at_s"] = max(agent.sent.values(), default=agent.valid_from_s)

    def _fail(self, attempt: int, culprit: bool) -> None:
        """A rank fails; all other nodes lose their connections to it."""
        rng = random.Random(attempt)
        there = [agent for agent in self.agents if agent.attempt == attempt and not agent.is_silent]
        if culprit:
            self.seen["failed_at_s"] = time.monotonic()
            self.loop.call_later(
                SPREAD_S, there.pop().fail, attempt, BUG
            )  # it takes longest to die, as who tells why often does
        for agent in there:
            self.loop.call_later(SPREAD_S * rng.random(), agent.fail, attempt, PEER)

    # --- what is seen

    def note(self, what: str, attempt: int) -> None:
        """Count an order that arrived."""
        counts = self.seen[what].setdefault(str(attempt), [0, 0.0])
        counts[0] += 1
        counts[1] = time.monotonic()

    def answered(self, took_s: float, renewed_after_s: float) -> None:
        """Note how long an answer took, and how long a lease had to last for it."""
        seen = self.seen
        seen["answers"] += 1
        seen["slowest_answer_s"] = max(seen["slowest_answer_s"], took_s)
        seen["lapsed"] += renewed_after_s + took_s > self._lease_s

    def _tell(self) -> None:
        self._tell_once()
        self.loop.call_later(STATUS_S, self._tell)

    def _tell_once(self) -> None:
        line = msgspec.json.encode(self.seen)
        if line != self._told:
            self._told = line
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()


async def main() -> None:
    """Simulate what the first line of standard input asks for."""
    raise_file_limit()
    await Fleet(msgspec.json.decode(sys.stdin.buffer.raw.readline(), type=Plan)).run()  # type: ignore[attr-defined]


if __name__ == "__main__":
    asyncio.run(main())
