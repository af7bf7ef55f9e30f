"""Parts of a controller that only some jobs need, or none at its start: each imported and made when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from robust_run.clock import Clock
from robust_run.launcher.controller.evidence_collector import EvidenceCollector
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.model.actions import Action, Say, WakeAt
from robust_run.launcher.model.events import Event
from robust_run.launcher.model.health_events import HealthSeen
from robust_run.launcher.records.incidents import IncidentBook

if TYPE_CHECKING:
    from robust_run.health.rules.types import Counts
    from robust_run.launcher.controller.checks.checking import Checking
    from robust_run.launcher.controller.code.staging import Staging
    from robust_run.launcher.controller.comparing.nccl_slowness import NcclSlowness
    from robust_run.launcher.controller.comparing.node_roles import NodeRolesLook
    from robust_run.launcher.controller.comparing.pacing import Pacing
    from robust_run.launcher.controller.comparing.reduced_values import ReducedComparison
    from robust_run.launcher.controller.memory_groups import MemoryGroupsLook
    from robust_run.launcher.controller.news import News
    from robust_run.launcher.controller.repeats import Repeats
    from robust_run.launcher.controller.starts import StartBook
    from robust_run.launcher.model.links import Outbox, Timer


class ControllerParts:
    """Makes them of what the controller has. What finds checkpoints is not here: workers would wait for this import, too."""

    def __init__(
        self,
        policy: CorePolicy,
        state: JobState,
        book: IncidentBook,
        clock: Clock,
        outbox: Outbox,
        later: Callable[[float, Callable[[], None]], Timer],
        tell: Callable[[Event], None],
    ) -> None:
        self._policy, self._state, self._book, self._clock = policy, state, book, clock
        self._outbox, self._later, self._tell = outbox, later, tell
        self.collector = EvidenceCollector(
            state=state, clock=clock, send=outbox.send, later=later, tell=tell, say=book.say
        )
        """What asks nodes what they see of their ranks."""
        self._checking: Checking | None = None
        self._starts: StartBook | None = None
        self._repeats: Repeats | None = None

    def after(self, event: Event) -> None:
        """Note what happened, where checks may have waited for it."""
        if self._checking is not None:
            self._checking.after(event)

    def finish(self) -> None:
        """Write what is still to be written: the job is over."""
        if self._starts is not None:
            self._starts.flush()

    @cached_property
    def paces(self) -> Pacing:
        """What compares how fast ranks are."""
        from robust_run.launcher.controller.comparing.pacing import Pacing

        return Pacing(state=self._state, clock=self._clock, ask=self.collector.ask, tell=self._tell, say=self._book.say)

    @cached_property
    def nccl_slowness(self) -> NcclSlowness:
        """What finds what is slow inside NCCL."""
        from robust_run.launcher.controller.comparing.nccl_slowness import NcclSlowness

        return NcclSlowness(
            state=self._state,
            clock=self._clock,
            ask=lambda: self.collector.ask(lambda _: None, samples=0),
            tell=self._tell,
            say=self._book.say,
        )

    @cached_property
    def reduced_values(self) -> ReducedComparison:
        """What compares reduced values of ranks."""
        from robust_run.launcher.controller.comparing.reduced_values import ReducedComparison

        return ReducedComparison(self._state, self._clock, self._tell, self._book.say)

    def on_record(self, event: Event, actions: Sequence[Action], counts: Counts, now_s: float) -> Sequence[Event]:
        """Return what the journal is to have of an event; what follows from it follows from the last of these.

        `counts`: what rules had counted of alerts before it. What sensors say again and again is left out.
        """
        if not isinstance(event, HealthSeen):
            if self._repeats is None or all(isinstance(action, (Say, WakeAt)) for action in actions):
                return (event,)
            seen = self._repeats.recalled(now_s)
        else:
            if self._repeats is None:
                from robust_run.launcher.controller.repeats import Repeats

                self._repeats = Repeats()
            seen = self._repeats.on_record(event, now_s, has_consequences=bool(actions))
        if not seen:
            return () if isinstance(event, HealthSeen) else (event,)
        from robust_run.launcher.core.diagnosis.counted import with_counted

        lines = [with_counted(self._policy, self._state, each, counts) for each in seen]
        return lines if isinstance(event, HealthSeen) else [*lines, event]

    @property
    def starts(self) -> StartBook:
        """What is kept of starts."""
        if self._starts is None:
            from robust_run.launcher.controller.starts import StartBook

            self._starts = StartBook(self._state, self._book, self._clock, self._later)
        return self._starts

    @property
    def checking(self) -> Checking:
        """What is done about checks."""
        if self._checking is None:
            import os

            from robust_run.health.diagnostics.records import default_path
            from robust_run.launcher.controller.checks.checking import Checking

            self._checking = Checking(
                state=self._state,
                clock=self._clock,
                send=self._outbox.send,
                later=self._later,
                tell=self._tell,
                book=self._book,
                history_path=default_path(os.environ),
                chosen=self._policy.diagnose_checks,
            )
        return self._checking

    @cached_property
    def memory_groups(self) -> MemoryGroupsLook:
        """What finds out which nodes share a parallel group, where nodes may keep copies of each other's memory."""
        from robust_run.launcher.controller.memory_groups import MemoryGroupsLook

        return MemoryGroupsLook(self._state, self.collector.ask, self._tell, self._later)

    @cached_property
    def node_roles(self) -> NodeRolesLook:
        """What finds out which nodes do the same work, where nodes are compared."""
        from robust_run.launcher.controller.comparing.node_roles import NodeRolesLook

        return NodeRolesLook(self._state, self.collector.ask, self._later)

    @cached_property
    def staging(self) -> Staging:
        """What is done about versions of the code."""
        from robust_run.launcher.controller.code.staging import Staging

        return Staging(self._state, self._outbox.send, self._tell, self._later, self._clock.unix_s)

    def news(self, relaunched: int) -> News:
        """What says how workers were started. `relaunched`: the attempt that ran when this controller began, else -1."""
        from robust_run.launcher.controller.news import News

        return News(self._state, self._book, relaunched, is_many=self._policy.many)
