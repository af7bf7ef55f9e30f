"""What follows when a rank waits too long for its peers: evidence is asked for, and what it says is acted on. Pure."""

from __future__ import annotations

from typing import Literal

from robust_run.launcher.actions import Action, Inquire, RecordIncident, Say
from robust_run.launcher.core.attempts import end_attempt, failure_ending
from robust_run.launcher.core.judge import draft_of
from robust_run.launcher.core.nodes import recount
from robust_run.launcher.core.state import Eviction, JobState, Policy
from robust_run.launcher.events import HangSuspected, Inquired
from robust_run.tracer.types import TraceVerdict

#: Kinds that another machine may cure. A program that calls the wrong collective does so anywhere.
OF_MACHINES = ("hang", "stopped", "comm_stall", "slow", "unknown")


def take(policy: Policy, state: JobState, event: HangSuspected | Inquired, now_s: float) -> list[Action]:
    """Ask, or act on the answer."""
    if isinstance(event, HangSuspected):
        return suspected(state, event, now_s)
    return inquired(policy, state, event, now_s)


def suspected(state: JobState, event: HangSuspected, now_s: float) -> list[Action]:
    """Ask for the evidence, unless that has been done."""
    if state.phase != "running" or state.is_inquiring:
        return []
    state.is_inquiring, state.suspected_at_s = True, now_s
    return [Inquire(attempt=event.attempt, after_s=event.after_s)]


def inquired(policy: Policy, state: JobState, event: Inquired, now_s: float) -> list[Action]:
    """Act on what the evidence says; of an attempt that is being ended it only says why that was."""
    verdict = event.verdict
    if verdict is None or verdict.kind != "slow":
        state.is_inquiring = False
    if verdict is None:
        return []
    if state.phase == "ending":
        state.traced = state.traced or verdict
        return []
    if state.phase != "running":
        return []
    wanted, reason = _wanted(policy, state, verdict)
    if wanted == "report":
        if _is_known(state, verdict):
            return []
        state.reported.append((verdict.kind, verdict.ranks, now_s))
        return [_report(state, verdict, reason, now_s)]
    state.traced, state.is_traced_end = verdict, True
    state.detected_at_s = state.suspected_at_s if state.suspected_at_s is not None else now_s
    actions: list[Action] = []
    if wanted == "evict":
        state.evicted_for = verdict.nodes
        for name in verdict.nodes:
            state.evicted[name] = Eviction(reason=verdict.sentence, by="robust-run", at_unix_s=event.at_unix_s)
            actions += [
                Say(text=f"{name} is evicted from the job: {verdict.sentence}", node=node) for node in _on(state, name)
            ]
        recount(state)
    return actions + end_attempt(state, failure_ending(policy, state))


def _is_known(state: JobState, verdict: TraceVerdict) -> bool:
    """Whether the same was reported since it began: a rank that was stuck, went on and is stuck again is news."""
    onset_s = verdict.onset_s if verdict.onset_s is not None else float("-inf")
    return any(
        (kind, ranks) == (verdict.kind, verdict.ranks) and onset_s <= at_s for kind, ranks, at_s in state.reported
    )


def _on(state: JobState, name: str) -> list[str]:
    return [member.info.id for member in state.members.values() if member.info.name == name and member.present]


def _wanted(
    policy: Policy, state: JobState, verdict: TraceVerdict
) -> tuple[Literal["report", "relaunch", "evict"], str]:
    """Return what to do, and why it is only reported where it is."""
    asked = policy.on_slow if verdict.kind == "slow" else policy.on_hang
    if asked != "report" and _is_suspect(state):
        return "relaunch", ""  # from the version before: what changed last is the first suspect, not a machine
    if asked == "report":
        return "report", "--on-slow report" if verdict.kind == "slow" else "--on-hang report"
    if asked == "auto" and verdict.at_work:
        return "report", "it uses CPU and may yet come; --on-hang relaunch would not wait"
    going = {name for name in verdict.nodes if name not in state.evicted}
    left = state.usable - sum(member.present and member.info.name in going for member in state.members.values())
    is_enough = left >= (policy.fewest if asked == "evict" else len(state.layout))
    if policy.many and going and verdict.kind in OF_MACHINES and asked != "relaunch" and is_enough:
        return "evict", ""
    if verdict.kind == "slow":
        return "report", "no node can take over"
    return "relaunch", ""


def _is_suspect(state: JobState) -> bool:
    """Whether the version that runs has yet to prove itself."""
    running = state.code.running
    return bool(running) and state.code.records[running - 1].fate == "probation"


def _report(state: JobState, verdict: TraceVerdict, reason: str, now_s: float) -> RecordIncident:
    since_s = state.suspected_at_s if state.suspected_at_s is not None else now_s
    return RecordIncident(
        attempt=state.attempt,
        symptom="slow" if verdict.kind == "slow" else "hang",
        onset_at_s=verdict.onset_s if verdict.onset_s is not None else since_s,
        detected_at_s=since_s if verdict.kind != "slow" else now_s,
        verdict=draft_of(verdict),
        action="report",
        reason=reason,
    )
