"""The journal as a story: a line for each event and action that a person wants to know of. Pure but for the time zone.

Lines come in the order of the journal; names of nodes, and which ranks they have, are learnt on the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from robust_run.decoders import json_decoder
from robust_run.launcher.core.ledger_queries import words
from robust_run.launcher.core.resume.resuming import sentence
from robust_run.launcher.model import actions as a
from robust_run.launcher.model import code_events as c
from robust_run.launcher.model import events as e
from robust_run.launcher.model import node_events as n
from robust_run.launcher.model.check_events import Decided, Diagnosed, StandbyChecked
from robust_run.launcher.model.job import Placement
from robust_run.launcher.model.resume_events import NoResumePoint, ResumeChosen
from robust_run.launcher.operator.reading.incident_reading import MOST_S
from robust_run.launcher.operator.views.operations import listed
from robust_run.launcher.operator.views.show import clean, plural
from robust_run.launcher.records.journal import JournalEntry, Terms
from robust_run.signals import describe_exit, signal_name
from robust_run.tracer.flight.types import OF_RECORDER
from robust_run.tracer.words import duration

#: A wall clock that went another way than the monotonic one by more was set. Less is corrected all the time.
SET_S = 2.0


class Story:
    """Tells a journal from its beginning, a line at a time."""

    def __init__(
        self, *, everything: bool = False, local: Callable[[float], time.struct_time] = time.localtime
    ) -> None:
        self._everything = everything
        self._local = local
        self._names: dict[str, str] = {}
        self._layout: tuple[Placement, ...] = ()
        self._first_step_of = -1
        self._terms = Terms()
        self._day = ""
        self._clocks: tuple[int, float] | None = None
        """The controller's term, and what its wall clock was ahead of its monotonic one."""

    def tell(self, line: bytes | msgspec.Raw) -> list[str]:
        """Return what there is to say of a line of the journal: nothing, or a line (and the date where it changes)."""
        try:
            entry = _DECODER.decode(line)
        except (msgspec.MsgspecError, RecursionError):
            return self._unread(line)
        if not abs(entry.at) <= MOST_S:
            return self._unread(line)
        if not self._terms.hold(entry.term):
            return []
        self._learn(entry)
        return [*self._of_clock(entry), *self._of_entry(entry)]

    def _unread(self, line: bytes | msgspec.Raw) -> list[str]:
        return [clean(f"????????  {bytes(line).decode(errors='replace')}")] if self._everything else []

    def _of_clock(self, entry: JournalEntry) -> list[str]:
        """Say that the clock was set by which the times of lines are: they are in order, whatever they say."""
        before, now = self._clocks, (entry.term, entry.at - entry.mono)
        self._clocks = now
        if before is None or before[0] != now[0] or isinstance(entry.event, n.ControllerResumed):
            return []
        by_s = now[1] - before[1]
        if abs(by_s) < SET_S:
            return []
        by = duration(abs(by_s))
        said = f"the clock of the controller's node was set back by {by}"
        if by_s > 0:  # what counts seconds since the start does not while a machine is suspended
            said = (
                f"the clock of the controller's node was set forward by {by}, or its machine was suspended for so long"
            )
        return self._dated(entry.at, "", said)

    def _of_entry(self, entry: JournalEntry) -> list[str]:
        subject = entry.event if entry.event is not None else entry.action
        if subject is None:
            return []
        where, what = self._words(subject)
        if not what and self._everything:
            fields = msgspec.to_builtins(subject)
            kind = fields.pop("type")
            where = where or self._name(str(fields.pop("node", "") or ""))
            what = f"{kind} {msgspec.json.encode(fields).decode()}"
        return self._dated(entry.at, where, what) if what else []

    def _dated(self, at_unix_s: float, where: str, what: str) -> list[str]:
        moment = self._local(at_unix_s)
        day = time.strftime("%Y-%m-%d", moment)
        heading = [f"--- {day} ---"] if day != self._day else []
        self._day = day
        return [*heading, clean(f"{time.strftime('%H:%M:%S', moment)}  {where or '-':<12}  {what}")]

    def _learn(self, entry: JournalEntry) -> None:
        match entry.event, entry.action:
            case n.NodeJoined(node=info), _:
                self._names[info.id] = info.name
            case n.NodeReturned(node=node, name=str(name)), _ if name:
                self._names[node] = name  # the journal of a controller that took over begins in the middle
            case _, a.StartAttempt() as order if len(order.placements) == order.nodes:
                self._layout = order.placements

    def _name(self, node: str) -> str:
        return self._names.get(node, node)

    def _node_of(self, rank: int) -> str:
        for placement in self._layout:
            if placement.first_rank <= rank < placement.first_rank + placement.nproc:
                return self._name(placement.node)
        return ""

    def _words(self, subject: e.Event | a.Action) -> tuple[str, str]:
        """Return where something happened and what it was; nothing for what only a developer wants to know."""
        about_node = self._node_words(subject)
        if about_node[1]:
            return about_node
        about_code = _code_words(subject) or _check_words(subject) or _start_words(subject)
        return ("", about_code) if about_code else self._job_words(subject)

    def _node_words(self, subject: e.Event | a.Action) -> tuple[str, str]:  # noqa: C901, PLR0912 - a table
        match subject:
            case n.NodeJoined(node=info):
                return info.name, f"joined with {plural(info.nproc, 'worker')} ({info.address})"
            case n.NodeReturned(node=node):
                return self._name(node), "is connected again"
            case n.NodeLost(node=node, silent_s=silent_s):
                gone = f"lost: silent for {silent_s:.1f} s" if silent_s else "gone with the launcher before"
                return self._name(node), gone
            case n.NodeLeft(node=node, reason=reason):
                return self._name(node), f"leaves: {reason}"
            case n.NodeToldToLeave(node=node, signal=number):
                return self._name(node), f"was told to leave, by {signal_name(number)}"
            case n.NodeCannotStart(name=name, reason=reason):
                return name, f"cannot start the job: {reason}"
            case n.NodeEvicted(name=name, reason=reason, by=by):
                return name, f"evicted by {by}: {reason or 'no reason given'}"
            case n.NodeReadmitted(name=name, by=by):
                return name, f"readmitted by {by}"
            case e.RankExited(rank=rank, exit_code=exit_code):
                return self._node_of(rank), f"rank {rank} {describe_exit(exit_code)}"
            case e.HangSuspected(rank=rank, reason=reason) if reason:
                where = "" if reason.startswith(OF_RECORDER) else "inside NCCL: "
                return self._node_of(rank), f"rank {rank}, {where}{reason}"
            case e.HangSuspected(rank=rank, waited_s=waited_s):
                return self._node_of(rank), f"rank {rank} has been waiting for its peers for {waited_s:.1f} s"
            case a.StandstillOver(attempt=attempt):
                return "", f"the ranks of attempt {attempt} go on"
            case e.SpawnFailed(rank=rank, message=message, node=node):
                return self._name(node), f"rank {rank} could not be started: {message}"
            case e.StoreLost(detail=detail, node=node):
                return self._name(node), f"the workers' store was lost: {detail}"
            case e.AttemptEnded(attempt=attempt, node=node, fenced_after_s=float(after_s)):
                return self._name(node), f"ended attempt {attempt} by itself: no controller for {after_s:.1f} s"
            case e.FirstStep(attempt=attempt, node=node) if attempt > self._first_step_of:
                self._first_step_of = attempt
                return self._name(node), f"attempt {attempt} made its first step"
            case c.NotFinite(rank=rank, step=step):
                return self._node_of(rank), f"rank {rank} has parameters that are NaN or infinite after step {step}"
            case c.CodeLacking(node=node, number=number, message=message):
                return self._name(node), f"cannot put version {number} in place: {message}"
            case e.SignalPassedOn(signal=number, ranks=ranks, node=node):
                return self._name(node), f"{signal_name(number)} passed on to {plural(len(ranks), 'rank')}"
            case a.Dismiss(node=node, exit_code=exit_code, reason=reason):
                return self._name(node), f"is told to end with exit code {exit_code}: {reason}"
        return "", ""

    def _job_words(self, subject: e.Event | a.Action) -> tuple[str, str]:
        match subject:
            case n.JobStarted():
                return "", "the job starts"
            case n.ControllerResumed(term=term, host=host):
                return host, f"a controller continues the job (term {term})"
            case e.Inquired(verdict=None, reason=reason):
                return "", f"all ranks were looked at: {reason or 'nothing is wrong'}"
            case n.RestartAsked(reason=reason, by=by):
                return "", f"restart asked for by {by}: {reason or 'no reason given'}"
            case e.SignalReceived(signal=number, again=again, by=by):
                return "", f"told to end by {by or signal_name(number)}{', at once' if again else ''}"
            case e.LimitNear(near=near):
                return "", "the time limit is near" if near else "the time limit was moved"
            case e.GuardLost():
                return "", "the process that the user started was killed"
            case a.StartAttempt(attempt=attempt, placements=placements) if len(placements) == subject.nodes:
                names = listed(self._name(placement.node) for placement in placements)
                size = f"{plural(subject.world_size, 'rank')} on {plural(subject.nodes, 'node')}"
                return "", f"attempt {attempt} starts: {size} ({names})"
            case a.EndAttempt(attempt=attempt, only=()):
                return "", f"attempt {attempt} is ended{_mildness(subject)}"
            case a.RecordIncident(verdict=verdict, action=action, reason=reason):
                return ", ".join(verdict.nodes[:2]), f"incident: {verdict.sentence}; {action}: {reason}"
            case a.Finish(outcome=outcome, exit_code=exit_code, reason=reason):
                return "", f"the job is over: {outcome}, exit code {exit_code}{': ' + reason if reason else ''}"
        return "", ""


