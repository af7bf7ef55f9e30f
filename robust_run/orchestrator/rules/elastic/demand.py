"""Members by demand: a role of `scale = "demand"` gives back who is idle, and gets more while its consumers wait for it. Pure.

A need counts once it has lasted, window after window, for `scale_after_s`. One window that says something else begins the count
anew; one in which nothing moved, as where items take minutes, adds nothing and takes half of itself away. What looks the same
and is healthy, and so says nothing:

- a thread that fetches the next item beside the work (see `elastic.window`);
- a member that warms up, pauses or was started in the window: others wait, and it seems busy, or idle;
- a trainer that saves, recovers or evaluates: nothing moves at its queues, and all who wait there wait for it, not for more;
- roles that take turns, as in synchronous training: each waits while the other works. Who is waited for has no member too many,
  and who waits itself would not give more with more members;
- a window that was lost or is long, since the leader was late or has just been started;
- a machine without CPU to spare: all wait, and one member more takes what is left.

Between giving back (those who are left are at most `GIVE_LOAD` busy) and taking (at least 1 - `BUSY`) lies room enough that the
one never causes the other. One member at a time, and then nothing for as long as evidence has to last. Who is given back first
frees room; where two roles want the same room, the one that lacks for longer has it, and no role grows while a member waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from robust_run.orchestrator.model.demand_state import Needs
from robust_run.orchestrator.model.demand_words import Measured, MemberDemand
from robust_run.orchestrator.model.spec import RoleSpec, RolesSpec
from robust_run.orchestrator.model.state import JobState, Member
from robust_run.orchestrator.model.words import Action, SayLine
from robust_run.orchestrator.rules.elastic import scaling
from robust_run.orchestrator.rules.placement import place

#: Windows in the time that evidence has to last.
WINDOWS = 20
#: A window that is longer, in windows, has a gap in it.
LONGEST, LATE_S = 1.5, 1.0
#: Those who are left after a member was given back would be busy for at most this share of their time.
GIVE_LOAD = 0.7
#: A role that waits for more than this share of its time would not do more with more members.
BUSY = 0.1
#: Its consumers wait for it: for at least this share of their time, where it lacks members; for at most, where it has too many.
LACK, CONTENT = 0.3, 0.05
MOST_ACTS = 5


def window_s(spec: RolesSpec) -> float:
    """Return how long a window is."""
    return spec.scale_after_s / WINDOWS


def take(spec: RolesSpec, state: JobState, event: Measured, now_s: float) -> Iterator[Action]:
    """Take in what was measured, and have one role grow or shrink by one member where that is known to be right."""
    lacking: list[tuple[float, RoleSpec, str]] = []
    for role in spec.roles:
        if role.scale != "demand":
            continue
        needs = state.needs.setdefault(role.name, Needs())
        is_known = state.phase == "going" and now_s - event.length_s >= needs.quiet_until_s and _is_whole(spec, event)
        too_many = _has_too_many(spec, state, role, event) if is_known else ""
        too_few = _has_too_few(spec, state, role, event) if is_known else ""
        needs.idles_s = _counted(needs.idles_s, too_many, event)
        needs.lacks_s = _counted(needs.lacks_s, too_few, event)
        if too_many and needs.idles_s >= spec.scale_after_s:
            yield from _act(spec, state, role, -1, too_many, now_s)
            return
        if too_few and needs.lacks_s >= spec.scale_after_s:
            lacking.append((-needs.lacks_s, role, too_few))
    for _, role, why in sorted(lacking, key=lambda each: each[0])[:1]:
        yield from _act(spec, state, role, +1, why, now_s)


def _counted(so_far_s: float, why: str | None, event: Measured) -> float:
    """Return for how long a need has lasted. A window in which nothing moved adds nothing, and takes half its length away: a
    long stop leaves nothing of what was known before it.
    """
    if why is None:
        return max(so_far_s - event.length_s / 2, 0.0)
    return so_far_s + event.length_s if why else 0.0


def _is_whole(spec: RolesSpec, event: Measured) -> bool:
    return 0.0 < event.length_s <= LONGEST * window_s(spec) + LATE_S


def _act(spec: RolesSpec, state: JobState, role: RoleSpec, by: int, why: str, now_s: float) -> Iterator[Action]:
    before = state.wanted[role.name]
    text = f"{role.name} is to have {before + by} members, not {before}: for {_duration(spec.scale_after_s)} {why}"
    yield SayLine(text=text)
    for name, needs in state.needs.items():  # the others' was measured beside another number of these
        state.needs[name] = Needs(quiet_until_s=needs.quiet_until_s, acts=needs.acts)
    yield from scaling.resized(role, state, before + by, now_s + spec.scale_after_s)
    needs = state.needs[role.name]
    needs.acts = (*needs.acts, text)[-MOST_ACTS:]


def _has_too_many(spec: RolesSpec, state: JobState, role: RoleSpec, event: Measured) -> str | None:
    """Return why one member less would do, as a clause; empty: it is not known to; None: nothing moved, so nothing is known."""
    running = _measured(state, role, event)
    wanted = state.wanted[role.name]
    left = [member for member in state.of(role.name)[: wanted - 1] if member.standing == "running"]
    if len(running) < 2 or len(left) < role.fewest:
        return ""
    idle = _mean(each.idle for each in running.values())
    if len(running) * (1.0 - idle) > GIVE_LOAD * (len(running) - 1):
        return ""
    queues = {queue for each in running.values() for queue in (*each.waits, *each.blocked)}
    if not all(_is_attended(spec, state, queue, event) for queue in queues):
        return ""
    if not all(_moves(event, queue) for queue in queues):
        return None
    made = {queue for each in running.values() for queue in each.put}
    if any(share > CONTENT for queue in made for share in _waits_for(spec, state, queue, event).values()):
        return ""
    return f"its members waited at queues for {idle:.0%} of their time, and nobody waited for them"


def _has_too_few(spec: RolesSpec, state: JobState, role: RoleSpec, event: Measured) -> str | None:
    """Return why one member more is needed and can be had, as a clause; empty and None: see `_has_too_many`."""
    running = _measured(state, role, event)
    wanted = state.wanted[role.name]
    if not running or event.is_starved or wanted >= role.most or not _has_room(state, role, wanted):
        return ""
    if _mean(each.idle for each in running.values()) > BUSY or not all(each.has_put for each in running.values()):
        return ""
    made = {queue for each in running.values() for queue in each.put}
    if not any(_moves(event, queue) for queue in made):
        return None
    for queue in sorted(made):
        if event.waiting.get(queue, 0) or not _moves(event, queue) or not _is_attended(spec, state, queue, event):
            continue
        for consumer, share in _waits_for(spec, state, queue, event).items():
            if share >= LACK and consumer != role.name:
                return (
                    f"{consumer} waited for items of {queue} for {share:.0%} of its time, and {role.name} did not wait"
                )
    return ""


def _has_room(state: JobState, role: RoleSpec, index: int) -> bool:
    members = state.of(role.name)
    waits = any(member.standing == "waits" for member in state.members.values())
    return not waits and index < len(members) and place(role, members[index], state.nodes) is not None


def _measured(state: JobState, role: RoleSpec, event: Measured) -> dict[str, MemberDemand]:
    """Return what was measured of all members of a role; nothing where one is not ready, or was not here all the time."""
    code = state.codes.get(role.name)
    members = [each for each in state.of(role.name) if each.standing not in ("held", "done", "given_up")]
    if (code is not None and code.is_rolling) or not all(_is_here(each, event) for each in members):
        return {}
    return {str(each.name): event.members[str(each.name)] for each in members}


def _is_here(member: Member, event: Measured) -> bool:
    found = event.members.get(str(member.name))
    return member.standing == "running" and member.is_ready and found is not None and found.is_whole


def _moves(event: Measured, queue: str) -> bool:
    """Whether items went in and out."""
    taken = any(each.took.get(queue) for each in event.members.values())
    return taken and any(each.put.get(queue) for each in event.members.values())


def _is_attended(spec: RolesSpec, state: JobState, queue: str, event: Measured) -> bool:
    """Whether all members of all roles at a queue are ready, and were here for the whole window."""
    for role in spec.roles:
        found = [each for name, each in event.members.items() if name.rpartition("/")[0] == role.name]
        is_there = any(queue in (*each.took, *each.put, *each.waits, *each.blocked) for each in found)
        if is_there and not _measured(state, role, event):
            return False
    return True


def _waits_for(spec: RolesSpec, state: JobState, queue: str, event: Measured) -> dict[str, float]:
    """Return for which share of their time roles waited for items of a queue."""
    shares = {
        role.name: [each.waits.get(queue) for each in _measured(state, role, event).values()] for role in spec.roles
    }
    return {
        name: _mean(share or 0.0 for share in found)
        for name, found in shares.items()
        if any(share is not None for share in found)
    }


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
