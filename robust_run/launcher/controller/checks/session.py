"""One session of checks as its controller keeps it: whom it asks, what was said, and who went meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from robust_run.health.checks.plan import CheckRound, MeetingPlace, Wish
from robust_run.health.checks.session import Session
from robust_run.health.checks.types import CheckJudgement, NodeFacts
from robust_run.launcher.controller.checks.asking import Question, is_there
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.check_events import ChecksSaid, PlaceOpened


class CheckSession(msgspec.Struct, kw_only=True, eq=False):
    """One session of checks."""

    number: int
    purpose: str
    """ladder, admission or operator."""
    wish: Wish
    agents: dict[str, str]
    """Agent by name of its host."""
    done: Callable[[CheckSession, CheckJudgement | None], None]
    """None: it was given up."""
    began_s: float
    lines: list[str] = []
    """How it goes, for people."""
    gone: dict[str, str] = {}
    """Hosts that went meanwhile, and why nothing follows from their silence."""
    told: dict[str, NodeFacts] = {}
    """What agents have said of their nodes."""
    has_asked_again: bool = False
    session: Session | None = None
    judgement: CheckJudgement | None = None
    is_over: bool = False
    given_up: str = ""


def note_gone(state: JobState, drive: CheckSession, question: Question) -> None:
    """Conclude nothing from the silence of who went while a question was open."""
    for name, node in drive.agents.items():
        why = "" if node in question.answers else question.gone.get(node, "")
        if not why and not is_there(state, node):
            why = "it was lost or restarted meanwhile"
        if why:
            drive.gone.setdefault(name, why)
    for name, why in drive.gone.items():
        if drive.session is not None:
            drive.session.leave(name, why)


def note_ended(drive: CheckSession, question: Question) -> None:
    """Conclude nothing of a node whose runner of checks ended and told of none: it answered, so it did not hang. Who ends a
    runner is somebody else: a scheduler that signals every process of a job that is over, the kernel that needs memory."""
    for name, node in drive.agents.items():
        answer = question.answers.get(node)
        if isinstance(answer, ChecksSaid) and not question.counted.get(node):
            why = answer.problem or "the process that makes its checks was ended before it had a result"
            drive.gone.setdefault(name, why)
            if drive.session is not None:
                drive.session.leave(name, why)


def places_of(drive: CheckSession, made: CheckRound, question: Question) -> dict[str, MeetingPlace]:
    """Return where the first of each group of a round listens, by its name; without those that could not."""
    found: dict[str, MeetingPlace] = {}
    for group in made.groups:
        opened = question.answers.get(drive.agents[group[0]])
        if isinstance(opened, PlaceOpened) and opened.port:
            found[group[0]] = MeetingPlace(address=opened.address, port=opened.port)
    return found
