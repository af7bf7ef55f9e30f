"""How a version of a role's code reaches its members, and what ends that. Pure.

    pending ──a member fails, and takes it up──┐
       │ its time has come, or --when now      ▼
       └────────────────────────────────► on probation ──all members run it and have proven it──► trusted
                                               │ a launcher rolls it back, or fails with it
                                               ▼
                                          rolled back: members that have it go back, one after the other

Rolling: a member is told to put the version in place when the one before is ready again and has lived for `SETTLE_S`, and when
enough others are ready that the role keeps its `fewest` without it; where it has no more than these, all others. What healthy
things look the same: a member that takes long to become ready stops nothing, the next one waits for it. Whose launcher is killed,
or whose node is lost, has not failed by the version.
"""

from __future__ import annotations

from collections.abc import Iterator

from robust_run.launcher.core import code_ledger
from robust_run.launcher.core import ledger_queries as queries
from robust_run.launcher.model.code_events import CodeVersion
from robust_run.orchestrator.model.spec import RoleSpec
from robust_run.orchestrator.model.state import UP, JobState, Member
from robust_run.orchestrator.model.update_words import (
    CodeFate,
    CodeLost,
    CodeSeen,
    RoleCode,
    TakeBackAsked,
    UpdateAsked,
    UpdateMember,
)
from robust_run.orchestrator.model.words import Action, SayLine, StartMember, WakeAt
from robust_run.orchestrator.rules.update_questions import (
    alive_of,
    is_spreading,
)

#: A member that was put on another version has lived with it for so long before the next one is.
SETTLE_S = 10.0
#: A member that was started with a version, and lives for so long, has proven it (as `--progress-after`).
PROOF_S = 600.0

CodeEvent = CodeSeen | CodeFate | CodeLost | UpdateAsked | TakeBackAsked


def take(state: JobState, event: CodeEvent, now_s: float) -> Iterator[Action]:
    """Take in what was asked for, or what a launcher says."""
    match event:
        case CodeSeen():
            yield from _seen(state, event)
        case CodeFate():
            yield from _fate(state, event, now_s)
        case UpdateAsked():
            yield from _asked(state, event)
        case CodeLost() if event.role in state.codes:
            yield from _is_bad(event.role, state.codes[event.role], event.number, event.why)
        case TakeBackAsked() if event.role in state.codes:
            yield from _taken_back(state, event)
        case CodeLost() | TakeBackAsked():
            pass


def _seen(state: JobState, event: CodeSeen) -> Iterator[Action]:
    """The first that is captured is the role's first; who has captured something else runs no version of it."""
    member = state.members.get(event.member)
    if member is None or member.serial != event.serial or member.seen == event.serial:
        return  # a leader that is started again reads what launchers said from the beginning
    member.seen = event.serial
    code = state.codes.setdefault(event.member.role, RoleCode())
    code.ledger = code_ledger.captured(code.ledger, event.version, 0)
    number = member.version or 1
    record = queries.record_of(code.ledger, number)
    has_it = record is not None and record.version.tree == event.version.tree
    if member.version and not has_it:
        yield SayLine(
            text=f"{event.member} could not be given version {number} of its code: it runs what lies in the folder"
        )
    member.version = number if has_it else 0


def _asked(state: JobState, event: UpdateAsked) -> Iterator[Action]:
    code = state.codes.get(event.role)
    is_old = code is not None and queries.is_pending(code.ledger, event.version)
    if code is None or (not is_old and queries.why_not(code.ledger, event.version)):
        return
    code.is_rolling = event.now or is_spreading(state, event.role)
    code.ledger = code_ledger.staged(code.ledger, event.version, 0.0)
    dues = [each for each in (code.due_s, event.due_s) if each] if not is_old else [event.due_s]
    code.due_s = min(dues, default=0.0)
    how = "is put in place, one member after the other" if code.is_rolling else "is put in place where a member fails"
    yield SayLine(text=f"{event.role}: {queries.all_words(code.ledger, event.version)} {how}")


