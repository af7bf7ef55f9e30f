"""Node checks, the controller's side: for the ladder, before a standby is counted on, and for a person who asks.

The plan, the rounds and the judging are pure (`health.checks.session`), the asking is `runner`'s; here is who
wants checks and how long that holds. Results are too much for the journal; it gets what they say, and a file beside the incident
keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from robust_run.clock import Clock
from robust_run.health.checks import show
from robust_run.health.checks.admission import ADMISSION, admit
from robust_run.health.checks.plan import Wish
from robust_run.health.checks.types import CheckJudgement
from robust_run.launcher.controller.checks.asking import is_there
from robust_run.launcher.controller.checks.runner import CheckSessionRunner
from robust_run.launcher.controller.checks.session import CheckSession
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.actions import Order
from robust_run.launcher.model.check_events import (
    CheckAnswer,
    ChecksSaid,
    Diagnose,
    Diagnosed,
    StandbyChecked,
)
from robust_run.launcher.model.events import Event
from robust_run.launcher.model.node_events import NodeJoined, NodeLeft, NodeLost, NodeReturned

if TYPE_CHECKING:
    from robust_run.launcher.records.incidents import IncidentBook

#: A check program's limit beyond what it measures: its start, and the import of torch.
LIMIT_S = 60.0


class Checking:
    """Who is checked, for whom, and until when."""

    def __init__(
        self,
        *,
        state: JobState,
        clock: Clock,
        send: Callable[[str, Order], None],
        later: Callable[[float, Callable[[], None]], Any],
        tell: Callable[[Event], None],
        book: IncidentBook,
        history_path: str,
        chosen: Sequence[str] = (),
    ) -> None:
        """`chosen`: the only checks that are wanted for admission; none: all."""
        self.chosen = chosen
        self._state = state
        self._clock = clock
        self._tell = tell
        self._book = book
        self._runner = CheckSessionRunner(state=state, clock=clock, send=send, later=later, history_path=history_path)

    @property
    def drives(self) -> list[CheckSession]:
        """The sessions under way."""
        return self._runner.drives

    def give_up(self, drive: CheckSession, why: str) -> None:
        """End a session before it is over."""
        self._runner.give_up(drive, why)

    # --- who wants checks

    def diagnose(self, order: Diagnose) -> None:
        """Check the nodes of an attempt that failed; then tell `Diagnosed`."""
        wish = Wish(only=order.checks, seconds=order.seconds, limit_s=LIMIT_S + order.seconds)
        for each in [each for each in self.drives if each.purpose == "ladder"]:  # of agents that are not there any more
            each.done = lambda _session, _judged: None
            self.give_up(each, "it begins anew, with the agents that are there now")

        def done(drive: CheckSession, judged: CheckJudgement | None) -> None:
            if judged is None and not self._state.is_diagnosing:
                return
            said = judged or CheckJudgement(unchecked=(f"the checks were given up: {drive.given_up}",))
            self._keep(drive)
            took_s = self._clock.monotonic_s() - drive.began_s
            now = self._clock.unix_s()
            self._tell(Diagnosed(attempt=order.attempt, judgement=said, took_s=took_s, at_unix_s=now))

        self._runner.begin("ladder", wish, self._named(order.nodes), done)

    def admit(self, node: str) -> None:
        """Check a node that no attempt needs, if that is still so; then tell `StandbyChecked`."""
        if not self._is_idle(node) or any(node in each.agents.values() for each in self.drives):
            return

        def done(drive: CheckSession, judged: CheckJudgement | None) -> None:
            if judged is None:
                return
            name = next(iter(drive.agents))
            found = admit(judged, name)
            now = self._clock.unix_s()
            self._tell(
                StandbyChecked(
                    node=node,
                    name=name,
                    admitted=found.admitted,
                    rule=found.rule,
                    sentence=found.sentence,
                    at_unix_s=now,
                )
            )

        only = tuple(check for check in ADMISSION.only if not self.chosen or check in self.chosen)
        if only:
            self._runner.begin("admission", msgspec.structs.replace(ADMISSION, only=only), self._named((node,)), done)

    def ask(self, nodes: Sequence[str], wish: Wish) -> CheckSession:
        """Check these nodes for a person."""
        return self._runner.begin("operator", wish, self._named(nodes), lambda _session, _judged: None)

    def idle(self) -> list[str]:
        """Return the agents that nothing runs on, and that nobody has checked."""
        members = self._state.members.values()
        return [each.info.id for each in members if not each.checked and self._is_idle(each.info.id)]

    def take(self, node: str, answer: CheckAnswer) -> None:
        """Take in what an agent answers."""
        asker = self._runner.asking.take(node, answer)
        problem = answer.problem if isinstance(answer, ChecksSaid) else ""
        for each in self.drives if problem else ():
            if each.number == asker:
                each.lines.append(f"  {self._state.members[node].info.name}: {problem}")

    def after(self, event: Event) -> None:
        """End what the job's state does not allow any more; wait for nobody who is gone."""
        for drive in list(self.drives):
            if drive.purpose == "ladder":
                if not self._state.is_diagnosing:
                    self.give_up(drive, "the job goes on without them")
            elif self._state.is_over:
                self.give_up(drive, "the job is over")
            elif any(node in self._state.unended for node in drive.agents.values()):
                self.give_up(drive, "a node was needed by the job")
        if isinstance(event, NodeReturned):
            self._runner.asking.was_away(event.node)
        if isinstance(event, (NodeJoined, NodeLost, NodeLeft)):  # who joins may take another agent's place
            self._runner.asking.wait_for_nobody_gone()

    def _is_idle(self, node: str) -> bool:
        state = self._state
        usable = is_there(self._state, node) and state.members[node].info.name not in state.evicted
        return usable and state.is_started and not state.is_in_world(node) and node not in state.unended

    def _named(self, nodes: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for node in nodes:
            member = self._state.members.get(node)
            if member is not None:
                found.setdefault(member.info.name, node)
        return found

    def _keep(self, drive: CheckSession) -> None:
        """Write what was measured beside the incident."""
        session = drive.session
        if session is not None:
            report = show.ChecksReport(
                nodes=session.facts,
                results=tuple(session.results),
                judgement=drive.judgement or CheckJudgement(),
            )
            self._book.keep_checks(msgspec.json.encode(report))
