"""Controller of a job: takes in events, lets the core decide, puts both on record, and passes the orders on.

It is the same for one node, where it lives in the agent's process, and for many, where orders travel over connections.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from robust_run.clock import Clock
from robust_run.launcher.core.membership import awaits_store
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.core.step import step
from robust_run.launcher.model.actions import (
    Action,
    Dismiss,
    EndAttempt,
    Finish,
    Inquire,
    JobEnds,
    KeepTraces,
    OpenStore,
    RecordIncident,
    Say,
    ShareBlocks,
    StandstillOver,
    StartAttempt,
    WakeAt,
)
from robust_run.launcher.model.check_events import CheckAnswer, Decided, Diagnose
from robust_run.launcher.model.code_events import StageCode
from robust_run.launcher.model.events import (
    AttemptEnded,
    AttemptStarted,
    Event,
    FirstStep,
    LimitNear,
    SignalReceived,
    StoreOpened,
    Tick,
    WarmReady,
    WarmRefused,
)
from robust_run.launcher.model.health_events import HealthSeen
from robust_run.launcher.model.job import Paces, Sights
from robust_run.launcher.model.node_events import (
    LeaseRecorded,
    NodeEvicted,
    NodeJoined,
    NodeReadmitted,
    NodeReturned,
    RestartAsked,
)
from robust_run.launcher.model.resume_events import LookForCheckpoints, MemoryPeers, MemoryStrides, ResumeChosen
from robust_run.launcher.records.incidents import IncidentBook
from robust_run.launcher.records.journal import Journal
from robust_run.tracer.nccl.types import CommRate

if TYPE_CHECKING:
    from robust_run.launcher.controller.comparing.fleet_comparison import FleetComparison
    from robust_run.launcher.controller.news import News
    from robust_run.launcher.controller.parts import ControllerParts
    from robust_run.launcher.controller.steps import StepBook
    from robust_run.launcher.controller.survey import CheckpointSurvey
    from robust_run.launcher.controller.usage_book import UsageBook
    from robust_run.launcher.model.checkpoints_seen import CheckpointsSeen
    from robust_run.launcher.model.links import Outbox, Timer
    from robust_run.launcher.model.nccl_windows import NcclWindow
    from robust_run.launcher.model.reduced_values import ReducedValues
    from robust_run.launcher.model.start_notes import Seen, Starts

#: How long the journal may take to reach the disk before the next attempt starts without waiting for it.
DURABLE_S = 2.0
#: How often that is looked at where other nodes wait for answers meanwhile.
DURABLE_LOOK_S = 0.005
#: A node that joins is left alone for so long: it may be needed at once.
ADMIT_AFTER_S = 3.0
#: What people and schedulers ask for is done at once, also by a leader that does not see its nodes.
ASKED = (SignalReceived, LimitNear, RestartAsked, NodeEvicted, NodeReadmitted, LeaseRecorded)


class Controller:
    """One job's controller. Everything happens in one thread."""

    def __init__(  # noqa: PLR0913 - the parts of a controller
        self,
        *,
        policy: CorePolicy,
        state: JobState,
        journal: Journal,
        book: IncidentBook,
        clock: Clock,
        outbox: Outbox,
        later: Callable[[float, Callable[[], None]], Timer],
        on_finish: Callable[[Finish], None],
        on_change: Callable[[Event], None] = lambda _: None,
    ) -> None:
        self.policy = policy
        self.state = state
        self.book = book
        book.job = (policy, state)
        self._journal = journal
        self._clock = clock
        self._outbox = outbox
        self._later = later
        self._on_finish = on_finish
        self._on_change = on_change
        self._parts: ControllerParts | None = None
        self._survey: CheckpointSurvey | None = None
        """What asks nodes which checkpoints they see; imported when they are first asked."""
        self.comparison: FleetComparison | None = None
        """Compares nodes with their peers; None: nobody does."""
        self.usage: UsageBook | None = None
        """Keeps how full and busy nodes were; None: nobody does."""
        self._wake: Timer | None = None
        self._pending: deque[Event] = deque()
        self.is_deposed = False
        """Another one may lead by now: nothing that is told has any consequence here."""
        self.waits = False
        """This leader does not see the nodes that its job needs: nothing is decided before it does (`out_of_sight`)."""
        self._waiting: list[Event] = []
        self._busy = False
        self._admits_soon = False
        self.admits = False
        """Whether nodes are checked before they are counted on, where no attempt needs them."""
        self._news: News | None = None
        self._relaunched = state.attempt if len(state.started) == len(state.layout) else -1

    @property
    def parts(self) -> ControllerParts:
        """What only some jobs need; imported when it is first asked for, after the first workers were started."""
        if self._parts is None:
            from robust_run.launcher.controller.parts import ControllerParts

            self._parts = ControllerParts(
                self.policy,
                self.state,
                self.book,
                self._clock,
                self._outbox,
                self._later,
                self.tell,
            )
        return self._parts

    def tell(self, event: Event) -> None:
        """Take in what happened and carry out what follows from it; events told meanwhile are taken in turn."""
        if self.is_deposed:
            return
        if self.waits and not isinstance(event, ASKED):
            self._waiting.append(event)
            return
        self._pending.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._pending:
                self._take(self._pending.popleft())
        finally:
            self._busy = False

    def go_on(self) -> None:
        """Take in what was told while nothing could be decided."""
        self.waits = False
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self.tell(event)

    def see(self, node: str, seen: Seen) -> None:
        """Take in what an agent sees of its ranks."""
        if isinstance(seen, Paces):
            self.parts.paces.take(node, seen)
            if self.comparison is not None and seen.steps:
                self.comparison.begin(seen.pace.attempt)  # the controller before may have been told the first step
                self.comparison.hear_steps(seen.pace.attempt, seen.steps)
        elif isinstance(seen, Sights):
            self.parts.collector.take(node, seen)
        elif isinstance(seen, CheckAnswer):
            self.parts.checking.take(node, seen)
        else:
            self._see_of_start(node, seen)

    def _see_of_start(self, node: str, seen: Starts | CheckpointsSeen | NcclWindow | ReducedValues) -> None:
        from robust_run.launcher.model.checkpoints_seen import CheckpointsSeen

        if isinstance(seen, CheckpointsSeen):  # the one that comes before the first worker is started
            if self._survey is not None:  # else the controller before this one asked
                self._survey.take(node, seen)
            return
        from robust_run.launcher.model.nccl_windows import NcclWindow

        if isinstance(seen, NcclWindow):
            self.parts.nccl_slowness.take(node, seen)
            return
        from robust_run.launcher.model.reduced_values import ReducedValues

        if isinstance(seen, ReducedValues):
            self.parts.reduced_values.take(node, seen)
        else:
            self.parts.starts.take(node, seen.start)

    def see_usage(self, node: str, usage: Sequence[float]) -> None:
        """Take in what a node did in the last second."""
        if self.comparison is not None:
            self.comparison.take(node, usage)
        if self.usage is not None:
            self.usage.take(node, usage)

    def nccl_rates(self) -> Sequence[CommRate]:
        """Return what NCCL completed since this controller began, by communicator."""
        return self.parts.paces.nccl_rates()

    def steps(self) -> StepBook:
        """Return what nodes said of their steps."""
        return self.parts.paces.steps

    def _take(self, event: Event) -> None:
        if (
            isinstance(event, AttemptEnded)
            and self._parts is not None
            and self._parts.collector.has_left(event.attempt)
        ):
            event = msgspec.structs.replace(event, has_sights=True)
        now_s = self._clock.monotonic_s()
        counts = self.state.health.counts
        try:
            _, actions = step(self.policy, self.state, event, now_s)
        except BaseException:
            self._journal.event(event, now_s)  # what could not be decided on must be known
            raise
        lines: Sequence[Event] = (event,)
        if self._parts is not None or isinstance(event, HealthSeen):
            lines = self.parts.on_record(event, actions, counts, now_s)
        for line in lines[:-1]:
            self._journal.event(line, now_s)
        if lines:
            self._journal.event(lines[-1], now_s, actions)
        self._note(event)
        self._on_change(event)
        for action in actions:
            self._perform(action, now_s)
        if self.state.code.records:
            self.parts.staging.after(event)
        if self._parts is not None:
            self._parts.after(event)
        if self.admits and isinstance(event, (NodeJoined, NodeReturned, StoreOpened)):
            self._admit_soon()

    def _admit_soon(self) -> None:
        if not self._admits_soon:  # thousands may join at once
            self._admits_soon = True
            self._later(ADMIT_AFTER_S, self._admit)

    def _admit(self) -> None:
        """Have standbys checked that nobody has checked."""
        self._admits_soon = False
        if self.state.is_started:
            for node in self.parts.checking.idle():
                self.parts.checking.admit(node)

    def _look_for_checkpoints(self, order: LookForCheckpoints) -> None:
        if self._survey is None:
            from robust_run.launcher.controller.survey import CheckpointSurvey

            self._survey = CheckpointSurvey(
                state=self.state,
                clock=self._clock,
                send=self._outbox.send,
                later=self._later,
                tell=self.tell,
                say=self.book.say,
                job=self.policy.job,
                failed_unix_s=self.book.failed_unix_s,
            )
        self._survey.begin(order)

    def _note(self, event: Event) -> None:
        """Have people told, and begin what begins with a first step; nothing of this decides anything."""
        if isinstance(event, ResumeChosen):
            self.book.resume_chosen(event, self._later)
        elif isinstance(event, FirstStep):
            self.book.first_step(event)
            if self.comparison is not None:
                self.comparison.begin(event.attempt)
            if self.state.has_memory and self.policy.many:
                self.parts.memory_groups.first_step(event.attempt)
        elif isinstance(event, (WarmReady, WarmRefused)) or (
            isinstance(event, (StoreOpened, AttemptStarted)) and event.attempt > 0
        ):
            if self._news is None:
                self._news = self.parts.news(self._relaunched)
            self._news.take(event)

    def _perform(self, action: Action, now_s: float) -> None:  # noqa: C901, PLR0912 - the table of actions
        match action:
            case OpenStore():
                self._open_store(action, now_s)
            case StartAttempt():
                self._start(action)
            case EndAttempt():
                self._journal.sync_soon()
                order = msgspec.structs.replace(action, only=())
                for node in action.only or tuple(self.state.unended):
                    self._outbox.send(node, order)
            case Dismiss():
                self._outbox.send(action.node, action)
            case Say():
                self._outbox.send(action.node, action) if action.node else self.book.say(action.text)
            case WakeAt():
                if self._wake is not None:
                    self._wake.cancel()
                self._wake = self._later(max(action.at_s - now_s, 0.0), lambda: self.tell(Tick()))
            case Inquire(post_mortem=True):
                self._pending.appendleft(self.parts.collector.post_mortem(action.attempt))
            case Inquire():
                self.parts.collector.begin(action)
            case RecordIncident():
                self._record(action)
            case StandstillOver():
                self.book.went_on(action)
            case JobEnds():
                for node in action.nodes:
                    self._outbox.send(node, action)
            case Diagnose():
                self.parts.checking.diagnose(action)
            case Decided():
                self.book.decided(action)
            case StageCode():
                self.parts.staging.stage(action)
            case LookForCheckpoints():
                self._look_for_checkpoints(action)
            case MemoryPeers(peers=peers):
                for peer in peers:
                    self._outbox.send(peer.node, msgspec.structs.replace(action, peers=(peer,)))
            case MemoryStrides(nodes=nodes) | ShareBlocks(nodes=nodes):
                for node in nodes:
                    self._outbox.send(node, action)
            case Finish():
                self.finish(action)

    def _start(self, order: StartAttempt) -> None:
        for placement in order.placements:
            own = msgspec.structs.replace(order, placements=(placement,))
            if order.elsewhere:
                from robust_run.launcher.core.resume.parts import of_placement

                own = msgspec.structs.replace(own, elsewhere=of_placement(order.elsewhere, placement))
            self._outbox.send(placement.node, own)

    def _record(self, action: RecordIncident) -> None:
        self.book.record(action, self._later, self.parts.collector.scene_of(action))
        if action.action == "report" and action.symptom != "health":
            self.keep_traces()

    def keep_traces(self) -> bool:
        """Have every node copy the rings of its ranks to its run directory. False if nothing runs."""
        for node in self.state.unended:
            self._outbox.send(node, KeepTraces(attempt=self.state.attempt))
        return bool(self.state.unended)

    def _open_store(self, order: OpenStore, now_s: float) -> None:
        """Begin an attempt once what led to it is on the disk. With several nodes heartbeats must be answered meanwhile."""
        if order.attempt > 0 and not self.policy.many:
            self._journal.wait_durable(DURABLE_S)
        elif order.attempt > 0:
            self._journal.sync_soon()
            self._open_when_durable(order, self._journal.written, now_s + DURABLE_S)
            return
        self._outbox.send(order.node, order)

    def _open_when_durable(self, order: OpenStore, lines: int, give_up_at_s: float) -> None:
        if not awaits_store(self.state, order.attempt):
            return  # it was given up meanwhile
        if self._journal.is_durable(lines) or self._clock.monotonic_s() >= give_up_at_s:
            self._outbox.send(order.node, order)
        else:
            self._later(DURABLE_LOOK_S, lambda: self._open_when_durable(order, lines, give_up_at_s))

    def finish(self, action: Finish) -> None:
        """Tell every node that the job is over, and whoever runs us."""
        if self.comparison is not None:
            self.comparison.end()
        if self._parts is not None:
            self._parts.finish()
        if self.usage is not None:
            self.usage.end()
        for member in list(self.state.members.values()):
            if member.present:
                self._outbox.send(member.info.id, action)
        self._on_finish(action)
