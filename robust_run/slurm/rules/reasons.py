"""Why Slurm ends a job, and whether it goes back into the queue. Pure.

                 state in `scontrol show job`     what else tells
scancel          CANCELLED
time limit       TIMEOUT                          or EndTime is over
preemption       PREEMPTED                        or RUNNING and PreemptTime is set: its grace time runs
requeue          PENDING, REQUEUED, SPECIAL_EXIT  or Restarts has grown
"""

from __future__ import annotations

import msgspec

from robust_run.launcher.core.restart import NEVER_AGAIN
from robust_run.slurm.rules.types import Reason, SlurmEnded, SlurmJobFacts

SLACK_S = 90.0
"""slurmctld looks at time limits every half minute, so a job may end that much after its EndTime; clocks differ too."""

MOST_BARREN = 3
"""Starts in a row that brought nothing: what ends them at once would end the next one too, and nobody looks at night."""

SENTENCES: dict[str, str] = {
    "time_limit": "the job's time limit is near",
    "preempted": "the job was preempted",
    "cancelled": "the job was cancelled",
    "requeued": "the job is being requeued",
    "warned": "the job was warned by a signal",
}


class RequeueDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done when the launcher has ended."""

    requeue: bool
    why: str
    """As a clause."""


def classify(facts: SlurmJobFacts, restart: int, now_s: float) -> Reason:
    """Return why a job was told to end, from what Slurm says of it now."""
    state = facts.state.partition(" ")[0]
    if state.startswith("CANCELLED"):
        return "cancelled"
    if state == "PREEMPTED" or (facts.preempted_unix_s is not None and facts.preempted_unix_s <= now_s + SLACK_S):
        return "preempted"
    if facts.restarts > restart or state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"):
        return "requeued"
    if state in ("TIMEOUT", "DEADLINE") or (facts.end_unix_s is not None and now_s >= facts.end_unix_s - 1.0):
        return "time_limit" if state in ("RUNNING", "TIMEOUT", "DEADLINE") else ""
    return ""


def is_over(facts: SlurmJobFacts) -> bool:
    """Whether Slurm has ended the job: its EndTime is then no limit, but when that was."""
    return facts.state.partition(" ")[0] not in ("", "RUNNING", "SUSPENDED", "STOPPED", "CONFIGURING", "PENDING")


def decide(ended: SlurmEnded, requeue: str) -> RequeueDecision:
    """Return whether the job shall be requeued. `requeue` is what --requeue says."""
    if requeue == "never":
        return RequeueDecision(requeue=False, why="--requeue never")
    if ended.exit_code == NEVER_AGAIN:
        return RequeueDecision(requeue=False, why=f"exit code {NEVER_AGAIN} says that it is not to be started again")
    if ended.warned == "preempted" and ended.outcome != "done":
        # Slurm gives notice to the steps first. If they end within the grace time, the script does too, and the job is over.
        return RequeueDecision(requeue=True, why=SENTENCES["preempted"])
    if ended.is_orphan and ended.warned not in ("preempted", "requeued", "cancelled"):
        return RequeueDecision(requeue=True, why="the batch script was lost with its node, and what follows in it")
    if ended.exit_code == 0 or ended.outcome == "done":
        return RequeueDecision(requeue=False, why="the job is done")
    if ended.warned in ("requeued", "cancelled"):
        return RequeueDecision(requeue=False, why=f"{SENTENCES[ended.warned]}, which is Slurm's to follow up")
    if NEVER_AGAIN in ended.codes:
        return RequeueDecision(
            requeue=False, why=f"a worker's exit code {NEVER_AGAIN} says that it is not to be started again"
        )
    if ended.warned == "time_limit" and (ended.outcome != "failed" or ended.is_short):
        return RequeueDecision(requeue=True, why="its time is over")
    if ended.is_short and ended.barren >= MOST_BARREN:
        why = f"too few nodes are left, and {ended.barren} starts in a row made no step"
        return RequeueDecision(requeue=False, why=why)
    if ended.is_short:
        return RequeueDecision(requeue=True, why="too few nodes are left")
    return RequeueDecision(requeue=False, why="the job failed")


def is_requeued_already(facts: SlurmJobFacts, restart: int) -> bool:
    """Whether somebody else has put the job back into the queue."""
    return facts.restarts > restart or facts.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")


def end_of_work_s(end_unix_s: float, shutdown_timeout_s: float) -> float:
    """Return when the workers must be told to end, for the requeue to come before the time limit: it takes a while itself."""
    return end_unix_s - shutdown_timeout_s - REQUEUE_TAKES_S


REQUEUE_TAKES_S = 15.0
"""For asking slurmctld, several times if it is busy, before it ends the job as timed out."""
