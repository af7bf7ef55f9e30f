"""Code versions, the agent's side: gets what it lacks before workers start, and reports what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from robust_run.errors import RobustRunError
from robust_run.launcher.model.actions import StartAttempt
from robust_run.launcher.model.code_events import CodeLacking, NotFinite, StepsSurvived
from robust_run.launcher.model.events import NodeEvent
from robust_run.launcher.records.code.errors import LackingError

if TYPE_CHECKING:
    from robust_run.launcher.agent.attempt import Attempt
    from robust_run.launcher.agent.node import Node
    from robust_run.launcher.records.code.types import TreeParts
    from robust_run.store.turn_table import TurnTable

#: How long a version may take to come from the controller.
FETCH_S = 60.0


class AgentCode:
    """One agent's."""

    def __init__(
        self, node: Node, node_id: str, report: Callable[[NodeEvent], None], fetch: Callable[[str], bool]
    ) -> None:
        """`fetch` asks for a tree, and says whether there is anybody to ask."""
        self._node = node
        self._node_id = node_id
        self._report = report
        self._fetch = fetch
        self._asked: dict[str, float] = {}
        """Trees that were asked for and have not come, and when."""
        self._awaited: StartAttempt | None = None
        self._reported = -1
        self._makes_steps = False
        """Whether any attempt has made one on all ranks here, or the trusted version is known to."""
        self._lacks = -1
        self._came_bytes = 0
        self._table: TurnTable | None = None

    def is_ready(self, order: StartAttempt) -> bool:
        """Whether the version of an attempt is in place. If not, it was asked for, or `CodeLacking` was reported."""
        use = order.code
        assert use is not None
        self._awaited = None
        if self._lacks == order.attempt:
            return False
        if not self._node.code.place.has(use.tree) and self._ask(use.tree):
            self._awaited = order
            return False
        try:
            if self._node.code.prepare(use):
                self._node.forget_warm()
        except RobustRunError as error:
            self._lacking(order, str(error))
            return False
        return True

    @property
    def is_waiting(self) -> bool:
        """Whether an attempt waits for its code."""
        return self._awaited is not None

    def stage(self, tree: str) -> None:
        """Have a version here before it is needed."""
        if tree and not self._node.code.place.has(tree):
            self._ask(tree)

    def _ask(self, tree: str) -> bool:
        now_s = self._node.clock.monotonic_s()
        if now_s - self._asked.get(tree, float("-inf")) < FETCH_S:
            return True
        if not self._fetch(tree):
            return False
        self._asked[tree] = now_s
        self._take_turn()
        return True

    def _take_turn(self) -> None:
        """Have what else this node fetches let the code go first: nothing starts before it."""
        from robust_run.store import turn_table
        from robust_run.store.rules.turns import Urgency

        self._table = self._table or turn_table.opened(turn_table.begin({}))
        if self._table is not None:
            is_over = not self._asked
            waits = self._awaited is not None and not is_over
            self._table.say(turn_table.CODE, Urgency.SET_UP, self._came_bytes, 0, is_waited_for=waits, is_over=is_over)

    def forget_asked(self) -> None:
        """The connection was lost, and with it what was asked for."""
        self._asked.clear()

    def take(self, parts: TreeParts) -> bool:
        """Take in a part of a version; return whether it is complete."""
        order = self._awaited
        try:
            is_complete = self._node.code.place.take(parts)
        except RobustRunError as error:
            self._asked.pop(parts.tree, None)
            if order is not None and order.code is not None and order.code.tree == parts.tree:
                self._awaited = None
                self._lacking(order, str(error))
            elif not isinstance(error, LackingError):
                self._node.say(f"a version of the code cannot be kept here: {error}")
            return False
        if is_complete:
            self._asked.pop(parts.tree, None)
        self._came_bytes += len(parts.manifest) + sum(map(len, parts.objects))
        self._take_turn()
        return is_complete

    def _lacking(self, order: StartAttempt, message: str) -> None:
        assert order.code is not None
        self._lacks = order.attempt
        number = order.code.number
        self._report(CodeLacking(attempt=order.attempt, node=self._node_id, number=number, message=message))

    def look(self, attempt: Attempt | None) -> None:
        """Report once an attempt that its ranks have survived their first steps, or that one is no numbers any more."""
        now_s = self._node.clock.monotonic_s()
        if self._asked:
            self._take_turn()
        order = self._awaited
        if order is not None and order.code is not None and now_s - self._asked.get(order.code.tree, now_s) > FETCH_S:
            self._awaited = None
            self._lacking(order, f"it did not come within {FETCH_S:g} s")
        if attempt is None or attempt.is_ending or self._reported == attempt.number:
            return
        spec, code = self._node.spec, self._node.code
        found = code.survival(attempt.number, [worker.rank for worker in attempt.workers])
        if found.not_finite is not None:
            rank, step = found.not_finite
            self._reported = attempt.number
            self._report(NotFinite(attempt=attempt.number, node=self._node_id, rank=rank, step=step))
            return
        use = code.ground.use if code.ground is not None else None
        self._makes_steps = self._makes_steps or found.steps > 0 or (use is not None and use.makes_steps)
        lives = now_s - attempt.started_at_s >= spec.progress_after_s
        # Living proves a version only where no steps can: the one before made none either.
        is_proof = lives and not self._makes_steps and use is not None and use.on_probation
        if found.steps >= spec.probation_steps or is_proof:
            self._reported = attempt.number
            self._report(
                StepsSurvived(
                    attempt=attempt.number, node=self._node_id, steps=found.steps, step_s=round(found.step_s, 6)
                )
            )