def _check_words(subject: e.Event | a.Action) -> str:
    """Return what checks and the ladder say."""
    match subject:
        case Decided(rung=rung, sentence=sentence, rule=rule):
            return f"the ladder: {rung}: {sentence} [{rule}]"
        case Diagnosed(judgement=judged, took_s=took_s):
            found = plural(len(judged.suspects), "suspicion")
            return f"checks took {took_s:.0f} s: {found}, nothing was found on {plural(len(judged.passed), 'node')}"
        case StandbyChecked(name=name, admitted=admitted, sentence=sentence):
            return f"{name} {'is admitted' if admitted else 'is not admitted'}: {sentence}"
        case _:
            return ""


def _code_words(subject: e.Event | a.Action) -> str:
    match subject:
        case c.CodeCaptured(version=version):
            commit = f", commit {version.commit[:10]}" if version.commit else ""
            return f"the code is version 1 ({version.source}{commit})"
        case c.UpdateStaged(version=version, now=now):
            return f"{words(version)} is staged{' and put in place at once' if now else ''}"
        case c.UpdateRefused(reason=reason, by=by):
            return f"an update by {by or 'an unknown user'} was not taken: {reason}"
        case c.UpdateDue(number=number):
            return f"version {number} has waited for a failure long enough"
        case c.RollbackAsked(to=to, by=by, reason=reason):
            which = f" to version {to}" if to else ""
            return f"rollback{which} asked for by {by}: {reason or 'no reason given'}"
    return ""


def _start_words(subject: e.Event | a.Action) -> str:
    """Return where attempts start from."""
    match subject:
        case ResumeChosen():
            return sentence(subject, subject.passed_over, subject.unsure)
        case NoResumePoint(attempt=attempt, reason=reason):
            return f"attempt {attempt} does not start: {reason}"
        case _:
            return ""


def _mildness(order: a.EndAttempt) -> str:
    if not order.signal:
        return ""
    return f": {signal_name(order.signal)}, SIGKILL after {order.grace_s:g} s"


_DECODER = json_decoder(JournalEntry)
