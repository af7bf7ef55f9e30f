"""Operator requests about code versions: the event for the core and the answer, or why not. Pure."""

from __future__ import annotations

import math

import msgspec

from robust_run.errors import UserError
from robust_run.launcher.core import code_ledger as ledger
from robust_run.launcher.core import ledger_queries as queries
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.code_events import CodeVersion, Ledger, RollbackAsked, UpdateRefused, UpdateStaged
from robust_run.launcher.operator.views.code_words import MOVED, RefusedWish, RollbackWish, UpdateWish
from robust_run.launcher.operator.views.operations import Granted, OperationRefusedError, one_line
from robust_run.launcher.operator.views.status_types import ActionView
from robust_run.launcher.records.code.settings import MOST_SETTINGS, check_variables

# Limits of what a user may ask for: all of it goes into the journal.
LONGEST_DUE_S = 366 * 86400.0
MOST_VERSIONS = 10_000
MOST_LEFT_OUT = 32


def update(state: JobState, wish: UpdateWish, now_unix_s: float, *, has_code: bool) -> Granted:
    """Stage a version. Raises RefusedError: status 412 where another was staged meanwhile, so that it must be made anew."""
    check_goes_on(state)
    version = checked(state.code, wish, now_unix_s, has_code=has_code)
    due_unix_s = now_unix_s + wish.due_after_s if wish.due_after_s and not wish.now else 0.0
    event = UpdateStaged(version=version, now=wish.now, due_unix_s=due_unix_s)
    after = ledger.staged(state.code, version, due_unix_s)
    # An update of before may be due sooner.
    left_s = max(after.due_unix_s - now_unix_s, 1.0) if after.due_unix_s else 0.0
    done = f"{queries.all_words(after, version)} {_when(state, wish, left_s)}"
    return Granted(event=event, answer=ActionView(done=done))


def checked(code: Ledger, wish: UpdateWish, now_unix_s: float, *, has_code: bool) -> CodeVersion:
    """Return the version that is wanted as it may go on record. Raises OperationRefusedError: as `update`."""
    version = cleaned(wish.version, now_unix_s)
    if not has_code:
        raise OperationRefusedError(409, f"the code {version.tree[:10]!r} of this update has not been sent")
    newest = queries.head(code)
    is_old = queries.is_pending(code, version)
    if code.records and not is_old and (version.parents[:1] != (newest,) or version.number != len(code.records) + 1):
        raise OperationRefusedError(
            MOVED, f"version {len(code.records)} came in between; the update is to be made from {newest}"
        )
    why = "" if is_old else queries.why_not(code, version)
    if why or len(code.records) >= MOST_VERSIONS:
        raise OperationRefusedError(409, f"this update is not taken: {why or 'there are too many versions'}")
    if not (math.isfinite(wish.due_after_s) and 0 <= wish.due_after_s <= LONGEST_DUE_S):
        raise OperationRefusedError(400, f"due_after_s={wish.due_after_s} is no time")
    return version


def _when(state: JobState, wish: UpdateWish, left_s: float) -> str:
    if not state.is_going:
        return "is put in place by the next attempt"
    if wish.now:
        return f"is put in place now: attempt {state.attempt} is ended and {state.attempt + 1} runs it"
    if not left_s:
        return "is staged: the next attempt runs it, whenever a failure comes"
    return f"is staged: it runs from the next failure on, or in {_duration(left_s)} at the latest"


def _duration(seconds: float) -> str:
    for unit, length_s in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.3g} {unit}"
    return f"{seconds:.3g} s"


def cleaned(version: CodeVersion, now_unix_s: float) -> CodeVersion:
    """Return a version as it may go on record. Raises OperationRefusedError for one that may not."""
    words = {*version.settings, *version.settings.values(), *version.env, *version.env.values()}
    is_text = all("\0" not in word and len(word) <= 4096 for word in words)
    if not is_text or len(version.settings) > MOST_SETTINGS or len(version.env) > MOST_SETTINGS or not all(version.env):
        raise OperationRefusedError(400, "the update's arguments or variables are too many, too long, or no text")
    try:
        check_variables(version.env)
    except UserError as error:
        raise OperationRefusedError(400, str(error)) from None
    return msgspec.structs.replace(
        version,
        by=one_line(version.by),
        note=one_line(version.note),
        source=one_line(version.source),
        summary=one_line(version.summary),
        commit=one_line(version.commit),
        left_out=tuple(one_line(each) for each in version.left_out[:MOST_LEFT_OUT]),
        at_unix_s=now_unix_s,
    )


def refused(wish: RefusedWish) -> Granted:
    """Put an update on record that came to nothing."""
    event = UpdateRefused(reason=one_line(wish.reason), by=one_line(wish.by), note=one_line(wish.note))
    return Granted(event=event, answer=ActionView(done="noted"))


def rollback(state: JobState, wish: RollbackWish) -> Granted:
    """Take a version back. Raises RefusedError where there is nothing to go back to."""
    check_goes_on(state)
    code = state.code
    target = queries.rollback_target(code, wish.to)
    if target is None:
        raise OperationRefusedError(409, why_no_way_back(code, wish.to))
    number = target.version.number
    event = RollbackAsked(to=wish.to, reason=one_line(wish.reason), by=one_line(wish.by) or "operator")
    if number == code.running:
        done = f"version {code.pending} is taken back; version {number} goes on running"
    else:
        then = f"; attempt {state.attempt} is ended" if state.is_going else ""
        done = f"back to version {number}{then}"
    return Granted(event=event, answer=ActionView(done=done))


def why_no_way_back(code: Ledger, to: int) -> str:
    """Return why a rollback leads nowhere."""
    if not code.records:
        return "the code of this job was not captured, so there is nothing to go back to"
    if not to:
        return f"there is no version before {code.running} that was trusted; robust code log lists them"
    return _why_not_to(code, to)


def _why_not_to(code: Ledger, to: int) -> str:
    record = queries.record_of(code, to)
    if record is None:
        return f"there is no version {to}; robust code log lists them"
    if to == code.running:
        return f"version {to} runs already"
    if record.fate == "rolled_back":
        return (
            f"version {to} was rolled back: {record.why}; stage it again with robust update --again, and with --dir or --ref "
            "for its code"
        )
    return f"version {to} never was trusted ({record.why or record.fate}); robust code log lists them"


def check_goes_on(state: JobState) -> None:
    """Raise RefusedError for a job that is over, or about to be."""
    if state.is_over:
        raise OperationRefusedError(409, f"the job is over{f' ({state.finish.outcome})' if state.finish else ''}")
    if state.stop_signal is not None:
        raise OperationRefusedError(409, "the job is being stopped")
