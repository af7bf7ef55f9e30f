"""A time limit that is near: whether it is, what becomes of the job, until when there is time. Pure."""

from __future__ import annotations

import msgspec

from robust_run.launcher.model.job_parts import SlurmUse
from robust_run.slurm.rules.reasons import end_of_work_s
from robust_run.slurm.rules.types import SlurmJobFacts

#: A time limit that is this near is what a user's signal is about.
NEAR_S = 600.0
#: A clock may say so much less than what was asked for.
_SLACK_S = 1.0


class Limit(msgspec.Struct, frozen=True):
    """What is known of a limit that is near."""

    goes_on: bool
    """The job is ended in time, and requeued."""
    deadline_unix_s: float
    text: str
    """For people."""


def is_far(use: SlurmUse, end_unix_s: float, now_unix_s: float) -> bool:
    """Whether it is too early to warn: the limit was moved."""
    return end_unix_s > now_unix_s + use.warn_before_s + _SLACK_S


def is_meant(use: SlurmUse, end_unix_s: float | None, now_unix_s: float) -> bool:
    """Whether a user's signal (`--signal`) is about the limit."""
    return end_unix_s is not None and end_unix_s - now_unix_s <= max(NEAR_S, use.warn_before_s)


def limit(use: SlurmUse, facts: SlurmJobFacts | None, end_unix_s: float, shutdown_s: float, now_unix_s: float) -> Limit:
    """Return what is to be said and done. `shutdown_s`: workers have so long to end."""
    goes_on = use.requeue == "auto" and facts is not None and facts.is_batch and facts.may_requeue
    deadline = max(end_of_work_s(end_unix_s, shutdown_s), now_unix_s) if goes_on else end_unix_s
    what = "it is ended and requeued" if goes_on else "Slurm ends it"
    return Limit(goes_on, deadline, f"the time limit is near: {what} in {deadline - now_unix_s:.0f} s")
