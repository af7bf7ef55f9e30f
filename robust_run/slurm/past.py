"""What the journal of a run says when its launcher has ended: how, and which nodes are no longer wanted."""

from __future__ import annotations

import os

import msgspec

from robust_run.errors import RobustRunError
from robust_run.launcher.model.actions import Finish
from robust_run.launcher.model.events import AttemptEnded, FirstStep
from robust_run.launcher.model.node_events import ControllerResumed, JobStarted, NodeJoined, NodeLost, NodeReturned
from robust_run.launcher.records.folds.agents import Agents
from robust_run.launcher.records.folds.evicted import Evicted
from robust_run.launcher.records.journal import JournalEntry, in_force
from robust_run.launcher.records.journal_reading import read

#: A start that lived that long got somewhere, whatever its program tells of itself.
LONG_S = 600.0


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a run, as far as it is on record."""

    finish: Finish | None = None
    """None: its controller was lost."""
    evicted: tuple[str, ...] = ()
    """Now, whoever evicted them; a readmission has undone it for others."""
    lost: tuple[str, ...] = ()
    """Nodes that went silent and did not come back."""
    ended: tuple[str, ...] = ()
    """Nodes whose first agent is gone, whether another one came in its place or not: their tasks of the step have failed."""
    joined: int = 0
    """Agents that have joined since the last requeue."""
    members: tuple[str, ...] = ()
    """All that ever joined, before a requeue too."""
    codes: frozenset[int] = frozenset()
    """Exit codes of the workers of the newest attempt that has ended."""
    barren: int = 0
    """Starts of the job in a row, the newest one included, that got nowhere and that nobody told to end."""


def past_of(path: str, restart: int = 0) -> Past | None:
    """Return what the journal in a run directory says, None if it cannot be read. `restart`: see `judge`."""
    try:
        header, entries = read(os.path.join(path, "journal.jsonl"))
    except (OSError, RobustRunError):
        return None
    return judge(list(in_force(entries)), header.host, restart)


def judge(entries: list[JournalEntry], leader: str = "", restart: int = 0) -> Past:
    """Return what entries say. `leader`: the host that led first. Pure.

    A host that another one took over from is lost unless it comes back: a job may be over before anybody has noted its silence.
    `restart`: how often the job was requeued by now; how an earlier start ended is no matter of this one.
    """
    finish: Finish | None = None
    agents = Agents()
    evicted = Evicted()
    lost: dict[str, None] = {}
    members: dict[str, None] = {}
    for entry in entries:
        if isinstance(entry.action, Finish):
            finish = entry.action
        evicted.take(entry)
        match entry.event:
            case NodeJoined(node=node):
                members[node.name] = None
                lost.pop(node.name, None)
            case NodeReturned(node=node):
                lost.pop(agents.names.get(node, ""), None)
            case NodeLost(node=node) if node in agents.names:
                lost[agents.names[node]] = None
            case ControllerResumed(host=host) if host:
                if leader not in ("", host):
                    lost[leader] = None
                leader = host
            case _:
                pass
        if agents.take(entry.event):
            finish, lost = None, {}  # what was before a requeue is over
    if restart > agents.restart:
        finish, lost, agents = None, {}, Agents()
    return Past(
        finish=finish,
        evicted=tuple(evicted.now),
        lost=tuple(lost),
        ended=tuple(dict.fromkeys((*(agents.names[node] for node in agents.gone), *lost))),
        joined=len(agents.names),
        members=tuple(members),
        codes=_codes(entries),
        barren=_barren(entries, restart),
    )


def _codes(entries: list[JournalEntry]) -> frozenset[int]:
    ends = [entry.event for entry in entries if isinstance(entry.event, AttemptEnded)]
    newest = max((end.attempt for end in ends), default=-1)
    ranks = (rank for end in ends if end.attempt == newest for rank in end.ranks)
    return frozenset(rank.exit_code for rank in ranks if rank.exit_code is not None)


def _barren(entries: list[JournalEntry], restart: int) -> int:
    """Return how many starts in a row got nowhere: no step, no checkpoint, no long life. `restart`: the newest one's number."""
    number, began_s, last_good = 0, None, -1
    for entry in entries:
        event = entry.event
        if isinstance(event, (JobStarted, ControllerResumed)) and (began_s is None or event.restart > number):
            number, began_s = event.restart, entry.at
        is_long = began_s is not None and entry.at - began_s >= LONG_S
        was_told = isinstance(entry.action, Finish) and entry.action.outcome == "stopped"
        has_saved = isinstance(event, AttemptEnded) and (event.progress.files_advanced or bool(event.progress.steps))
        if is_long or was_told or has_saved or isinstance(event, FirstStep):
            last_good = number
    return max(restart, number) - last_good


def is_done(path: str) -> bool:
    """Whether the run in this directory ended well."""
    past = past_of(path)
    return past is not None and past.finish is not None and past.finish.outcome == "done"
