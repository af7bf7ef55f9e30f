"""Asks for what people are shown of a job of several roles: its leader, its journal, launchers of its members. Reads only."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence

import msgspec

from robust_run.errors import PlatformError, RobustRunError
from robust_run.launcher.operator.reading.incident_reading import read_incidents
from robust_run.launcher.operator.reading.runs import is_run
from robust_run.orchestrator.journal import NAME, spec_of
from robust_run.orchestrator.members import Tail
from robust_run.orchestrator.model.words import Line
from robust_run.orchestrator.people.operator import look
from robust_run.orchestrator.people.views.chain_words import (
    Inside,
    WholeChain,
    asked_at,
    elsewhere,
    inside_of,
    rank_of,
    whole,
)
from robust_run.orchestrator.people.views.history import Historian, History, RolesNow
from robust_run.report.types import Incident
from robust_run.roles.view_words import MemberView, RolesView
from robust_run.terminal import plain

#: Members whose launchers are asked at most; and after how long no further one is.
MOST_ASKED, ASK_S = 6, 30.0
#: Incidents of all members that are read.
MOST_INCIDENTS = 2000


class MemberIncident(msgspec.Struct, frozen=True, kw_only=True):
    """An incident of a member."""

    number: int
    """Among those of the whole job, from 1, in order of time."""
    member: str
    run: str
    """Its run directory, below that of the job."""
    incident: Incident


class HistoryReader:
    """Reads the journal of a job, and later what was added. Raises PlatformError as `journal.read`."""

    def __init__(self, run: str) -> None:
        spec = spec_of(run)
        if spec is None:
            raise PlatformError(f"the first line of {run}/{NAME} is not written yet; ask again")
        self._historian = Historian(spec)
        self._tail = Tail(os.path.join(run, NAME))
        self._decoder = msgspec.json.Decoder(Line)
        self._is_first, self._is_broken = True, False

    def history(self, now_s: float | None) -> History:
        """Return what became of the job until now. `now_s`: as for `Historian.history`."""
        for line in self._tail.lines():
            if self._is_first or self._is_broken:
                self._is_first = False  # it says what was asked for
                continue
            try:
                self._historian.take(self._decoder.decode(line))
            except msgspec.MsgspecError:  # of a later version: what follows cannot be understood without it
                self._is_broken = True
        return self._historian.history(now_s)


def live(run: str, reader: HistoryReader) -> RolesNow:
    """Return how a job is, and what became of it. Raises PlatformError."""
    view, now_s = look(run), time.time()
    return RolesNow(view=view, history=reader.history(now_s if view.is_led else None), now_s=now_s)


def whole_chains(run: str, view: RolesView, env: Mapping[str, str]) -> tuple[WholeChain, ...]:
    """Return who waits for whom, to the line of code: launchers of members at the ends of chains are asked."""
    wanted: dict[str, tuple[MemberView, set[int]]] = {}
    for chain in view.chains:
        member = asked_at(chain, view)
        if member is not None and (member.name in wanted or len(wanted) < MOST_ASKED):
            wanted.setdefault(member.name, (member, set()))[1].add(rank_of(chain))
    # One after the other: answers that threads decode at a time could crash the process, see `client.prepare`.
    give_up_s = time.monotonic() + ASK_S
    found: dict[str, dict[int, Inside]] = {}
    for name, (member, ranks) in wanted.items():
        if time.monotonic() < give_up_s:
            found[name] = _inside(run, member, ranks, env, view.node)
        else:
            late = Inside(text="its launcher was not asked: others took too long to answer")
            found[name] = dict.fromkeys(ranks, late)
    return whole(view, found)


def _inside(run: str, member: MemberView, ranks: set[int], env: Mapping[str, str], node: str) -> dict[int, Inside]:
    from robust_run.launcher.operator.reading.which import subject

    path = os.path.join(run, member.run)
    if not is_run(path):
        return dict.fromkeys(ranks, elsewhere(member, path, node or socket.gethostname()))
    try:
        about = subject(env, run=path, log_dir="", url="", token_file="", tls_ca="")
        scene = about.scene(samples=3)
    except RobustRunError as error:
        where = [name for name in member.nodes if name != node]
        hints = elsewhere(member, path, node).hints if where else ()
        return dict.fromkeys(ranks, Inside(text=f"its launcher says nothing: {plain(str(error))}", hints=hints))
    return {rank: inside_of(scene, rank) for rank in ranks}


def incidents_of(run: str, history: History) -> tuple[tuple[MemberIncident, ...], tuple[str, ...]]:
    """Return the incidents of all members whose files are here, oldest first, and what could not be read, a clause for each."""
    found: list[tuple[str, str, Incident]] = []
    unread = []
    for member in history.members:
        for name in member.runs:
            path = f"members/{name}"
            seen = read_incidents(os.path.join(run, path))
            found += [(member.name, path, incident) for incident in seen.incidents]
            unread += [f"{path}: {seen.words()}"] if seen.words() else []
    found.sort(key=lambda each: (each[2].detected_s, each[1], each[2].id))
    return (
        tuple(
            MemberIncident(number=number, member=member, run=path, incident=incident)
            for number, (member, path, incident) in enumerate(
                found[-MOST_INCIDENTS:], 1 + max(len(found) - MOST_INCIDENTS, 0)
            )
        ),
        tuple(unread),
    )


def not_here(run: str, view: RolesView) -> tuple[MemberView, ...]:
    """Return members whose run directories are not to be seen here: they run, or ran, on other nodes."""
    return tuple(
        member
        for members in _members(view)
        for member in members
        if member.run and not is_run(os.path.join(run, member.run)) and member.nodes not in ((), (view.node,))
    )


def _members(view: RolesView) -> Sequence[Sequence[MemberView]]:
    return [role.members for role in view.roles]
