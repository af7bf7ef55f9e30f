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
from fleet_agent import BUG, PEER, Agent, Plan

from robust_run.launcher.control.greeting import AgentHalf
from robust_run.launcher.control.sockets import raise_file_limit, tune
from robust_run.launcher.model.events import (
    SignalReceived,
)
from robust_run.launcher.start.many.finding import ONLY_DIAL_S, RETRY_S

STATUS_S = 0.02
SLOT_S = 0.01
"""Heartbeats due within this are sent together; each agent keeps the phase it had when it joined."""
SPREAD_S = 0.3
"""Within this after a failure all peers of the failed rank lose their connections."""
BIND_ADDRESS_NO_PORT = 24
"""IP_BIND_ADDRESS_NO_PORT, which the socket module does not name: ports are counted per pair of addresses."""


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
