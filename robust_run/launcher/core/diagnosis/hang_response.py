"""Response to a suspected hang: evidence is asked of all ranks, and what it says is acted on. Pure.

A wait is said at once and acted on by what is known. A healthy rank that sleeps, polls, or waits for a service, a person or a CPU
looks like one that is stuck, so only what is proven is acted on at once: calls that can never be one call, a circle of ranks, a
peer that has ended, one rank stopped alone, threads that hold each other's locks. Where all have come to a call and nothing moves
in it, the network is given one or two minutes to come back. A wait for a person is never acted on. Everything else has the time
that torch gives it, the timeout of the process group: shortly before that is over the ranks are looked at again; if the wait goes
on, the job starts anew, before torch aborts it.
What comes back meanwhile is left alone: evidence is always taken anew before something is done. Ranks that still run when the
others have ended with exit code 0 are named, and the job is never started again for their sake: the training is done.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.launcher.core.attempts import end_attempt, failure_ending
from robust_run.launcher.core.diagnosis import standstill
from robust_run.launcher.core.membership import counts, evict
from robust_run.launcher.core.resume import leftovers
from robust_run.launcher.core.resume.leftovers import report, wake
from robust_run.launcher.core.state import CorePolicy, Eviction, JobState
from robust_run.launcher.model.actions import Action, Inquire, Say
from robust_run.launcher.model.events import HangSuspected, Inquired, WaitOver
from robust_run.report.summary import duration
from robust_run.tracer.types import TraceVerdict

#: Of slowness inside NCCL: its rules were only tried on a model (see docs/nccl.md).
ONLY_TOLD = "what NCCL's counters say of slowness is told, and acted on by people: robust check, robust evict"
#: Of a job that is slower than it was.
NO_MACHINE = "peers and sensors do not both say that another machine would do better"
#: Kinds that another machine may cure. A program that calls the wrong collective does so anywhere.
OF_MACHINES = ("hang", "stopped", "comm_stall", "slow", "unknown")
#: torch's own timeout where a process group's is not known.
LIMIT_S = 1800.0
#: So long before a timeout something is done.
MARGIN_S = 30.0
#: Who makes a group with a time limit shorter than this may catch its end and go on: it is acted on so long after that.
SHORT_S, AFTER_S = 300.0, 10.0
#: So many attempts are ended for a wait at one place that is not proven. Then it is only reported: the program waits there.
MOST_UNPROVEN = 3
#: After each of them it is given so many times as long, where `--hang-patience` says how long.
BACK_OFF = 2.0
#: Where ranks do on another node what one was evicted for so long before, it goes with them: it is no node's fault.
FOLLOWS_S = 12 * 3600.0
#: By whom a node is evicted that keeps its peers waiting.
BY_HANG = "robust-run"
#: A rule of the tracer: a peer that has ended while others wait for it.
EARLY_EXIT = "early_exit"


def take(policy: CorePolicy, state: JobState, event: HangSuspected | WaitOver | Inquired, now_s: float) -> list[Action]:
    """Ask, or act on the answer."""
    if isinstance(event, WaitOver):
        return [*standstill.over(state, event)]
    if isinstance(event, HangSuspected):
        standstill.waits(state, event)
        return suspected(state, event, now_s)
    return inquired(policy, state, event, now_s)


def suspected(state: JobState, event: HangSuspected, now_s: float) -> list[Action]:
    """Ask for the evidence, unless that has been done."""
    if state.phase != "running" or state.is_inquiring:
        return []
    state.is_inquiring, state.suspected_at_s = True, now_s
    return [Inquire(attempt=event.attempt, after_s=event.after_s)]


def inquired(policy: CorePolicy, state: JobState, event: Inquired, now_s: float) -> list[Action]:
    """Act on what the evidence says; of an attempt that is being ended it only says why that was."""
    verdict = event.verdict
    if state.looks_at_leftovers and state.phase == "running" and (verdict is None or verdict.rule == leftovers.RULE):
        return leftovers.seen(state, verdict, now_s)
    if verdict is None or verdict.kind != "slow":
        state.is_inquiring = False
    if verdict is None:
        return _lifted(state)
    if state.phase == "ending":
        state.traced = state.traced or verdict
        return []
    if state.phase != "running":
        return []
    wanted, reason = _wanted(policy, state, verdict, event.at_unix_s, now_s)
    if wanted == "report":
        told = []
        if not _is_known(state, verdict):
            told = [report(state, verdict, reason, now_s, stands_still=standstill.begins(state, verdict))]
        state.reported += [(verdict.kind, verdict.ranks, now_s)] if told else []
        return [*told, *wake(state)] if state.act_at_s is not None else [*told]
    if wanted == "suspend":
        return _suspend(policy, state, verdict, now_s)
    return _act(policy, state, verdict, wanted, event.at_unix_s, now_s)


def _lifted(state: JobState) -> list[Action]:
    """No rank waits any more."""
    if state.phase != "running" or state.act_at_s is None:
        return []
    state.act_at_s = None
    return wake(state)


def _act(
    policy: CorePolicy, state: JobState, verdict: TraceVerdict, wanted: str, at_unix_s: float, now_s: float
) -> list[Action]:
    """End the attempt for what a verdict says."""
    if not verdict.proven:
        state.unproven_ends[verdict.where] = state.unproven_ends.get(verdict.where, 0) + 1
    state.traced, state.is_traced_end = verdict, True
    state.detected_at_s = state.suspected_at_s if state.suspected_at_s is not None else now_s
    actions: list[Action] = []
    if wanted == "evict":
        asked = policy.on_slow if verdict.kind == "slow" else policy.on_hang
        state.evicted_for, weighed = _whom(policy, state, verdict, asked, now_s)
        if weighed:
            state.traced = msgspec.structs.replace(verdict, evidence=(*verdict.evidence, weighed))
        if state.evicted_for:
            state.cured[verdict.kind, verdict.ranks] = (", ".join(state.evicted_for), at_unix_s)
        for name in state.evicted_for:
            actions += evict(state, name, Eviction(reason=verdict.sentence, by=BY_HANG, at_unix_s=at_unix_s))
            actions += [
                Say(text=f"{name} is evicted from the job: {verdict.sentence}", node=node) for node in _on(state, name)
            ]
    return actions + end_attempt(state, failure_ending(policy, state))


def _suspend(policy: CorePolicy, state: JobState, verdict: TraceVerdict, now_s: float) -> list[Action]:
    """End the attempt so that the rates of its nodes can be measured while nothing trains."""
    from robust_run.launcher.core.ladder import suspending

    state.traced, state.is_traced_end = verdict, True
    return suspending.suspend(policy, state, "slow", "", _slow_key(verdict), now_s)


def _slow_key(verdict: TraceVerdict) -> str:
    return f"slow {','.join(verdict.nodes)}"


def _is_known(state: JobState, verdict: TraceVerdict) -> bool:
    """Whether the same was reported since it began: a rank that was stuck, went on and is stuck again is news."""
    onset_s = verdict.onset_s if verdict.onset_s is not None else float("-inf")
    return any(
        (kind, ranks) == (verdict.kind, verdict.ranks) and onset_s <= at_s for kind, ranks, at_s in state.reported
    )


def _on(state: JobState, name: str) -> list[str]:
    return [member.info.id for member in state.members.values() if member.info.name == name and member.present]


def _wanted(
    policy: CorePolicy, state: JobState, verdict: TraceVerdict, at_unix_s: float, now_s: float
) -> tuple[Literal["report", "relaunch", "evict", "suspend"], str]:
    """Return what to do, and why it is only reported where it is. Notes when something is done about a wait that goes on."""
    asked = policy.on_slow if verdict.kind == "slow" else policy.on_hang
    state.act_at_s = state.act_at_s if verdict.kind == "slow" else None
    if told := _why_only_told(verdict, asked):
        return "report", told
    if asked == "diagnose":
        from robust_run.launcher.core.ladder import suspending

        why_not = suspending.why_not(policy, state, _slow_key(verdict), now_s)
        return "report" if why_not else "suspend", why_not
    if state.ended_well and not _is_unfinished(verdict):
        return "report", leftovers.not_again(state)
    if asked == "auto" and verdict.for_person:
        return "report", "a person at a terminal or a debugger may go on with it"
    if asked == "auto":
        times = 0 if verdict.proven else state.unproven_ends.get(verdict.where, 0)
        if times >= MOST_UNPROVEN:
            return "report", f"the job was started again {times} times for a wait there, and waits there again"
        act_at_s, why = _act_at_s(policy, verdict, times, now_s)
        if now_s < act_at_s:
            state.act_at_s = act_at_s
            still = "it is at work" if verdict.at_work else "it may end by itself"
            return "report", f"{still}; else the attempt is ended in {duration(act_at_s - now_s)}, {why}"
        if verdict.at_work:
            return "report", "it is at work and may yet come; --on-hang relaunch would not wait"
    if _is_suspect(state):
        return "relaunch", ""  # from the version before: what changed last is the first suspect, not a machine
    why_not = _why_no_node(policy, state, verdict, at_unix_s)
    if verdict.kind in OF_MACHINES and asked != "relaunch" and not why_not:
        if _whom(policy, state, verdict, asked, now_s)[0]:
            return "evict", ""
        why_not = "no node can take over"
    return ("report", why_not) if verdict.kind == "slow" else ("relaunch", "")


def _why_no_node(policy: CorePolicy, state: JobState, verdict: TraceVerdict, at_unix_s: float) -> str:
    """Return why no node is evicted, whoever could take over; empty: one may be.

    A program that stops or computes longer in one rank does so wherever that rank is, and would use up one standby after the
    other.
    """
    from robust_run.launcher.core.ladder.suspects import evict_share

    if evict_share(policy) <= 0:
        return "--max-evict-share 0: rules evict no node"
    node, then_unix_s = state.cured.get((verdict.kind, verdict.ranks), ("", 0.0))
    if node and at_unix_s - then_unix_s < FOLLOWS_S:
        who = "the same rank" if len(verdict.ranks) == 1 else "the same ranks"
        return f"{node} was evicted for {who} before: it is the program or its data, not a node"
    return ""


def _why_only_told(verdict: TraceVerdict, asked: str) -> str:
    """Return why a verdict is told whatever else is the case; empty: it may be acted on."""
    if asked == "report":
        return "--on-slow report" if verdict.kind == "slow" else "--on-hang report"
    if verdict.only_told:
        return _why_slowness_is_only_told(verdict) if verdict.kind == "slow" else "nobody is seen to wait for it"
    return ""


def _why_slowness_is_only_told(verdict: TraceVerdict) -> str:
    return ONLY_TOLD if verdict.rule.startswith("nccl_") else NO_MACHINE


def _whom(
    policy: CorePolicy, state: JobState, verdict: TraceVerdict, asked: str, now_s: float
) -> tuple[tuple[str, ...], str]:
    """Return whom to evict for a verdict, and what was weighed if that is not all that it names.

    Nodes that are named for certain go if others can take over for all of them. Where one of several is at fault and it is not
    known which, those go that are covered, within `--max-evict-share`.
    """
    going = tuple(name for name in dict.fromkeys(verdict.nodes) if name not in state.evicted)
    if not policy.many or not going:
        return (), ""
    here = sum(m.info.name in going and counts(state, m) for m in state.members.values())
    needed = policy.fewest if asked == "evict" else len(state.layout)
    if not verdict.over_evicted or len(going) == 1:
        return (going if state.usable - here >= needed else ()), ""
    from robust_run.launcher.core.ladder import covering

    return covering.whom(policy, state, going, spare=max(state.usable - needed, 0), now_s=now_s)


def _is_unfinished(verdict: TraceVerdict) -> bool:
    """Whether a verdict on ranks of which others have ended with exit code 0 says that the training is not done."""
    return verdict.kind in ("slow", "crash") or (verdict.proven and verdict.rule == EARLY_EXIT)


def _act_at_s(policy: CorePolicy, verdict: TraceVerdict, times: int, now_s: float) -> tuple[float, str]:
    """Return when something may be done about a verdict, and why then: now if it is proven, else shortly before torch ends it.

    Sooner where `--hang-patience` says so; after each time that did not help it is given twice as long.
    """
    if verdict.proven:
        return now_s, ""
    onset_s = verdict.onset_s if verdict.onset_s is not None else now_s
    expires_s = verdict.expires_s if verdict.expires_s is not None else onset_s + LIMIT_S
    if 0.0 < expires_s - onset_s < SHORT_S and (policy.hang_patience_s is None or verdict.at_work):
        return expires_s + AFTER_S, "if it goes on after torch's own time limit, which is short"
    limit_s = expires_s - MARGIN_S
    if verdict.inside_since_s is not None and policy.hang_patience_s is None:
        patience_s = verdict.inside_patience_s * BACK_OFF**times
        if verdict.inside_since_s + patience_s < limit_s:
            return verdict.inside_since_s + patience_s, f"when nothing has moved for {duration(patience_s)}"
    if policy.hang_patience_s is not None and not verdict.at_work:
        patience_s = policy.hang_patience_s * BACK_OFF**times
        if onset_s + patience_s < limit_s:
            return onset_s + patience_s, "by --hang-patience"
    return limit_s, "shortly before torch's own time limit"


def _is_suspect(state: JobState) -> bool:
    """Whether the version that runs has yet to prove itself."""
    running = state.code.running
    return bool(running) and state.code.records[running - 1].fate == "probation"
