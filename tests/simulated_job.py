"""A job of several nodes in virtual time: the real core decides, simulated agents and cables follow the protocol's rules.

What is simulated is what the world may do at its worst: messages are late, connections break and half of one stays open, a
cut cable delivers everything when it heals, hosts lose power, agents and the controller die between any two actions. What
must hold whatever happens is checked after every event (`World.check`).
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import msgspec

from robust_run.health.types import Finding
from robust_run.launcher import core
from robust_run.launcher.events import (
    AttemptEnded,
    AttemptStarted,
    ControllerResumed,
    Dismiss,
    EndAttempt,
    Event,
    Finish,
    JobStarted,
    NodeEvent,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeReturned,
    OpenStore,
    RankExited,
    RecordIncident,
    SpawnFailed,
    StartAttempt,
    StoreLost,
    StoreOpened,
    Tick,
    WakeAt,
)
from robust_run.launcher.types import NodeInfo, Placement, Progress, RankEvidence

HEARTBEAT_S = 1.0
LEASE_S = 3.0
LOST_AFTER_S = LEASE_S + 0.5
KILLING_S = 0.4
"""A fenced agent's workers are gone this long after its lease ended, at the latest."""
IMPATIENT_S = 2.0
"""An agent that has had no answer for so long gives its connection up and dials again."""

PEER = Finding(kind="peer_connection", line="Connection closed by peer", exception="RuntimeError")
BUG = Finding(kind="exception", line="ValueError: boom", exception="ValueError", message="boom", frame="train.py:3 in f")


def plain(state: core.JobState) -> Any:
    """Return a state as plain values that can be compared."""
    return msgspec.to_builtins(state, order="deterministic")


class Wire:
    """One connection. Each direction delivers in order; nothing arrives while the host's cable is cut, all of it later."""

    def __init__(self, world: World, agent: Agent, shell: Shell) -> None:
        self.world, self.agent, self.shell = world, agent, shell
        self.agent_open = self.shell_open = True
        self.welcomed = False
        self._queues: dict[bool, deque[tuple[float, Callable[[], None]]]] = {True: deque(), False: deque()}
        self._last = {True: 0.0, False: 0.0}

    def send(self, up: bool, deliver: Callable[[], None]) -> None:
        """Deliver at the controller (`up`) or at the agent."""
        at_s = max(self._last[up], self.world.now_s + self.world.latency_s())
        self._last[up] = at_s
        self._queues[up].append((at_s, deliver))
        self.world.at(at_s, lambda: self.pump(up))

    def pump(self, up: bool) -> None:
        """Deliver what has arrived by now."""
        queue = self._queues[up]
        while queue and queue[0][0] <= self.world.now_s and self.agent.host not in self.world.cut:
            _, deliver = queue.popleft()
            if (self.shell_open and self.shell.alive) if up else (self.agent_open and self.agent.alive):
                deliver()

    def close(self, by_agent: bool) -> None:
        """One side is done with it; the other learns it when the news arrives."""
        if by_agent and self.agent_open:
            self.agent_open = False
            self.send(True, lambda: self.shell.hung_up(self))
        elif not by_agent and self.shell_open:
            self.shell_open = False
            self.send(False, self.agent.hung_up)


