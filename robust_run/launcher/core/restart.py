"""Restart policy: whether a failed job is started again. Pure.

`--max-restarts` counts restarts in a row that brought nothing, not restarts: a job that loses a worker every hour for a
month and gets further each time goes on, one that dies at the same place three times ends with what is known. It guards against a
program that fails by itself, so what is known to be another's fault is not counted: a node that was lost or evicted, a node that
checks have found at fault, and for a quarter of an hour storage that fails a job which has trained before.
"""

from __future__ import annotations

import msgspec

from robust_run.launcher.model.job import Progress, VerdictDraft

#: Exceptions that the world raises rather than the program: the same one again may still be the same passing trouble.
PASSING = frozenset(
    "OSError IOError TimeoutError ConnectionError ConnectionResetError ConnectionRefusedError ConnectionAbortedError "
    "BrokenPipeError BlockingIOError InterruptedError socket.timeout socket.gaierror".split()
)


#: So long storage may fail a job that has trained before, and it does not count: outages take minutes.
OUTAGE_S = 900.0
#: Restarts meanwhile are so far apart: the second by the first of these, then by twice as much each time, up to the other.
PAUSE_S, LONGEST_PAUSE_S = 5.0, 120.0
#: An exception that comes back after so few steps is not outrun: a job that saves each step would die of it for ever.
MEAGRE_STEPS = 1


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
    has_trained: bool = False
    """An attempt brought progress: the program, its arguments and its paths were right once."""
    outage_since_s: float | None = None
    """When storage failed first, in a row without progress; None: it did not."""
    outage_restarts: int = 0
    """Restarts since then for that reason."""


class RestartDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Start again or not, and the clause that says why."""

    relaunch: bool
    reason: str
    pause_s: float = 0.0
    """Not before so much later."""
    is_spent: bool = False
    """Nothing but --max-restarts speaks against it."""


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


def _is_meagre(trail: Trail, signature: str, progress: Progress, limits: RestartLimits) -> bool:
    """Whether the exception of the attempt before came back after a step at most: further by that much is no way out of it."""
    is_same = bool(signature) and signature == trail.last_signature
    is_short = (
        progress.steps is not None and progress.steps <= MEAGRE_STEPS and progress.lived_s < limits.progress_after_s
    )
    return is_same and is_short


def _with(trail: Trail, progress: Progress, limits: RestartLimits) -> Trail:
    """Return the trail with what an attempt has come to."""
    if has_progressed(trail, progress, limits):
        trail = msgspec.structs.replace(trail, has_trained=True, outage_since_s=None, outage_restarts=0)
    return msgspec.structs.replace(
        trail,
        best_steps=max(trail.best_steps, progress.steps or 0),
        best_reached=max(trail.best_reached, _reached(progress)),
        furthest_start=max(trail.furthest_start, progress.start_step or 0),
    )


def decide(
    trail: Trail, verdict: VerdictDraft, progress: Progress, limits: RestartLimits, now_s: float = 0.0
) -> tuple[Trail, RestartDecision]:
    """Return the decision on a failed attempt, and the trail with this attempt in it."""
    progressed = has_progressed(trail, progress, limits)
    finding = verdict.culprit.finding if verdict.culprit else None
    is_code = verdict.kind == "code" and finding is not None
    signature = finding.signature if is_code and finding and finding.exception not in PASSING else ""
    repeated = bool(signature) and signature == trail.last_signature and not progressed
    is_meagre = progressed and _is_meagre(trail, signature, progress, limits)
    fruitless = _fruitless(trail, progress, progressed=progressed, is_meagre=is_meagre)
    seen = msgspec.structs.replace(_with(trail, progress, limits), fruitless=fruitless, last_signature=signature)
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
    if finding is not None and finding.kind == "storage" and seen.has_trained:
        seen = msgspec.structs.replace(
            seen, outage_since_s=now_s if seen.outage_since_s is None else seen.outage_since_s
        )
        if now_s - (seen.outage_since_s or 0.0) < OUTAGE_S:
            return _waited_out(seen, progressed=progressed)
    if fruitless >= limits.max_restarts:
        times = f"{fruitless} restart{'s' if fruitless > 1 else ''}"
        little = ", a step at most," if is_meagre else ""
        reason = f"{times} in a row brought no progress{little} (--max-restarts)"
        return seen, RestartDecision(relaunch=False, reason=reason, is_spent=not is_meagre)
    if is_meagre:
        reason = f"restart {fruitless + 1} of {limits.max_restarts}: the same exception came back after a step"
    elif progressed:
        reason = "it had made progress"
    elif _starts_further(trail, progress):
        reason = "it had started from a later checkpoint than any before"
    else:
        reason = f"restart {fruitless + 1} of {limits.max_restarts} without progress"
    relaunched = msgspec.structs.replace(seen, restarts=seen.restarts + 1, fruitless=fruitless + 1)
    return relaunched, RestartDecision(relaunch=True, reason=reason)


def _fruitless(trail: Trail, progress: Progress, *, progressed: bool, is_meagre: bool) -> int:
    if is_meagre:
        return trail.fruitless
    return 0 if progressed else _fruitless_before(trail, progress)


def _waited_out(seen: Trail, *, progressed: bool) -> tuple[Trail, RestartDecision]:
    """Return the decision on a failure of storage that may pass: tried again, a little later each time, and not counted."""
    number = seen.outage_restarts
    pause_s = 0.0 if not number else min(PAUSE_S * 2.0 ** min(number - 1, 10), LONGEST_PAUSE_S)
    later = f" in {pause_s:g} s" if pause_s else ""
    reason = f"storage may come back: tried again{later}, and not counted for {OUTAGE_S / 60:g} min from the first time"
    after = msgspec.structs.replace(seen, restarts=seen.restarts + 1, outage_restarts=number + 1)
    said = "it had made progress" if progressed and not number else reason
    return after, RestartDecision(relaunch=True, reason=said, pause_s=pause_s)


def excused(trail: Trail, failures: int) -> Trail:
    """Return the trail where so many failures in the row are known to be those of a node that is out now: they do not count."""
    return msgspec.structs.replace(trail, fruitless=max(trail.fruitless - failures, 0))


def from_now(trail: Trail, now_s: float) -> Trail:
    """Return the trail by another clock: how long no controller was there is not known, so no time went by."""
    return trail if trail.outage_since_s is None else msgspec.structs.replace(trail, outage_since_s=now_s)


def healed(trail: Trail, progress: Progress, limits: RestartLimits) -> tuple[Trail, RestartDecision]:
    """Return the trail after an attempt that ended for no fault of the program's (a lost node): it is always started again."""
    fruitless = 0 if has_progressed(trail, progress, limits) else _fruitless_before(trail, progress)
    seen = msgspec.structs.replace(
        _with(trail, progress, limits), restarts=trail.restarts + 1, fruitless=fruitless, last_signature=""
    )
    return seen, RestartDecision(relaunch=True, reason="no fault of the program")
