"""The protocol of a fleet, whose nodes carry checks out, and the loop that runs checks on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from robust_run.health.checks.history import History, SlownessLimits
from robust_run.health.checks.plan import CheckRound, MeetingPlace, Wish, needs_places, orders
from robust_run.health.checks.session import Session
from robust_run.health.checks.types import CheckProgramOrder, NodeFacts, Result, Said


class CheckFleet(Protocol):
    """Nodes of a job, or of this machine."""

    def facts(self) -> Sequence[NodeFacts]:
        """Return the nodes to check. Raises UserError or PlatformError if they cannot be reached."""
        ...

    def begin(self, rounds: Sequence[CheckRound]) -> None:
        """Hear which rounds are planned, before the first."""
        ...

    def end(self) -> None:
        """Let go of what was kept for the next round: there is none."""
        ...

    def open_places(self, nodes: Sequence[str]) -> Mapping[str, MeetingPlace]:
        """Listen on each of these nodes, for one round; return where. A node that cannot is left out."""
        ...

    def carry_out(
        self, work: Mapping[str, tuple[CheckProgramOrder, ...]], limit_s: float, tell: Callable[[str, Said], None]
    ) -> Sequence[Result]:
        """Run these orders, a node's at the same time; return the results of all that answered within the limit.

        `tell` is called with a node's name and what its runner says. The places of the round are closed afterwards.
        """
        ...


class CheckListener:
    """Is told how it goes; says nothing."""

    def on_round(self, made: CheckRound) -> None:
        """A round begins."""

    def on_said(self, node: str, said: Said) -> None:
        """A node's runner said something."""


#: From a program's limit to its runner's answer: killing and sweeping.
SLACK_S = 15.0


def check(
    fleet: CheckFleet,
    wish: Wish,
    *,
    history: History | None = None,
    limits: SlownessLimits | None = None,
    watcher: CheckListener | None = None,
) -> Session:
    """Run all checks on a fleet and return the session with its results. Raises UserError for a wish that makes no sense."""
    watching = watcher or CheckListener()
    session = Session(fleet.facts(), wish, history, limits)
    fleet.begin(session.plan.rounds)
    try:
        while (made := session.next_round()) is not None:
            watching.on_round(made)
            session.take(made, _carried_out(fleet, made, session, watching))
    finally:
        fleet.end()
    return session


def _carried_out(fleet: CheckFleet, made: CheckRound, session: Session, watching: CheckListener) -> Sequence[Result]:
    facts = {node.name: node for node in session.facts}
    places: Mapping[str, MeetingPlace] = {}
    if needs_places(made):
        places = fleet.open_places([group[0] for group in made.groups])
    ready = [group for group in made.groups if not needs_places(made) or group[0] in places]
    work = orders(CheckRound(check=made.check, number=made.number, groups=tuple(ready)), facts, session.wish, places)
    return fleet.carry_out(work, session.wish.limit_s + SLACK_S, watching.on_said)