class Agent:
    """The agent of a node and its workers, as far as the controller can tell."""

    def __init__(self, world: World, host: str) -> None:
        self.world, self.host = world, host
        self.id = f"{host}-{len(world.agents)}"
        self.info = NodeInfo(id=self.id, name=host, nproc=1 + len(world.agents) % world.most_workers)
        self.alive, self.leaving, self.killing = True, False, False
        self.wire: Wire | None = None
        self.answered_s = 0.0
        self.lease_until_s = -1.0
        self.newest = -1
        """The newest attempt it had to do with."""
        self.started = -1
        self.ended: dict[int, AttemptEnded] = {}
        self.events: list[NodeEvent] = []
        """All of the newest attempt."""
        self.running: set[int] = set()
        self.placement: Placement | None = None
        self.exits: dict[int, RankEvidence] = {}
        self.world.at(world.now_s, self.beat)

    # --- the connection

    def beat(self) -> None:
        """Every second: send a heartbeat, or dial."""
        if not self.alive:
            return
        world = self.world
        world.after(HEARTBEAT_S, self.beat)
        if self.wire is not None and world.now_s - self.answered_s > IMPATIENT_S:
            self.wire.close(by_agent=True)
            self.wire = None
        if self.wire is None:
            self.dial()
        elif self.wire.welcomed:
            wire, sent_s = self.wire, world.now_s
            wire.send(True, lambda: wire.shell.heartbeat(wire, sent_s))

    def dial(self) -> None:
        """Connect, unless the cable is cut or nobody listens: the latter proves that no controller runs."""
        world = self.world
        if not self.alive or self.wire is not None or self.host in world.cut:
            return
        if world.shell is None:
            self.renew(world.now_s)
            world.after(0.3, self.dial)
            return
        self.answered_s, sent_s = world.now_s, world.now_s
        wire = self.wire = Wire(world, self, world.shell)
        told = tuple(self.events)
        wire.send(True, lambda: wire.shell.hello(wire, sent_s, told))

    def hung_up(self) -> None:
        """The controller's end is closed."""
        self.wire = None
        self.world.after(self.world.rng.uniform(0.0, 0.3), self.dial)

    def welcome(self, wire: Wire, sent_s: float) -> None:
        """The controller let it in: say again all of the newest attempt."""
        wire.welcomed = True
        self.renew(sent_s)
        if self.leaving:
            wire.send(True, lambda: wire.shell.leaving(wire))
        for event in self.events:
            self._pass_on(event)

    def renew(self, sent_s: float) -> None:
        """The lease holds from the moment the question was sent, not from its answer."""
        self.answered_s = self.world.now_s
        if sent_s + LEASE_S > self.lease_until_s:
            self.lease_until_s = sent_s + LEASE_S
            self.world.at(self.lease_until_s, self.fence)

    @property
    def has_lease(self) -> bool:
        """Whether it may run workers now."""
        return self.world.now_s < self.lease_until_s

    def fence(self) -> None:
        """The lease is over: end the workers, and let go of a store that was opened for them."""
        if not self.alive or self.has_lease or self.newest in self.ended or self.newest < 0:
            return
        self.kill(self.world.rng.uniform(0.0, KILLING_S), fenced_after_s=LEASE_S)

    def report(self, event: NodeEvent) -> None:
        """Keep an event of the newest attempt and pass it on."""
        self.events.append(event)
        self._pass_on(event)

    def _pass_on(self, event: NodeEvent) -> None:
        wire = self.wire
        if wire is not None and wire.welcomed:
            wire.send(True, lambda: wire.shell.report(wire, event))

    # --- orders

    def obey(self, order: object) -> None:
        """Carry out an order, however late it comes and however often."""
        match order:
            case OpenStore(attempt=attempt) if self._may_begin(attempt, self.newest):
                self._begin(attempt)
                opened = StoreOpened(attempt=attempt, node=self.id, address=self.host, port=1)
                self.world.after(self.world.latency_s(), lambda: self._while_in(attempt, opened))
            case StartAttempt(attempt=attempt) if self._may_begin(attempt, self.started):
                self.start(order)
            case EndAttempt(attempt=attempt) if attempt in self.ended:
                self._pass_on(self.ended[attempt])
            case EndAttempt(attempt=attempt) if attempt > self.started:
                self._never(attempt)
            case EndAttempt(attempt=attempt) if attempt == self.started:
                self.kill(self.world.rng.uniform(0.0, order.grace_s))
            case Finish() | Dismiss():
                self.power_off()
            case _:
                pass

    def _may_begin(self, attempt: int, newest: int) -> bool:
        if attempt <= newest or attempt in self.ended:
            return False
        if not self.has_lease or self.leaving:
            self._never(attempt, None if self.leaving else LEASE_S)
            return False
        return True

    def _begin(self, attempt: int) -> None:
        if attempt > self.newest:
            self.newest, self.events = attempt, []

    def _never(self, attempt: int, fenced_after_s: float | None = None) -> None:
        """It has not started this one and never will."""
        self._begin(attempt)
        self._is_over(attempt, (), fenced_after_s)

    def _while_in(self, attempt: int, event: NodeEvent) -> None:
        if self.alive and self.newest == attempt and attempt not in self.ended:
            self.report(event)

    def start(self, order: StartAttempt) -> None:
        """Start the workers of an attempt."""
        assert not self.running, f"{self.id} starts attempt {order.attempt} beside another"
        self._begin(order.attempt)
        self.started, self.killing = order.attempt, False
        (self.placement,) = (each for each in order.placements if each.node == self.id)
        self.exits = {}
        self.running = set(range(self.placement.first_rank, self.placement.first_rank + self.placement.nproc))
        self.world.alive_ranks[order.attempt] += len(self.running)
        event: NodeEvent = AttemptStarted(attempt=order.attempt, node=self.id, pids=(1,) * len(self.running), port=1)
        if self.host in self.world.spawn_fails:
            self.world.spawn_fails.discard(self.host)
            self.world.failures += 1
            event = SpawnFailed(attempt=order.attempt, rank=self.placement.first_rank, message="no memory", node=self.id)
        self.world.after(self.world.rng.uniform(0.0, 0.5), lambda: self._while_in(order.attempt, event))

    # --- workers

    def rank_exits(self, rank: int, code: int, finding: Finding | None = None) -> None:
        """A worker ends by itself."""
        if rank not in self.running or self.killing:
            return
        self._gone(rank, code, finding, None)
        self.report(RankExited(attempt=self.started, rank=rank, exit_code=code, finding=finding))

    def _gone(self, rank: int, code: int, finding: Finding | None, signalled_at_s: float | None) -> None:
        self.running.discard(rank)
        self.world.alive_ranks[self.started] -= 1
        self.world.exit_codes[self.started, rank] = code
        self.exits[rank] = RankEvidence(
            rank=rank,
            pid=1,
            exit_code=code,
            exited_at_s=self.world.now_s,
            signalled_at_s=signalled_at_s,
            finding=finding,
        )

    def kill(self, within_s: float, fenced_after_s: float | None = None) -> None:
        """End the workers; some take their time, some end well when told to."""
        attempt, told_at_s = self.newest, self.world.now_s
        self.killing = True

        def dead() -> None:
            if not self.alive or attempt in self.ended or attempt != self.newest:
                return
            for rank in tuple(self.running):
                self._gone(rank, self.world.rng.choice((-15, -9, 0)), None, told_at_s)
            self._is_over(attempt, tuple(self.exits.values()) if self.started == attempt else (), fenced_after_s)

        self.world.after(within_s + 0.001, dead)

    def _is_over(self, attempt: int, ranks: tuple[RankEvidence, ...], fenced_after_s: float | None) -> None:
        progress = Progress(lived_s=1.0)
        over = AttemptEnded(
            attempt=attempt,
            node=self.id,
            started_at_s=0.0,
            ranks=ranks,
            progress=progress,
            fenced_after_s=fenced_after_s,
        )
        self.ended[attempt] = over
        self.report(over)
        if self.leaving:
            self.world.after(1.0, self.power_off)

    # --- its end

    def leave(self) -> None:
        """Go in good order: say so, end the workers, say that, be gone."""
        if not self.alive or self.leaving:
            return
        self.leaving, wire = True, self.wire
        if wire is not None and wire.welcomed:
            wire.send(True, lambda: wire.shell.leaving(wire))
        if self.newest >= 0 and self.newest not in self.ended:
            self.kill(self.world.rng.uniform(0.0, 3.0))
        else:
            self.world.after(1.0, self.power_off)

    def power_off(self, says_so: bool = False) -> None:
        """It and its workers are gone in an instant; only if the host lives on does its kernel close the connection."""
        if not self.alive:
            return
        if says_so and self.wire is not None:
            self.wire.close(by_agent=True)
        self.alive, self.wire = False, None
        if self.running:
            self.world.alive_ranks[self.started] -= len(self.running)
            self.running = set()


