"""Node checks, the controller's side: for the ladder, before a standby is counted on, and for a person who asks.

The plan, the rounds and the judging are pure (`health.checks.session`); here is only the asking, each question with a time
limit: a node that does not answer is one that hung. Results are too much for the journal; it gets what they say, and a file
beside the incident keeps them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from robust_run.clock import Clock
from robust_run.health.checks import show
from robust_run.health.checks.admission import ADMISSION, admit
from robust_run.health.checks.fleet import SLACK_S
from robust_run.health.checks.plan import CheckRound, MeetingPlace, Wish, needs_places, orders
from robust_run.health.checks.session import Session
from robust_run.health.checks.types import CheckJudgement, NodeFacts
from robust_run.launcher.controller.asking import Asking, Question, is_there
from robust_run.launcher.controller.check_session import CheckSession, note_gone, places_of
from robust_run.launcher.controller.fleet_history import FleetHistory
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.actions import Order
from robust_run.launcher.model.check_events import (
    CheckAnswer,
    ChecksSaid,
    Diagnose,
    Diagnosed,
    EndChecks,
    FactsTold,
    OpenPlace,
    RunChecks,
    StandbyChecked,
    TellFacts,
)
from robust_run.launcher.model.events import Event, NodeJoined, NodeLeft, NodeLost, NodeReturned

if TYPE_CHECKING:
    from robust_run.launcher.records.incidents import IncidentBook

#: How long an agent may take to say what it has, or to listen.
ANSWER_S = 10.0
#: More nodes take longer than a moment to be judged; how often is asked whether that is done.
NODES_AT_ONCE, ASK_S = 200, 0.05
#: A check program's limit beyond what it measures: its start, and the import of torch.
LIMIT_S = 60.0

Made = TypeVar("Made")


class Checking:
    """The sessions under way."""

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
        self.drives: list[CheckSession] = []
        self.chosen = chosen
        self._state = state
        self._clock = clock
        self._send = send
        self._later = later
        self._tell = tell
        self._book = book
        self._history = FleetHistory(history_path)
        self._number = 0
        self._asking = Asking(state, send, later)

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

        self._begin("ladder", wish, self._named(order.nodes), done)

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
            self._begin("admission", msgspec.structs.replace(ADMISSION, only=only), self._named((node,)), done)

    def ask(self, nodes: Sequence[str], wish: Wish) -> CheckSession:
        """Check these nodes for a person."""
        return self._begin("operator", wish, self._named(nodes), lambda _session, _judged: None)

    def idle(self) -> list[str]:
        """Return the agents that nothing runs on, and that nobody has checked."""
        members = self._state.members.values()
        return [each.info.id for each in members if not each.checked and self._is_idle(each.info.id)]

    def take(self, node: str, answer: CheckAnswer) -> None:
        """Take in what an agent answers."""
        asker = self._asking.take(node, answer)
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
            self._asking.was_away(event.node)
        if isinstance(event, (NodeJoined, NodeLost, NodeLeft)):  # who joins may take another agent's place
            self._asking.wait_for_nobody_gone()

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

    # --- one session, step by step

    def _begin(
        self,
        purpose: str,
        wish: Wish,
        agents: dict[str, str],
        done: Callable[[CheckSession, CheckJudgement | None], None],
    ) -> CheckSession:
        self._number += 1
        drive = CheckSession(
            number=self._number, purpose=purpose, wish=wish, agents=agents, done=done, began_s=self._clock.monotonic_s()
        )
        self.drives.append(drive)
        self._asking.ask(
            drive.number,
            {node: TellFacts(number=0) for node in agents.values()},
            ANSWER_S,
            lambda question: self._got_facts(drive, question),
        )
        return drive

    def _got_facts(self, drive: CheckSession, question: Question) -> None:
        for node, told in question.answers.items():
            if isinstance(told, FactsTold):
                drive.told[node] = told.facts
        missing = [node for node in drive.agents.values() if node not in drive.told and is_there(self._state, node)]
        if missing and not drive.has_asked_again:  # after a restart of the controller, they are about to return
            drive.has_asked_again = True
            again = {node: TellFacts(number=0) for node in missing}
            self._asking.ask(drive.number, again, ANSWER_S, lambda later: self._got_facts(drive, later))
            return
        note_gone(self._state, drive, question)
        facts: list[NodeFacts] = []
        for name, node in drive.agents.items():
            if node not in drive.told and not is_there(self._state, node):
                drive.gone.setdefault(name, "it is not there")
                continue
            own = drive.told.get(node) or NodeFacts(name=name)
            facts.append(msgspec.structs.replace(own, name=name, address=self._state.members[node].info.address))
        if not facts:
            self.give_up(drive, "no node is there")
            return
        if len(facts) == 1 and len(facts[0].devices) < 2 and len(drive.wish.only) > 1:
            only = tuple(check for check in drive.wish.only if check != "exchange")  # nobody to exchange anything with
            drive.wish = msgspec.structs.replace(drive.wish, only=only)
        self._work(
            drive, lambda: Session(facts, drive.wish, self._history.load()), lambda made: self._planned(drive, made)
        )

    def _planned(self, drive: CheckSession, session: Session) -> None:
        drive.session = session
        for name, why in drive.gone.items():
            session.leave(name, why)
        self._next(drive)

    def _next(self, drive: CheckSession) -> None:
        session = drive.session
        assert session is not None
        self._work(drive, session.next_round, lambda made: self._prepare(drive, made))

    def _prepare(self, drive: CheckSession, made: CheckRound | None) -> None:
        if made is None:
            assert drive.session is not None
            self._work(drive, drive.session.judgement, lambda judged: self._judged(drive, judged))
            return
        drive.lines.append(f"{made.check}: {show.who(made)}")
        if not needs_places(made):
            self._run(drive, made, {})
            return
        firsts = {drive.agents[group[0]]: OpenPlace(number=0) for group in made.groups}
        self._asking.ask(drive.number, firsts, ANSWER_S, lambda question: self._opened(drive, made, question))

    def _opened(self, drive: CheckSession, made: CheckRound, question: Question) -> None:
        note_gone(self._state, drive, question)
        self._run(drive, made, places_of(drive, made, question))

    def _run(self, drive: CheckSession, made: CheckRound, places: Mapping[str, MeetingPlace]) -> None:
        assert drive.session is not None
        groups = tuple(group for group in made.groups if not needs_places(made) or group[0] in places)
        ready = CheckRound(check=made.check, number=made.number, groups=groups)
        facts = {each.name: each for each in drive.session.facts}
        work = orders(ready, facts, drive.wish, places)
        told = {drive.agents[name]: RunChecks(number=0, orders=its) for name, its in work.items()}
        limit_s = drive.wish.limit_s + SLACK_S
        self._asking.ask(drive.number, told, limit_s, lambda question: self._ran(drive, made, question))

    def _ran(self, drive: CheckSession, made: CheckRound, question: Question) -> None:
        note_gone(self._state, drive, question)
        session = drive.session
        assert session is not None
        before = len(session.results)
        session.take(made, question.results)
        drive.lines += [f"  {show.result_line(each)}" for each in session.results[before:]]
        self._next(drive)

    def _judged(self, drive: CheckSession, judged: CheckJudgement) -> None:
        drive.judgement = judged
        if drive.session is not None:
            self._history.learn(tuple(drive.session.results), judged.passed)
        self._end(drive, judged)

    def _end(self, drive: CheckSession, judged: CheckJudgement | None) -> None:
        drive.is_over = True
        if drive in self.drives:
            self.drives.remove(drive)
            drive.done(drive, judged)

    def give_up(self, drive: CheckSession, why: str) -> None:
        """End a session before it is over."""
        if drive.is_over:
            return
        drive.given_up = why
        self._asking.forget(drive.number)
        for node in drive.agents.values():
            self._send(node, EndChecks())
        self._end(drive, None)

    def _work(self, drive: CheckSession, work: Callable[[], Made], then: Callable[[Made], None]) -> None:
        """Do what takes a while with many nodes beside the loop: leases are to be renewed meanwhile."""
        if len(drive.agents) <= NODES_AT_ONCE:
            self._after_work(drive, _outcome(work), then)
            return
        found: list[Made | Exception] = []
        threading.Thread(target=lambda: found.append(_outcome(work)), daemon=True).start()

        def look() -> None:
            if drive.is_over:
                return
            if found:
                self._after_work(drive, found[0], then)
            else:
                self._later(ASK_S, look)

        self._later(ASK_S, look)

    def _after_work(self, drive: CheckSession, made: Made | Exception, then: Callable[[Made], None]) -> None:
        if isinstance(made, Exception):
            self.give_up(drive, f"{type(made).__name__}: {made}"[:300])
        elif not drive.is_over:
            then(made)

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


def _outcome(work: Callable[[], Made]) -> Made | Exception:
    try:
        return work()
    except Exception as error:
        return error
