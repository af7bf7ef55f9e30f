"""A job of several nodes in virtual time: the real core decides, simulated agents and cables follow the protocol's rules.

What is simulated is what the world may do at its worst: messages are late, connections break and half of one stays open, a
cut cable delivers everything when it heals, hosts lose power, agents and the controller die between any two actions. What
must hold whatever happens is checked after every event (`World.check`).
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from simulated_agent import Agent
from simulated_controller import HOLD_S, Shell

from robust_run.health.types import Finding
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.core.step import replay
from robust_run.launcher.model.actions import Finish, OpenStore, RecordIncident, StartAttempt
from robust_run.launcher.model.events import Event, SpawnFailed, StoreLost
from robust_run.launcher.model.job import Placement
from robust_run.launcher.model.node_events import ControllerResumed, JobStarted, NodeLeft, NodeToldToLeave

PEER = Finding(kind="peer_connection", line="Connection closed by peer", exception="RuntimeError")
BUG = Finding(
    kind="exception", line="ValueError: boom", exception="ValueError", message="boom", frame="train.py:3 in f"
)


def plain(state: JobState) -> Any:
    """Return a state as plain values that can be compared."""
    return msgspec.to_builtins(state, order="deterministic")


class World:
    """Hosts, cables, one controller at most, and a clock that jumps from event to event."""

    def __init__(self, policy: CorePolicy, hosts: int, seed: int = 0, most_workers: int = 3) -> None:
        self.policy, self.most_workers = policy, most_workers
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self.journal: list[tuple[Event, float]] = []
        self.incidents: list[RecordIncident] = []
        self.agents: list[Agent] = []
        self.cut: set[tuple[str, bool]] = set()
        """Hosts, and whether they cannot be heard (True) or cannot hear."""
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
        self.all_told = False
        """The job ends because all nodes were told to leave."""
        self.finish: Finish | None = None
        """How the job ended, as it was said first."""
        self.left: set[str] = set()
        """Agents that the controller knows to be leaving."""
        self.troubled: set[int] = set()
        """Attempts of which a start or the store failed."""
        self.last_attempt = -1
        self.is_number_known = True
        """Whether attempt numbers have no gaps: not if the journal lost records."""
        self.state = JobState()
        self.shell: Shell | None = self.make_shell()
        self.shell.feed(JobStarted())
        for number in range(hosts):
            self.boot(f"host-{number}")

    # --- time

    def at(self, at_s: float, what: Callable[[], object]) -> None:
        """Do something at a time."""
        self._count += 1
        heapq.heappush(self._events, (max(at_s, self.now_s), self._count, what))

    def after(self, delay_s: float, what: Callable[[], object]) -> None:
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
        return self.rng.choice((0.0, 0.05, 0.6, 1.4)) if self.slow else self.rng.choice((0.0, 0.001, 0.02))

    # --- who is there

    def make_shell(self) -> Shell:
        """Return a controller that goes on from the state."""
        return Shell(self, self.state)

    def boot(self, host: str) -> Agent:
        """Start an agent on a host."""
        agent = Agent(self, host)
        self.agents.append(agent)
        return agent

    def living(self) -> list[Agent]:
        """Return the agents that run."""
        return [agent for agent in self.agents if agent.alive]

    def is_cut(self, host: str) -> bool:
        """Whether no connection can be made from there."""
        return (host, True) in self.cut or (host, False) in self.cut

    def heal(self, host: str) -> None:
        """Mend a cable: all that was under way arrives."""
        self.cut -= {(host, True), (host, False)}
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

    def journal_is_cut(self, kept: int) -> None:
        """The controller dies, and of its journal only the first records are left: a full disk, a deleted directory."""
        if self.state.phase == "over":
            return
        self.controller_dies()
        del self.journal[kept:]
        self.left = {event.node for event, _ in self.journal if isinstance(event, NodeLeft)}
        self.is_number_known = False
        self.state = replay(self.policy, self.journal)

    def controller_resumes(self) -> None:
        """A new one continues from the journal, and must be where the old one was."""
        if self.shell is not None:
            return
        state = replay(self.policy, self.journal)
        assert plain(state) == plain(self.state), "the journal tells another story"
        self.state = state
        self.shell = self.make_shell()
        self.shell.feed(ControllerResumed(term=state.term + 1, hold_s=HOLD_S))

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
        agent.rank_exits(rank, code, finding, agent.started)
        if code != 0:
            self.peers_notice(agent.started)

    def peers_notice(self, attempt: int) -> None:
        """Some ranks die of broken connections soon."""
        for agent in self.living():
            for rank in agent.running if agent.started == attempt else ():
                if self.rng.random() < 0.3:
                    self.after(self.rng.uniform(0.0, 1.5), partial(agent.rank_exits, rank, 1, PEER, attempt))

    def all_end_well(self) -> None:
        """Every rank that runs has done its work."""
        for agent in self.living():
            for rank in agent.running:
                self.after(self.rng.uniform(0.0, 0.5), partial(agent.rank_exits, rank, 0, None, agent.started))

    # --- what must always hold

    def check_truth(self) -> None:
        """Never workers of two attempts at one time, seen by a god."""
        attempts = [attempt for attempt, ranks in self.alive_ranks.items() if ranks]
        assert len(attempts) <= 1, f"attempts {attempts} run at one time"

    def check(self, event: Event, before: tuple[Placement, ...], actions: tuple[object, ...]) -> None:
        """What a decision of the core may be."""
        state = self.state
        if isinstance(event, NodeLeft):
            self.left.add(event.node)
        elif isinstance(event, (StoreLost, SpawnFailed)):
            self.troubled.add(event.attempt)
        elif isinstance(event, NodeToldToLeave) and state.stopped_by and not self.all_told:
            present = {member.info.id for member in state.members.values() if member.present}
            assert all(agent.told for agent in self.agents if agent.id in present), "a node is left that was not told"
            self.all_told = True
        is_held = state.hold_until_s is not None and self.now_s < state.hold_until_s  # nobody can know what runs
        is_begun = any(isinstance(action, OpenStore) for action in actions) and state.layout is not before
        is_idle = state.phase in ("new", "gathering", "over") and not is_held and not state.strays
        if is_begun or is_idle or (state.phase == "opening" and self.is_number_known):
            assert not +self.alive_ranks, f"{state.phase} while workers run: {self.alive_ranks}"
        assert not (is_begun and state.told), "an attempt begins while a node is about to leave"
        usable = sum(
            m.present and m.info.name not in state.evicted and m.info.id not in state.told
            for m in state.members.values()
        )
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
                    hosts = {state.members[placement.node].info.name for placement in before}
                    assert set(action.verdict.nodes) <= hosts, "a node is blamed that had no part in it"
                    is_behind = action.verdict.rule == "journal_behind"
                    assert not is_behind or not self.is_number_known, "the journal was whole"
                    assert action.symptom != "platform" or is_behind or action.attempt in self.troubled
                case Finish() if action != self.finish:  # a controller that resumes says it again
                    self.finish = action
                    self._check_end(action)
                case _:
                    pass

    def _check_world(self, attempt: int, before: tuple[Placement, ...]) -> None:
        state, policy = self.state, self.policy
        if self.is_number_known:
            assert attempt == self.last_attempt + 1, f"attempt {attempt} after {self.last_attempt}"
        self.last_attempt = attempt
        assert policy.fewest <= len(state.layout) <= policy.most
        ranks = [rank for p in state.layout for rank in range(p.first_rank, p.first_rank + p.nproc)]
        assert ranks == list(range(state.world_size)), "every rank exactly once"
        assert [p.group_rank for p in state.layout] == list(range(len(state.layout)))
        assert len({p.node for p in state.layout}) == len(state.layout), "a node has one place"
        for placement in state.layout:
            assert state.members[placement.node].present
            told_of = next(agent.newest for agent in self.agents if agent.id == placement.node)
            assert told_of < attempt, f"{placement.node} knows another attempt {told_of} than this {attempt}"
            assert placement.node not in self.left, "a node that leaves is used"
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
            assert self.stop_asked or self.all_told
        elif "came within" in finish.reason:
            assert state.usable < self.policy.fewest
        else:
            needed = 2 if "same exception" in finish.reason else self.policy.max_restarts + 1
            assert self.failures >= needed, f"{finish} after {self.failures} failures: {self.incidents}"