class Shell:
    """The controller around the core: connections, leases, the journal."""

    def __init__(self, world: World, state: core.JobState) -> None:
        self.world, self.state, self.alive = world, state, True
        self.wires: dict[str, Wire] = {}
        self.heard_s: dict[str, float] = {}
        for node, member in state.members.items():
            if member.gone != "lost":
                self._hears(node)

    def feed(self, event: Event) -> None:
        """Put an event on record, decide, carry out, as far as it comes."""
        world = self.world
        before = self.state.layout
        world.journal.append((event, world.now_s))
        _, actions = core.step(world.policy, self.state, event, world.now_s)
        world.check(before, actions)
        for action in actions:
            if world.dies_in is not None:
                world.dies_in -= 1
                if world.dies_in < 0:
                    world.controller_dies()
                    return
            self._perform(action)

    def _perform(self, action: object) -> None:
        match action:
            case OpenStore() | Dismiss():
                self._order(action.node, action)
            case StartAttempt():
                for placement in action.placements:
                    self._order(placement.node, msgspec.structs.replace(action, placements=(placement,)))
            case EndAttempt():
                for node in action.only or tuple(self.state.unended):
                    self._order(node, action)
            case Finish():
                for node in tuple(self.wires):
                    self._order(node, action)
            case WakeAt(at_s=at_s):
                self.world.at(at_s, lambda: self.feed(Tick()) if self.alive else None)
            case _:
                pass

    def _order(self, node: str, order: object) -> None:
        wire = self.wires.get(node)
        if wire is not None:
            wire.send(False, lambda: wire.agent.obey(order))

    def hello(self, wire: Wire, sent_s: float, events: tuple[NodeEvent, ...]) -> None:
        """An agent is there, for the first time or again."""
        node = wire.agent.id
        old = self.wires.get(node)
        if old is not None:
            old.close(by_agent=False)
        self.wires[node] = wire
        wire.send(False, lambda: wire.agent.welcome(wire, sent_s))
        known = node in self.state.members
        self.feed(NodeReturned(node=node, attempt=wire.agent.newest) if known else NodeJoined(node=wire.agent.info))
        self._hears(node)
        for event in events:
            self.report(wire, event)

    def _hears(self, node: str) -> None:
        watched = node in self.heard_s
        self.heard_s[node] = self.world.now_s
        if not watched:
            self.world.after(LOST_AFTER_S, lambda: self._look(node))

    def _look(self, node: str) -> None:
        """Whether a node has been silent for too long."""
        member = self.state.members.get(node)
        if not self.alive or member is None:
            return
        silent_s = self.world.now_s - self.heard_s[node]
        if silent_s < LOST_AFTER_S - 1e-9:
            self.world.at(self.heard_s[node] + LOST_AFTER_S, lambda: self._look(node))
            return
        del self.heard_s[node]
        wire = self.wires.pop(node, None)
        if wire is not None:
            wire.close(by_agent=False)
        if member.present or node in self.state.unended:
            self.feed(NodeLost(node=node, silent_s=silent_s))

    def heartbeat(self, wire: Wire, sent_s: float) -> None:
        """Answer a sign of life."""
        if self._is_from(wire):
            wire.send(False, lambda: wire.agent.renew(sent_s))

    def report(self, wire: Wire, event: NodeEvent) -> None:
        """Take in what an agent reports."""
        if self._is_from(wire):
            self.feed(event)

    def leaving(self, wire: Wire) -> None:
        """An agent goes in good order."""
        if self._is_from(wire):
            self.feed(NodeLeft(node=wire.agent.id, reason="drained"))

    def _is_from(self, wire: Wire) -> bool:
        if not self.alive or self.wires.get(wire.agent.id) is not wire:
            return False
        self._hears(wire.agent.id)
        return True

    def hung_up(self, wire: Wire) -> None:
        """An agent's end is closed: it may come back; if it does not, silence will tell."""
        if self.wires.get(wire.agent.id) is wire:
            del self.wires[wire.agent.id]


