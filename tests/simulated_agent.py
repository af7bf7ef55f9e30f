"""A node of a simulated job: its agent, as the protocol's rules want it, and its workers, which do as they please."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_controller import Wire

from robust_run.health.types import Finding
from robust_run.launcher.model.actions import Dismiss, EndAttempt, Finish, JobEnds, OpenStore, StartAttempt
from robust_run.launcher.model.events import (
    AttemptEnded,
    AttemptStarted,
    NodeEvent,
    RankExited,
    SpawnFailed,
    StoreOpened,
)
from robust_run.launcher.model.job import NodeInfo, Placement, Progress, RankEvidence

if TYPE_CHECKING:
    from simulated_job import World

HEARTBEAT_S = 1.0
LEASE_S = 3.0
TOGETHER_S = 2.0
"""A node that is told to leave goes so much later."""
STAYS_S = 20.0
"""It waits so long for the end of a job that ends as a whole."""
KILLING_S = 0.4
"""A fenced agent's workers are gone this long after its lease ended, at the latest."""
IMPATIENT_S = (1.5, 2.0, 30.0)
"""An agent that has had no answer for so long gives its connection up and dials again; some never learn."""


class Agent:
    """The agent of a node and its workers, as far as the controller can tell."""

    def __init__(self, world: World, host: str) -> None:
        self.world, self.host = world, host
        self.id = f"{host}-{len(world.agents)}"
        self.info = NodeInfo(id=self.id, name=host, nproc=1 + len(world.agents) % world.most_workers)
        self.alive, self.leaving, self.killing = True, False, False
        self.told, self.stays_until_s = False, 0.0
        self.wire: Wire | None = None
        self.answered_s = 0.0
        self.impatient_s = world.rng.choice(IMPATIENT_S)
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
        if self.wire is not None and world.now_s - self.answered_s > self.impatient_s:
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
        if not self.alive or self.wire is not None or world.is_cut(self.host):
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
        elif self.told:
            wire.send(True, lambda: wire.shell.told_to_leave(wire))
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
            case JobEnds():
                self.stays_until_s = self.world.now_s + STAYS_S
                self.world.at(self.stays_until_s, self._leave_if_told)
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
            event = SpawnFailed(
                attempt=order.attempt, rank=self.placement.first_rank, message="no memory", node=self.id
            )
        self.world.after(self.world.rng.uniform(0.0, 0.5), lambda: self._while_in(order.attempt, event))

    # --- workers

    def rank_exits(self, rank: int, code: int, finding: Finding | None, attempt: int) -> None:
        """A worker of this attempt ends by itself, if it still runs."""
        if not self.alive or attempt != self.started or rank not in self.running or self.killing:
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

    def is_told(self) -> None:
        """Be told to leave: say so, and go a moment later unless the job ends."""
        if not self.alive or self.leaving or self.told:
            return
        self.told, wire = True, self.wire
        if wire is not None and wire.welcomed:
            wire.send(True, lambda: wire.shell.told_to_leave(wire))
        self.world.after(TOGETHER_S, self._leave_if_told)

    def _leave_if_told(self) -> None:
        if self.world.now_s >= self.stays_until_s:
            self.leave()

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
