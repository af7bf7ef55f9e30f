"""Restart policy: whether a failed job is started again. Pure.

`--max-restarts` counts restarts in a row that brought nothing, not restarts: a job that loses a worker every hour for a
month and gets further each time goes on, one that dies at the same place three times ends with what is known.
"""

from __future__ import annotations

import msgspec

from robust_run.launcher.model.job import Progress, VerdictDraft

#: Exceptions that the world raises rather than the program: the same one again may still be the same passing trouble.
PASSING = frozenset(
    "OSError IOError TimeoutError ConnectionError ConnectionResetError ConnectionRefusedError ConnectionAbortedError "
    "BrokenPipeError BlockingIOError InterruptedError socket.timeout socket.gaierror".split()
)


NEVER_AGAIN = 93
"""Exit code of a program that does not want to be started again, in this job or by a scheduler."""


class RestartLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the user allows."""

    max_restarts: int
    progress_after_s: float


class Trail(msgspec.Struct, frozen=True, kw_only=True):
    """What past attempts have shown."""

    restarts: int = 0
    """Restarts so far."""
    fruitless: int = 0
    """Restarts in a row that brought no progress."""
    best_steps: int = 0
    """Most optimizer steps one attempt has made."""
    best_reached: int = 0
    """Most steps that any has come to, with those of the checkpoint that it started from."""
    furthest_start: int = 0
    """Step of the furthest checkpoint that any started from."""
    last_signature: str = ""
    """Of the exception that ended the attempt before; empty if none did."""


class RestartDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Start again or not, and the clause that says why."""

    relaunch: bool
    reason: str


def has_progressed(trail: Trail, progress: Progress, limits: RestartLimits) -> bool:
    """Whether the attempt got somewhere: further in steps than any before, new checkpoint files, or a long life.

    Steps are counted from each attempt's own start. Where that is known, the sum counts; else only more than the best so far
    proves that it got further.
    """
    steps = progress.steps or 0
    further = steps > trail.best_steps or (trail.restarts > 0 and steps > 0 and _reached(progress) > trail.best_reached)
    return further or progress.files_advanced or progress.lived_s >= limits.progress_after_s


def _reached(progress: Progress) -> int:
    return (progress.start_step or 0) + (progress.steps or 0)


def _starts_further(trail: Trail, progress: Progress) -> bool:
    """Whether the attempt started from a later checkpoint than any before. The one that saved it did bring something, whatever
    the program counts as a step.
    """
    return trail.restarts > 0 and (progress.start_step or 0) > trail.furthest_start


def _fruitless_before(trail: Trail, progress: Progress) -> int:
    """Return how many restarts in a row brought nothing before this attempt."""
    return min(trail.fruitless, 1) if _starts_further(trail, progress) else trail.fruitless


def _with(trail: Trail, progress: Progress) -> Trail:
    """Return the trail with what an attempt has come to."""
    return msgspec.structs.replace(
        trail,
        best_steps=max(trail.best_steps, progress.steps or 0),
        best_reached=max(trail.best_reached, _reached(progress)),
        furthest_start=max(trail.furthest_start, progress.start_step or 0),
    )


def decide(
    trail: Trail, verdict: VerdictDraft, progress: Progress, limits: RestartLimits
) -> tuple[Trail, RestartDecision]:
    """Return the decision on a failed attempt, and the trail with this attempt in it."""
    progressed = has_progressed(trail, progress, limits)
    finding = verdict.culprit.finding if verdict.culprit else None
    is_code = verdict.kind == "code" and finding is not None
    signature = finding.signature if is_code and finding and finding.exception not in PASSING else ""
    repeated = bool(signature) and signature == trail.last_signature and not progressed
    fruitless = 0 if progressed else _fruitless_before(trail, progress)
    seen = msgspec.structs.replace(_with(trail, progress), fruitless=fruitless, last_signature=signature)
    if verdict.exit_code == NEVER_AGAIN:
        return seen, RestartDecision(
            relaunch=False, reason=f"exit code {NEVER_AGAIN} says that it is not to be started again"
        )
    if limits.max_restarts == 0:
        return seen, RestartDecision(relaunch=False, reason="--max-restarts is 0")
    if is_code and finding and not finding.heals:
        return seen, RestartDecision(relaunch=False, reason="running the same program again cannot mend this")
    if repeated:
        return seen, RestartDecision(relaunch=False, reason="the same exception came back after a restart")
    if fruitless >= limits.max_restarts:
        times = f"{fruitless} restart{'s' if fruitless > 1 else ''}"
        return seen, RestartDecision(relaunch=False, reason=f"{times} in a row brought no progress (--max-restarts)")
    if progressed:
        reason = "it had made progress"
    elif _starts_further(trail, progress):
        reason = "it had started from a later checkpoint than any before"
    else:
        reason = f"restart {fruitless + 1} of {limits.max_restarts} without progress"
    relaunched = msgspec.structs.replace(seen, restarts=seen.restarts + 1, fruitless=fruitless + 1)
    return relaunched, RestartDecision(relaunch=True, reason=reason)


def healed(trail: Trail, progress: Progress, limits: RestartLimits) -> tuple[Trail, RestartDecision]:
    """Return the trail after an attempt that ended for no fault of the program's (a lost node): it is always started again."""
    fruitless = 0 if has_progressed(trail, progress, limits) else _fruitless_before(trail, progress)
    seen = msgspec.structs.replace(
        _with(trail, progress), restarts=trail.restarts + 1, fruitless=fruitless, last_signature=""
    )
    return seen, RestartDecision(relaunch=True, reason="no fault of the program")
