"""Commands that the controller would carry out now: found by asking what refuses them, so that none is advised in vain. Pure."""

from __future__ import annotations

from collections.abc import Callable

from robust_run.launcher.core.ledger_queries import why_no_code
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.operator.views import check_operations, code_operations, operations
from robust_run.launcher.operator.views.code_words import RollbackWish
from robust_run.launcher.operator.views.operations import OperationRefusedError
from robust_run.report.pages.types import Accepts


def accepts(policy: CorePolicy, state: JobState, node: str = "") -> Accepts:
    """Return what a job whose controller answers would do if asked, about this host where one is named."""
    return Accepts(
        check=bool(node) and _granted(lambda: check_operations.choose(state, [node], ())),
        check_all=_granted(lambda: check_operations.choose(state, [], ())),
        evict=bool(node) and node not in state.evicted and _granted(lambda: operations.evictable(policy, state, node)),
        readmit=bool(node) and _granted(lambda: operations.readmittable(state, node)),
        restart=_granted(lambda: operations.restart(state, operations.OperatorWish())),
        update=not why_no_code(state.code) and _granted(lambda: code_operations.check_goes_on(state)),
        rollback=_granted(lambda: code_operations.rollback(state, RollbackWish())),
        code_log=has_code_log(state),
        join=policy.many and not (state.is_over or state.is_stopping),
    )


def accepts_unasked(state: JobState) -> Accepts:
    """Return what works of a job whose controller does not answer, or is over: what is read from the run directory."""
    return Accepts(code_log=has_code_log(state))


def has_code_log(state: JobState) -> bool:
    """Whether there is more to list than the code that the job was started with."""
    return len(state.code.records) > 1


def _granted(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except OperationRefusedError:
        return False
    return True