def _taken_back(state: JobState, event: TakeBackAsked) -> Iterator[Action]:
    code = state.codes[event.role]
    target = queries.rollback_target(code.ledger, event.to)
    if target is None:
        return
    code.ledger = code_ledger.taken_back(code.ledger, event.to, event.why)
    code.is_rolling, code.due_s = True, 0.0
    yield SayLine(text=f"{event.role}: back to version {target.version.number}, {event.why}")


def _fate(state: JobState, event: CodeFate, now_s: float) -> Iterator[Action]:
    member, code = state.members.get(event.member), state.codes.get(event.member.role)
    if member is None or code is None or member.serial != event.serial or member.standing not in UP:
        return
    if event.number != member.ordered or event.fate == member.fate:
        return
    member.fate = event.fate
    if event.begins and member.begins_after < 0:
        member.begins_after = member.ordered_generation
    if event.fate in ("probation", "trusted"):
        if member.version != event.number:
            member.version_before, member.version, member.up_s = member.version, event.number, now_s
        if code.ledger.pending == event.number:  # its failure has put it in place: it is the first to try it
            code.ledger = code_ledger.begun(code.ledger, 0)
    elif event.fate in ("rolled_back", "refused"):
        if member.version == event.number:
            member.version = member.version_before
        yield from _is_bad(event.member.role, code, event.number, f"{event.member}: {event.why}")


def failed(state: JobState, member: Member, why: str) -> Iterator[Action]:
    """A member's launcher has failed by itself: by the version that it has, where that has not proven itself."""
    code = state.codes.get(member.name.role)
    if code is not None and member.version:
        yield from _is_bad(member.name.role, code, member.version, why)


def _is_bad(role: str, code: RoleCode, number: int, why: str) -> Iterator[Action]:
    if code.ledger.pending == number:
        code.ledger = code_ledger.begun(code.ledger, 0)
    version = queries.on_probation(code.ledger)
    if version is None or version.number != number:
        return
    name = queries.all_words(code.ledger, version)
    code.ledger = code_ledger.rolled_back(code.ledger, why)
    code.is_rolling, code.due_s = True, 0.0
    yield SayLine(text=f"{role}: {name} is rolled back to {code.ledger.running} ({why}); no other member gets it")


def start_version(state: JobState, member: Member) -> CodeVersion | None:
    """Return what a launcher of a member starts with; None: with what lies in the user's folder.

    What waits for a failure is taken up. What others are about to prove is not, before one of them has lived with it.
    """
    member.ordered, member.ordered_now, member.version_before, member.begins_after = 0, False, 0, -1
    code = state.codes.get(member.name.role)
    if code is None or not code.ledger.records:
        member.version = 0
        return None
    if code.ledger.pending and member.serial and not code.is_rolling:
        code.ledger = code_ledger.begun(code.ledger, 0)
    suspect = queries.on_probation(code.ledger)
    others = [each for each in state.of(member.name.role) if each.name != member.name]
    number = code.ledger.running
    if suspect is not None and any(each.standing in UP for each in others) and member.version != number:
        has_lived = any(each.version == number and each.fate == "trusted" for each in others)
        number = number if has_lived or not any(each.version == number for each in others) else code.ledger.trusted
    member.version, member.version_before = number, code.ledger.trusted
    member.fate = "probation" if suspect is not None and suspect.number == number else "trusted"
    return _started_with(state, member)


def start_again(state: JobState, member: Member) -> StartMember:
    """Return the order to start a launcher as it was given, for who may not have heard it."""
    devices = next(
        (state.nodes[node].devices_used.get(member.name, ()) for node in member.nodes if node in state.nodes), ()
    )
    return StartMember(
        member=member.name,
        serial=member.serial,
        nodes=member.nodes,
        devices=devices,
        code=_started_with(state, member),
    )


def _started_with(state: JobState, member: Member) -> CodeVersion | None:
    """Return the version that `start_version` has chosen."""
    code = state.codes.get(member.name.role)
    record = queries.record_of(code.ledger, member.version) if code is not None else None
    if record is None or not (record.version.tree or record.version.settings or record.version.env):
        return None
    return record.version


