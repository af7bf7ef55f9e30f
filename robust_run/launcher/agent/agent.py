"""Agent of a node: carries out the controller's orders and reports what happens.

The first workers of a one-node job are started before the event loop exists, because importing asyncio takes longer than
starting them. What comes with the loop is in `agent.loop`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from robust_run.errors import PlatformError
from robust_run.launcher.agent.attempt import Attempt
from robust_run.launcher.agent.workers.environment import place_of
from robust_run.launcher.model.actions import (
    Collect,
    Dismiss,
    EndAttempt,
    Finish,
    KeepTraces,
    OpenStore,
    Order,
    Say,
    ShareBlocks,
    StartAttempt,
)
from robust_run.launcher.model.check_events import EndChecks, OpenPlace, RunChecks, TellFacts
from robust_run.launcher.model.code_events import StageCode
from robust_run.launcher.model.events import (
    AttemptEnded,
    HangSuspected,
    NodeEvent,
    SpawnFailed,
    StandbyWaits,
    StoreOpened,
    WaitOver,
    WarmReady,
    WarmRefused,
)
from robust_run.launcher.model.job import Progress, Sights
from robust_run.launcher.model.resume_events import (
    CheckpointSaved,
    LookForCheckpoints,
    MemoryNeeds,
    MemoryPeers,
    MemoryReady,
    MemoryStrides,
)

if TYPE_CHECKING:
    import asyncio

    from robust_run.launcher.agent.memory.memory import AgentMemory
    from robust_run.launcher.agent.node import Node
    from robust_run.launcher.agent.parts import AgentParts
    from robust_run.launcher.agent.serving import Serving
    from robust_run.launcher.model.links import ControllerLink
    from robust_run.launcher.model.start_notes import Seen
    from robust_run.launcher.records.code.types import TreeParts

#: How often an attempt that waits for what is made anew (its image, the mount of its checkpoints) looks for it.
PLACE_LOOK_S = 0.1


class Agent:
    """One node of a job, from its first worker to its exit code."""

    def __init__(self, node: Node, node_id: str) -> None:
        self.exit_code: int | None = None
        """Set when this node is no longer needed."""
        self.is_job_over = False
        """Nor is any other."""
        self.stands_in: tuple[int, ...] = ()
        """Ranks of lost nodes whose parts this node writes to storage at the end of the job."""
        self.newest_attempt = -1
        """The newest attempt it was told anything of."""
        self.history: list[NodeEvent] = []
        """What was reported of that attempt: for a controller that was away."""
        self.node_id = node_id
        self._is_leaving = False
        self._node = node
        self._link: ControllerLink | None = None
        self.attempt: Attempt | None = None
        """The newest that was started here."""
        self._has_ended = True
        self._loop: Serving | None = None
        """What came with the event loop; None: there is none yet."""
        self._pending_end: EndAttempt | None = None
        self._pending_start: StartAttempt | None = None
        """What is to be started once an earlier attempt has ended here."""
        self._parts: AgentParts | None = None

    def serve(self, link: ControllerLink) -> None:
        """Report to this one from now on."""
        self._link = link

    @property
    def is_running(self) -> bool:
        """Whether workers run here or are about to."""
        return not self._has_ended or self._pending_start is not None

    # --- reports ---

    def report(self, event: NodeEvent) -> None:
        """Take note of what happened here and pass it on."""
        match event:
            case AttemptEnded():
                if self._loop is not None and event.attempt == self._attempt_number:
                    self._loop.attempt_is_ending()
                self._has_ended = self._has_ended or event.attempt == self._attempt_number
                if self._loop is not None and self._has_ended:
                    self._loop.attempt_ended()
                self._node.starter.learn(event)
                event = self._with_save(event)
            case CheckpointSaved() | MemoryReady() | MemoryNeeds():
                self.history = [each for each in self.history if type(each) is not type(event)]
            case WaitOver():
                self.history = [each for each in self.history if not isinstance(each, (HangSuspected, WaitOver))]
            case WarmReady() | WarmRefused() | StandbyWaits():
                if isinstance(event, WarmReady) and self.newest_attempt <= 0:
                    self._node.restock(0, 0.0)
                event = msgspec.structs.replace(event, node=self.node_id)
            case _:
                pass
        if getattr(event, "attempt", None) == self.newest_attempt:
            self.history.append(event)
        assert self._link is not None
        self._link.report(event)
        self._start_pending()

    def _with_save(self, event: AttemptEnded) -> AttemptEnded:
        """Return the end of an attempt with what its ranks have saved, where that matters."""
        if self._parts is None or self.attempt is None or event.attempt != self.attempt.number:
            return event
        saved = self._parts.last_save(self.attempt)
        return event if saved is None else msgspec.structs.replace(event, saved=saved)

    def has_stepped(self) -> None:
        """Ranks here have loaded what they start from."""
        if self._parts is not None:
            self._parts.stop_ahead()

    def look_for_saves(self) -> None:
        """Report a checkpoint that ranks have saved."""
        if self._parts is None or self.attempt is None:
            return
        saved = self._parts.new_save(self.attempt)
        if saved is not None:
            self.report(CheckpointSaved(attempt=self.attempt.number, node=self.node_id, saved=saved))

    def _start_pending(self) -> None:
        """Start what waited for something else to end or to come."""
        if self._pending_start is not None and self._has_ended:
            order, self._pending_start = self._pending_start, None
            if not self._is_leaving:
                self._start_attempt(order)

    # --- orders ---

    def obey(self, order: Order) -> None:  # noqa: C901 - the table of orders
        """Carry out an order. One that was heard before changes nothing, except that its outcome is reported again."""
        match order:
            case OpenStore():
                self._open_store(order.attempt)
            case StartAttempt():
                self._start_attempt(order)
            case EndAttempt():
                self._end_attempt(order)
            case Say():
                self._node.say(order.text)
            case Collect():
                self._collect(order)
            case KeepTraces() if self.attempt is not None and order.attempt == self._attempt_number:
                self.attempt.keep_traces()
            case LookForCheckpoints():
                self.parts.checkpoints.look(order)
            case MemoryPeers() | MemoryStrides() if self._memory is not None:
                self._memory.obey(order)
            case ShareBlocks():
                self._node.workplace.meet(order.peers)
            case StageCode():
                self.parts.codes.stage(order.tree)
            case TellFacts() | OpenPlace() | RunChecks() | EndChecks():
                self.parts.checks.obey(order)
            case Dismiss() | Finish():
                self._go(order)

    def _go(self, order: Dismiss | Finish) -> None:
        if isinstance(order, Finish):
            self.is_job_over = True
            self.stands_in = next((each.ranks for each in order.stand_ins if each.node == self.node_id), ())
        self.leave(order.exit_code)

    def _begin(self, attempt: int) -> None:
        self.newest_attempt = attempt
        self.history = []
        workplace = self._node.workplace
        if workplace.has_begun:
            from robust_run.launcher.agent.fetch_rows import came

            workplace.came_before = came()

    def _open_store(self, attempt: int) -> None:
        if attempt < self.newest_attempt or (attempt == self.newest_attempt and self._attempt_number == attempt):
            return
        self._begin(attempt)
        self._end_checks()
        try:
            address, port = self._node.open_store(attempt)
        except PlatformError as error:
            self.report(SpawnFailed(attempt=attempt, rank=0, message=str(error), node=self.node_id))
            return
        self.report(StoreOpened(attempt=attempt, node=self.node_id, address=address, port=port))

    @property
    def _attempt_number(self) -> int:
        return self.attempt.number if self.attempt is not None else -1

    def _start_attempt(self, order: StartAttempt) -> None:
        if order.attempt < self.newest_attempt or order.attempt <= self._attempt_number:
            return
        if self.exit_code is not None:
            return  # it is about to go
        if order.attempt > self.newest_attempt:
            self._begin(order.attempt)
        elif any(isinstance(event, AttemptEnded) for event in self.history):
            return  # it was told to end before it had been told to start
        if not self._has_ended:
            # The controller gave this node up and takes it again, before it has ended what it was given up with.
            self._pending_start = order
            self._attempt_now.end(EndAttempt(attempt=self._attempt_number))
            return
        if not self._end_checks():
            self._pending_start = order  # the job needs this node now
            return
        if order.code is not None and not self.parts.codes.is_ready(order):
            self._pending_start = order if self.parts.codes.is_waiting else None
            return
        if self._loop is not None and not self._node.workplace.is_ready():
            self._pending_start = order
            self._later(PLACE_LOOK_S, self._start_pending)
            return
        self._has_ended = False
        self._node.workplace.meet(order.peers)
        path = self.parts.checkpoints.path_of(order.resume) if order.resume is not None else ""
        memory = self._memory
        folder = memory.folder_for(order) if memory is not None else ""
        mount = self._node.workplace.mount
        place = place_of(order, path, folder, self._fetch_ahead(order, path), mount.folder if mount is not None else "")
        self.attempt = Attempt(place, self._node, self.node_id, self.report, self._deliver)
        self.attempt.start()
        if memory is not None:
            memory.begun(order)
        if self._loop is not None:
            self._loop.attempt_began(self.attempt)

    def _fetch_ahead(self, order: StartAttempt, path: str) -> str:
        """Have what an attempt starts from fetched while its workers import; return where they find it."""
        is_far = "://" in path and self._node.spec.ckpt_ahead
        if not is_far and self._node.early is None and (self._parts is None or not self._parts.fetches_ahead):
            return ""
        from robust_run.launcher.agent.checkpoint.choosing import readers_of

        return self.parts.ahead.begin(order.resume, path, readers_of(order))

    @property
    def parts(self) -> AgentParts:
        """What only some jobs need; imported when it is first asked for."""
        if self._parts is None:
            from robust_run.launcher.agent.parts import AgentParts

            self._parts = AgentParts(
                self._node, self.node_id, self.report, self._deliver, self._fetch_code, self._later, self._start_pending
            )
            if self._loop is not None:
                self._parts.attach(self._loop)
        return self._parts

    @property
    def minds_code(self) -> bool:
        """Whether there is something to be looked at of versions of the code."""
        return (self._parts is not None and self._parts.has_codes) or self._node.spec.code != "in-place"

    @property
    def _memory(self) -> AgentMemory | None:
        return self.parts.memory if self._node.spec.ckpt_memory else None

    def _end_checks(self) -> bool:
        """Have checks end here; whether none runs any more."""
        return self._parts is None or self._parts.end_checks()

    def _fetch_code(self, tree: str) -> bool:
        assert self._link is not None
        return self._link.fetch_code(tree)

    def forget_asked(self) -> None:
        """The connection was lost, and with it what was asked for."""
        if self._parts is not None:
            self._parts.forget_asked()

    def take_code(self, parts: TreeParts) -> None:
        """Take in a part of a version; an attempt that waits for it starts when it is complete."""
        if self.parts.codes.take(parts):
            self._start_pending()

    def _deliver(self, seen: Seen) -> None:
        assert self._link is not None
        self._link.deliver(seen)

    def _collect(self, order: Collect) -> None:
        if self.attempt is not None and order.attempt == self._attempt_number and self._loop is not None:
            self.attempt.collect(order)
        else:
            self._deliver(Sights(attempt=order.attempt, number=order.number, sights=()))

    def _end_attempt(self, order: EndAttempt) -> None:
        if order.attempt == self._attempt_number and self.is_running:
            if self._is_leaving and order.signal:
                return  # the workers have a signal and a time of their own
            if self._parts is not None:
                self._parts.prepare_look()
            if self._loop is None:
                self._pending_end = order  # the loop is about to exist; nothing can be awaited before it does
            else:
                self._attempt_now.end(order)
        elif order.attempt >= self.newest_attempt:
            self._refuse(order.attempt)

    def _refuse(self, attempt: int) -> None:
        """Say that nothing of an attempt runs here, and see to it that nothing will."""
        self._pending_start = None
        recorded = [event for event in self.history if isinstance(event, AttemptEnded) and event.attempt == attempt]
        if recorded:
            assert self._link is not None
            self._link.report(recorded[0])
            return
        if attempt > self.newest_attempt:
            self._begin(attempt)
        self._node.store.give_up()
        now_s = self._node.clock.monotonic_s()
        self.report(AttemptEnded(attempt=attempt, node=self.node_id, started_at_s=now_s, ranks=(), progress=Progress()))

    @property
    def _attempt_now(self) -> Attempt:
        assert self.attempt is not None
        return self.attempt

    def fence(self, silent_s: float) -> None:
        """End the workers at once: the controller has been silent, and another node may be about to take our place."""
        self._pending_start = None  # if it still holds, it is said again
        self._end_checks()
        if self.is_running and self.attempt is not None and self._loop is not None:
            if self.attempt.fenced_after_s is None:
                self.attempt.fenced_after_s = silent_s
                self._node.say(f"no answer from the controller for {silent_s:.1f} s: ending this node's workers")
            self.attempt.end(EndAttempt(attempt=self.attempt.number))

    def end_for(self, number: int, grace_s: float, leftovers_s: float) -> None:
        """End the workers because this node was told to go."""
        self._is_leaving = True
        self._pending_start = None
        self._end_checks()
        if self.is_running and self.attempt is not None and self._loop is not None:
            order = EndAttempt(attempt=self.attempt.number, signal=number, grace_s=grace_s, leftovers_s=leftovers_s)
            self.attempt.end(order)

    def leave(self, exit_code: int) -> None:
        """Be no longer needed: `run` returns when nothing runs here any more."""
        self._end_checks()
        if self.exit_code is None:
            self.exit_code = exit_code
        if self._loop is not None:
            self._loop.stop()

    # --- the loop ---

    def loop_runs(self, loop: Serving) -> None:
        """Go on, now in a loop, with what was begun before there was one: nothing could be awaited then."""
        self._loop = loop
        if self._parts is not None:
            self._parts.attach(loop)
        if self._node.spec.ckpt_copies:
            _ = self._memory  # it may keep copies before it is used
        if self.attempt is not None:
            self._loop.watch(self.attempt)
        if self._pending_end is not None:
            self._attempt_now.end(self._pending_end)

    def usage(self) -> tuple[float, ...]:
        """Return what this node did since the last call; empty where it is not watched."""
        return self._loop.usage() if self._loop is not None else ()

    def _later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        assert self._loop is not None
        return self._loop.later(delay_s, call)
