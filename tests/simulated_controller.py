"""The controller of a simulated job: the real core, and around it connections, leases and a journal."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from robust_run.launcher.core.state import JobState
from robust_run.launcher.core.step import step
from robust_run.launcher.model.actions import Dismiss, EndAttempt, Finish, JobEnds, OpenStore, StartAttempt, WakeAt
from robust_run.launcher.model.events import Event, NodeEvent, Tick
from robust_run.launcher.model.node_events import NodeJoined, NodeLeft, NodeLost, NodeReturned, NodeToldToLeave

if TYPE_CHECKING:
    from simulated_agent import Agent
    from simulated_job import World

HOLD_S = 4.0
LOST_AFTER_S = 3.5
"""The lease, and half a second for the agent to end its workers."""


class Wire:
    """One connection. Each direction delivers in order; nothing passes a cut cable, and all of it later, when it is mended."""

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
        while queue and queue[0][0] <= self.world.now_s and (self.agent.host, up) not in self.world.cut:
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


class Shell:
    """The controller around the core: connections, leases, the journal."""

    def __init__(self, world: World, state: JobState) -> None:
        self.world, self.state, self.alive = world, state, True
        self.wires: dict[str, Wire] = {}
        self.heard_s: dict[str, float] = {}
        for node, member in state.members.items():
            if member.gone != "lost" or node in state.strays:
                self._hears(node)

    def feed(self, event: Event) -> None:
        """Put an event on record, decide, carry out, as far as it comes."""
        world = self.world
        before = self.state.layout
        world.journal.append((event, world.now_s))
        _, actions = step(world.policy, self.state, event, world.now_s)
        world.check(event, before, actions)
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
            case JobEnds():
                for node in action.nodes:
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
        self.feed(
            NodeReturned(node=node, attempt=wire.agent.newest)
            if known
            else NodeJoined(node=wire.agent.info, attempt=wire.agent.newest)
        )
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
        if member.present or node in self.state.unended or node in self.state.strays:
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

    def told_to_leave(self, wire: Wire) -> None:
        """An agent is about to go."""
        if self._is_from(wire):
            self.feed(NodeToldToLeave(node=wire.agent.id, signal=15))

    def _is_from(self, wire: Wire) -> bool:
        if not self.alive or self.wires.get(wire.agent.id) is not wire:
            return False
        self._hears(wire.agent.id)
        return True

    def hung_up(self, wire: Wire) -> None:
        """An agent's end is closed: it may come back; if it does not, silence will tell."""
        if self.wires.get(wire.agent.id) is wire:
            del self.wires[wire.agent.id]