def spread(role: RoleSpec, state: JobState, now_s: float) -> Iterator[Action]:
    """Do what can be done now for a role's newest version."""
    code = state.codes.get(role.name)
    if code is None or not code.ledger.records or state.phase != "going":
        return
    members = state.of(role.name)[: state.wanted[role.name]]
    if code.due_s and now_s >= code.due_s:
        code.is_rolling, code.due_s = True, 0.0
    if code.is_rolling and code.ledger.pending:
        code.ledger = code_ledger.begun(code.ledger, 0)
    aim = code.ledger.pending or code.ledger.running
    if role.restart != "job":
        if code.is_rolling:
            yield from _next(role, code, members, aim, now_s)
        yield from _lazily(code, members, aim)
    yield from _proven(role, code, members, now_s)
    yield from _wake(code, members, now_s)


def _lazily(code: RoleCode, members: list[Member], aim: int) -> Iterator[Action]:
    """Tell those that run it to take it up at a failure; and those that still may, and must not, to leave it."""
    for member in members:
        if member.standing != "running" or member.ordered == aim or not member.version:
            continue
        waits_for_other = bool(member.ordered) and member.fate == "pending"
        if (member.version != aim and not code.is_rolling) or (member.version == aim and waits_for_other):
            yield _order(code, member, aim, now=False)


def _next(role: RoleSpec, code: RoleCode, members: list[Member], aim: int, now_s: float) -> Iterator[Action]:
    """Tell the next member, if it is its turn."""
    alive = alive_of(members)
    left = [member for member in alive if member.version != aim]
    if not left:
        code.is_rolling = queries.on_probation(code.ledger) is not None
        return
    for member in alive:
        in_the_air = member.ordered == aim and member.ordered_now and member.version != aim
        is_new = member.version == aim and (member.ordered == aim or member.fate == "probation")
        is_coming = member.standing != "running"
        if in_the_air or is_coming or (is_new and not _is_settled(member, now_s)):
            return
    turn = left[0]
    others = sum(member.is_ready for member in alive if member is not turn)
    if others >= min(role.fewest, len(alive) - 1):
        yield _order(code, turn, aim, now=True)


def _order(code: RoleCode, member: Member, number: int, *, now: bool) -> UpdateMember:
    record = queries.record_of(code.ledger, number)
    assert record is not None
    member.ordered, member.ordered_now, member.fate = number, now, ""
    member.ordered_generation, member.begins_after = member.generation, -1
    return UpdateMember(member=member.name, serial=member.serial, version=record.version, now=now)


def _is_settled(member: Member, now_s: float) -> bool:
    """Whether a member is ready with its version, and has been for a while."""
    return member.is_ready and member.generation > member.begins_after and now_s - member.up_s >= SETTLE_S


def _has_proven(member: Member, now_s: float) -> bool:
    return member.standing == "running" and (member.fate == "trusted" or now_s - member.up_s >= PROOF_S)


def _proven(role: RoleSpec, code: RoleCode, members: list[Member], now_s: float) -> Iterator[Action]:
    version = queries.on_probation(code.ledger)
    alive = alive_of(members)
    if version is None or not alive:
        return
    if all(member.version == version.number and _has_proven(member, now_s) for member in alive):
        name = queries.all_words(code.ledger, version)
        code.ledger = code_ledger.trusted(code.ledger, 0.0, "all members have proven it")
        yield SayLine(text=f"{role.name}: {name} has proven itself at {len(alive)} members, and is trusted from now on")


def _wake(code: RoleCode, members: list[Member], now_s: float) -> Iterator[Action]:
    """Ask for the next moment at which something may be due, once each."""
    moments = [code.due_s] if code.due_s else []
    if code.is_rolling:
        moments += [each.up_s + SETTLE_S for each in members if each.standing == "running"]
    if queries.on_probation(code.ledger) is not None:
        moments += [each.up_s + PROOF_S for each in members if each.standing == "running"]
    at_s = min((each for each in moments if each > now_s), default=0.0)
    if at_s and at_s != code.wake_s:
        code.wake_s = at_s
        yield WakeAt(at_s=at_s)
