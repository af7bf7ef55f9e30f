"""What the leader answers about the code of roles: which versions there are, whether an update or a rollback is taken."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from robust_run.clock import Clock
from robust_run.errors import UserError
from robust_run.launcher.core import ledger_queries as queries
from robust_run.launcher.model.code_events import Ledger
from robust_run.launcher.operator.views.code_operations import checked, why_no_way_back
from robust_run.launcher.operator.views.code_words import MOVED, RollbackWish, UpdateWish
from robust_run.launcher.operator.views.operations import OperationRefusedError, one_line
from robust_run.launcher.records.code.tree_store import TreeStore
from robust_run.orchestrator.model.spec import RolesSpec
from robust_run.orchestrator.model.state import JobState
from robust_run.orchestrator.model.update_words import RoleCode, TakeBackAsked, UpdateAsked
from robust_run.orchestrator.rules import update_questions as questions
from robust_run.roles.words import Answer, CodeCall, RollbackCall, UpdateCall


class CodeDesk:
    """Of one job. `store`: the code of all roles; `tell`: takes in what is asked for."""

    def __init__(
        self,
        spec: RolesSpec,
        state: JobState,
        store: TreeStore,
        clock: Clock,
        tell: Callable[[UpdateAsked | TakeBackAsked], None],
    ) -> None:
        self.fetch: Callable[[str], None] | None = None
        """Asks other nodes for code: who asks for an update put it on the disk of one. None: there are none."""
        self._spec, self._state, self._store, self._clock, self._tell = spec, state, store, clock, tell

    def answer(self, call: CodeCall | UpdateCall | RollbackCall) -> Answer:
        """Return the answer to a question of somebody who knows the job's secret. Raises UserError."""
        if call.role not in self._spec.names:
            raise UserError(f"{self._spec.name} has no role {call.role!r}; it has {', '.join(self._spec.names)}")
        ledger = self._state.codes.get(call.role, RoleCode()).ledger
        if isinstance(call, CodeCall):
            return Answer(number=call.number, data=msgspec.json.encode(ledger))
        if self._state.phase not in ("going", "restarting"):
            raise UserError("the job is over, or about to be")
        try:
            if isinstance(call, UpdateCall) and self._is_coming(call):
                where = "on the disk of no node of the job that is here; run robust update on one of them"
                return Answer(
                    number=call.number, accepted=False, is_coming=True, error=f"the code of this update is {where}"
                )
            done = self._update(call, ledger) if isinstance(call, UpdateCall) else self._back(call, ledger)
        except OperationRefusedError as error:
            return Answer(number=call.number, accepted=False, error=str(error), has_moved=error.status == MOVED)
        except msgspec.MsgspecError as error:
            raise UserError(f"what was asked for cannot be read: {error}") from error
        return Answer(number=call.number, data=done.encode())

    def _is_coming(self, call: UpdateCall) -> bool:
        tree = msgspec.json.decode(call.wish, type=UpdateWish).version.tree
        if self.fetch is None or not tree or self._store.has(tree):
            return False
        self.fetch(tree)
        return True

    def _update(self, call: UpdateCall, ledger: Ledger) -> str:
        wish = msgspec.json.decode(call.wish, type=UpdateWish)
        tree = wish.version.tree
        if not ledger.records:
            raise UserError(f"the code of {call.role} has not been captured yet; try again in a moment")
        version = checked(ledger, wish, self._clock.unix_s(), has_code=not tree or self._store.has(tree))
        due_s = self._clock.monotonic_s() + wish.due_after_s if wish.due_after_s and not wish.now else 0.0
        goes_along = not wish.now and questions.is_spreading(self._state, call.role)
        self._tell(UpdateAsked(role=call.role, version=version, now=wish.now, due_s=due_s))
        name = f"{call.role}: {queries.words(version)}"
        if goes_along:
            return f"{name} goes with the version before it, which is put in place now, one member after the other"
        if not wish.now:
            return f"{name} is staged: each member takes it up at its next failure" + (
                f", all of them in {wish.due_after_s / 3600:.3g} h at the latest" if wish.due_after_s else ""
            )
        if self._spec.role(call.role).restart == "job":
            return f"{name} is put in place now: all roles begin again"
        return f"{name} is put in place now, one member after the other"

    def _back(self, call: RollbackCall, ledger: Ledger) -> str:
        wish = msgspec.json.decode(call.wish, type=RollbackWish)
        target = queries.rollback_target(ledger, wish.to)
        if target is None:
            raise OperationRefusedError(409, why_no_way_back(ledger, wish.to))
        by = one_line(wish.by) or "operator"
        why = f"taken back by {by}" + (f": {one_line(wish.reason)}" if wish.reason else "")
        self._tell(TakeBackAsked(role=call.role, to=wish.to, why=why))
        return f"{call.role}: back to version {target.version.number}, one member after the other"