class World:
    """Hosts, cables, one controller at most, and a clock that jumps from event to event."""

    def __init__(self, policy: core.Policy, hosts: int, seed: int = 0, most_workers: int = 3) -> None:
        self.policy, self.most_workers = policy, most_workers
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.journal: list[tuple[Event, float]] = []
        self.incidents: list[RecordIncident] = []
        self.agents: list[Agent] = []
        self.cut: set[str] = set()
        self.slow = False
        self.spawn_fails: set[str] = set()
        self.dies_in: int | None = None
        """How many more actions the controller carries out before it dies."""
        self.alive_ranks: Counter[int] = Counter()
        """By attempt: workers that truly run, wherever they are."""
        self.exit_codes: dict[tuple[int, int], int] = {}
        self.failures = 0
        """Ranks that failed by themselves, stores and starts that failed: what counts towards --max-restarts."""
        self.stop_asked = False
        self.state = core.JobState()
        self.shell: Shell | None = Shell(self, self.state)
        self.shell.feed(JobStarted())
        for number in range(hosts):
            self.boot(f"host-{number}")

    # --- time

    def at(self, at_s: float, what: Callable[[], None]) -> None:
        """Do something at a time."""
        self._count += 1
        heapq.heappush(self._events, (max(at_s, self.now_s), self._count, what))

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        """Do something in so many seconds."""
        self.at(self.now_s + delay_s, what)

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass; return whether `until` came true."""
        end_s = self.now_s + seconds
        while not until():
            if not self._events or self._events[0][0] > end_s:
                self.now_s = end_s
                return until()
            self.now_s, _, what = heapq.heappop(self._events)
            what()
            self.check_truth()
        return True

    def latency_s(self) -> float:
        """Return how long a message takes now."""
        return self.rng.choice((0.0, 0.001, 0.05, 1.2)) if self.slow else self.rng.choice((0.0, 0.001, 0.02))

    # --- who is there

    def boot(self, host: str) -> Agent:
        """Start an agent on a host."""
        agent = Agent(self, host)
        self.agents.append(agent)
        return agent

    def living(self) -> list[Agent]:
        """Return the agents that run."""
        return [agent for agent in self.agents if agent.alive]

    def heal(self, host: str) -> None:
        """Mend a cable: all that was under way arrives."""
        self.cut.discard(host)
        for agent in self.agents:
            if agent.host == host and agent.wire is not None:
                agent.wire.pump(True)
                if agent.wire is not None:
                    agent.wire.pump(False)

    def controller_dies(self) -> None:
        """The controller's process is gone; its kernel closes the connections."""
        shell, self.shell, self.dies_in = self.shell, None, None
        if shell is None:
            return
        shell.alive = False
        for wire in shell.wires.values():
            wire.close(by_agent=False)

    def controller_resumes(self) -> None:
        """A new one continues from the journal, and must be where the old one was."""
        if self.shell is not None:
            return
        state = core.replay(self.policy, self.journal)
        assert plain(state) == plain(self.state), "the journal tells another story"
        self.state = state
        self.shell = Shell(self, state)
        self.shell.feed(ControllerResumed(term=state.term + 1))

    def tell(self, event: Event) -> None:
        """Tell the controller something that comes from people."""
        if self.shell is not None:
            self.shell.feed(event)

    def store_dies(self) -> None:
        """The store of the attempt that runs is gone."""
        for agent in self.living():
            if agent.running and agent.placement is not None and agent.placement.group_rank == 0 and not agent.killing:
                self.failures += 1
                agent.report(StoreLost(attempt=agent.started, detail="the store's process died", node=agent.id))

    def rank_exits(self, which: int, code: int, finding: Finding | None = None) -> None:
        """One of all ranks that run ends by itself; some of its peers notice."""
        ranks = [(agent, rank) for agent in self.living() for rank in sorted(agent.running) if not agent.killing]
        if not ranks:
            return
        agent, rank = ranks[which % len(ranks)]
        self.failures += code != 0
        agent.rank_exits(rank, code, finding)
        if code != 0:
            self.peers_notice(agent.started)

    def peers_notice(self, attempt: int) -> None:
        """Some ranks die of broken connections soon."""
        for agent in self.living():
            for rank in tuple(agent.running) if agent.started == attempt else ():
                if self.rng.random() < 0.3:
                    self.after(self.rng.uniform(0.0, 1.5), lambda a=agent, r=rank: self._dies_of_peer(a, r, attempt))  # type: ignore[misc]

    def _dies_of_peer(self, agent: Agent, rank: int, attempt: int) -> None:
        if agent.alive and agent.started == attempt:
            agent.rank_exits(rank, 1, PEER)

    def all_end_well(self) -> None:
        """Every rank that runs has done its work."""
        for agent in self.living():
            for rank in tuple(agent.running):
                self.after(self.rng.uniform(0.0, 0.5), lambda a=agent, r=rank, n=agent.started: self._ends_well(a, r, n))  # type: ignore[misc]

    def _ends_well(self, agent: Agent, rank: int, attempt: int) -> None:
        if agent.alive and agent.started == attempt:
            agent.rank_exits(rank, 0)

    # --- what must always hold

    def check_truth(self) -> None:
        """Never workers of two attempts at one time, seen by a god."""
        attempts = [attempt for attempt, ranks in self.alive_ranks.items() if ranks]
        assert len(attempts) <= 1, f"attempts {attempts} run at one time"

    def check(self, before: tuple[Placement, ...], actions: tuple[object, ...]) -> None:
        """What a decision of the core may be."""
        state = self.state
        if state.phase in ("new", "gathering", "opening", "over"):
            assert not +self.alive_ranks, f"{state.phase} while workers run: {self.alive_ranks}"
        usable = sum(m.present and m.info.name not in state.evicted for m in state.members.values())
        assert state.usable == usable, "the count of usable nodes is wrong"
        for action in actions:
            match action:
                case OpenStore(attempt=attempt) if state.layout is not before:
                    self._check_world(attempt, before)
                case StartAttempt():
                    assert (action.attempt, action.world_size, action.nodes) == (
                        state.attempt,
                        sum(placement.nproc for placement in state.layout),
                        len(state.layout),
                    )
                case RecordIncident():
                    self.incidents.append(action)
                case Finish():
                    self._check_end(action)
                case _:
                    pass

    def _check_world(self, attempt: int, before: tuple[Placement, ...]) -> None:
        state, policy = self.state, self.policy
        last = getattr(self, "last_attempt", -1)
        assert attempt == last + 1, f"attempt {attempt} after {last}"
        self.last_attempt = attempt
        assert policy.fewest <= len(state.layout) <= policy.most
        ranks = [rank for p in state.layout for rank in range(p.first_rank, p.first_rank + p.nproc)]
        assert ranks == list(range(state.world_size)), "every rank exactly once"
        assert [p.group_rank for p in state.layout] == list(range(len(state.layout)))
        assert len({p.node for p in state.layout}) == len(state.layout), "a node has one place"
        for placement in state.layout:
            assert state.members[placement.node].present
            assert state.members[placement.node].info.name not in state.evicted, "an evicted node is used"
        if len(before) == len(state.layout):
            places = {p.node: p.group_rank for p in before}
            for placement in state.layout:
                assert places.get(placement.node, placement.group_rank) == placement.group_rank, "a survivor moved"

    def _check_end(self, finish: Finish) -> None:
        state = self.state
        if finish.outcome == "done":
            codes = [self.exit_codes.get((state.attempt, rank)) for rank in range(state.world_size)]
            assert all(code == 0 for code in codes), f"done, with {codes}"
        elif finish.outcome == "stopped":
            assert self.stop_asked
        elif "came within" in finish.reason:
            assert state.usable < self.policy.fewest
        else:
            needed = 2 if "same exception" in finish.reason else self.policy.max_restarts + 1
            assert self.failures >= needed, f"{finish} after {self.failures} failures: {self.incidents}"
