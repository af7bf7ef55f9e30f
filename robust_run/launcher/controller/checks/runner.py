"""Session runner for node checks: one session from the facts of its nodes to the judgement, a question at a time.

Each question has a time limit: a node that does not answer is one that hung. What takes a while with many nodes is done beside
the loop: leases are to be renewed meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from robust_run.clock import Clock
from robust_run.health.checks import show
from robust_run.health.checks.fleet import SLACK_S
from robust_run.health.checks.plan import CheckRound, MeetingPlace, Wish, needs_places, orders
from robust_run.health.checks.session import Session
from robust_run.health.checks.types import CheckJudgement, NodeFacts
from robust_run.launcher.controller.checks.asking import Asking, Question, is_there
from robust_run.launcher.controller.checks.fleet_history import FleetHistory
from robust_run.launcher.controller.checks.session import CheckSession, note_ended, note_gone, places_of
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.actions import Order
from robust_run.launcher.model.check_events import EndChecks, FactsTold, OpenPlace, RunChecks, TellFacts

#: How long an agent may take to say what it has, or to listen.
ANSWER_S = 10.0
#: More nodes take longer than a moment to be judged; how often is asked whether that is done.
NODES_AT_ONCE, ASK_S = 200, 0.05

Made = TypeVar("Made")


class CheckSessionRunner:
    """Carries the sessions under way from question to question."""

    def __init__(
        self,
        *,
        state: JobState,
        clock: Clock,
        send: Callable[[str, Order], None],
        later: Callable[[float, Callable[[], None]], Any],
        history_path: str,
    ) -> None:
        self.drives: list[CheckSession] = []
        """The sessions under way."""
        self.asking = Asking(state, send, later)
        self._state = state
        self._clock = clock
        self._send = send
        self._later = later
        self._history = FleetHistory(history_path)
        self._number = 0

    def begin(
        self,
        purpose: str,
        wish: Wish,
        agents: dict[str, str],
        done: Callable[[CheckSession, CheckJudgement | None], None],
    ) -> CheckSession:
        """Begin a session with these agents, each by the name of its host; `done` is told what comes of it."""
        self._number += 1
        drive = CheckSession(
            number=self._number, purpose=purpose, wish=wish, agents=agents, done=done, began_s=self._clock.monotonic_s()
        )
        self.drives.append(drive)
        self.asking.ask(
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
            self.asking.ask(drive.number, again, ANSWER_S, lambda later: self._got_facts(drive, later))
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
        self.asking.ask(drive.number, firsts, ANSWER_S, lambda question: self._opened(drive, made, question))

    def _opened(self, drive: CheckSession, made: CheckRound, question: Question) -> None:
        note_gone(self._state, drive, question)
        self._run(drive, made, places_of(drive, made, question))

    def _run(self, drive: CheckSession, made: CheckRound, places: Mapping[str, MeetingPlace]) -> None:
        assert drive.session is not None
        groups = tuple(group for group in made.groups if not needs_places(made) or group[0] in places)
        ready = CheckRound(check=made.check, number=made.number, groups=groups)
        facts = {each.name: each for each in drive.session.facts}
        work = orders(ready, facts, drive.wish, places)
        told = {
            drive.agents[name]: RunChecks(number=0, orders=its, to_come=drive.session.to_come(made, name))
            for name, its in work.items()
        }
        limit_s = drive.wish.limit_s + SLACK_S
        self.asking.ask(drive.number, told, limit_s, lambda question: self._ran(drive, made, question))

    def _ran(self, drive: CheckSession, made: CheckRound, question: Question) -> None:
        note_gone(self._state, drive, question)
        note_ended(drive, question)
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
        self.asking.forget(drive.number)
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


def _outcome(work: Callable[[], Made]) -> Made | Exception:
    try:
        return work()
    except Exception as error:
        return error
