"""Parts of an agent that only some jobs need: code versions, checks, checkpoints; each imported and made when first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robust_run.launcher.agent.attempt import Attempt
    from robust_run.launcher.agent.checkpoint.ahead import CheckpointAhead
    from robust_run.launcher.agent.checkpoint.lookup import AgentCheckpoints
    from robust_run.launcher.agent.checks import AgentChecks
    from robust_run.launcher.agent.code import AgentCode
    from robust_run.launcher.agent.memory.keeper import MemoryKeeper
    from robust_run.launcher.agent.memory.memory import AgentMemory
    from robust_run.launcher.agent.node import Node
    from robust_run.launcher.agent.serving import Serving
    from robust_run.launcher.model.events import NodeEvent
    from robust_run.launcher.model.resume_events import SavedCheckpoint
    from robust_run.launcher.model.start_notes import Seen


class AgentParts:
    """Makes them of what the agent has; what none was made for is answered without making one."""

    def __init__(
        self,
        node: Node,
        node_id: str,
        report: Callable[[NodeEvent], None],
        deliver: Callable[[Seen], None],
        fetch_code: Callable[[str], bool],
        later: Callable[[float, Callable[[], None]], Any],
        on_idle: Callable[[], None],
    ) -> None:
        """`on_idle` is called when what held an attempt back is over."""
        self._node, self._node_id = node, node_id
        self._report, self._deliver, self._fetch_code = report, deliver, fetch_code
        self._later, self._on_idle = later, on_idle
        self._loop: Serving | None = None
        self._codes: AgentCode | None = None
        self._checks: AgentChecks | None = None
        self._checkpoints: AgentCheckpoints | None = None
        self._memory: AgentMemory | None = None
        self._ahead: CheckpointAhead | None = None

    def attach(self, loop: Serving) -> None:
        """Go on in a loop with what was begun before there was one."""
        self._loop = loop
        if self._checkpoints is not None:
            self._checkpoints.attach(loop.call_soon)
        if self._memory is not None:
            self._memory.attach(loop.listen)
        if self._ahead is not None:
            self._ahead.attach(loop.listen)

    @property
    def codes(self) -> AgentCode:
        """What is done about versions of the code."""
        if self._codes is None:
            from robust_run.launcher.agent.code import AgentCode

            self._codes = AgentCode(self._node, self._node_id, self._report, self._fetch_code)
        return self._codes

    @property
    def has_codes(self) -> bool:
        """Whether anything was done about them."""
        return self._codes is not None

    @property
    def checks(self) -> AgentChecks:
        """What is done about checks."""
        if self._checks is None:
            from robust_run.launcher.agent.checks import AgentChecks

            self._checks = AgentChecks(self._node, self._deliver, self._later, self._on_idle)
        return self._checks

    def end_checks(self) -> bool:
        """Have checks end here; whether none runs any more."""
        return self._checks is None or self._checks.end()

    def forget_asked(self) -> None:
        """Forget what was asked for: the connection was lost, and with it every answer."""
        self.end_checks()
        if self._codes is not None:
            self._codes.forget_asked()

    @property
    def checkpoints(self) -> AgentCheckpoints:
        """What is done about checkpoints to start from."""
        if self._checkpoints is None:
            from robust_run.launcher.agent.checkpoint.lookup import AgentCheckpoints

            held = self.memory.held if self._node.spec.ckpt_memory else None
            self._checkpoints = AgentCheckpoints(self._node.spec.resume_folder, self._deliver, held)
            if self._loop is not None:
                self._checkpoints.attach(self._loop.call_soon)
        return self._checkpoints

    @property
    def ahead(self) -> CheckpointAhead:
        """What is fetched ahead of a checkpoint at a URL."""
        if self._ahead is None:
            from robust_run.launcher.agent.checkpoint.ahead import CheckpointAhead

            node = self._node
            spec = node.spec
            self._ahead = node.early or CheckpointAhead(
                node.helpers.start, node.env, node.say, spec.ckpt_ahead_bytes, spec.ckpt_ahead_bytes_s
            )
            has_place = node.workplace.place is not None
            self._ahead.settle(node.sharing, node.run_directory.memory if has_place else "")
            node.fetches_of_checkpoint = self._ahead.fetches
            if self._loop is not None:
                self._ahead.attach(self._loop.listen)
        return self._ahead

    @property
    def fetches_ahead(self) -> bool:
        """Whether anything was fetched ahead."""
        return self._ahead is not None

    def stop_ahead(self) -> None:
        """Ranks have loaded what they start from: let go of what was fetched of it."""
        if self._ahead is not None:
            self._ahead.end()

    def prepare_look(self) -> None:
        """Be ready to look for checkpoints: an attempt ends, and the next may follow."""
        if self._checkpoints is not None:
            self._checkpoints.prepare()

    def last_save(self, attempt: Attempt) -> SavedCheckpoint | None:
        """Return the newest checkpoint that ranks of an attempt have saved, where the job starts from such."""
        return self._checkpoints.newest_save(attempt.rank_folders()) if self._checkpoints is not None else None

    def new_save(self, attempt: Attempt) -> SavedCheckpoint | None:
        """Return one to report, soon after the first of an attempt, and seldom after that; None: there is none."""
        if self._checkpoints is None:
            return None
        return self._checkpoints.look_for_saves(attempt.number, attempt.rank_folders())

    @property
    def memory(self) -> AgentMemory:
        """What is done about checkpoints in memory; for jobs that keep some there."""
        if self._memory is None:
            from robust_run.launcher.agent.memory.memory import AgentMemory

            self._memory = AgentMemory(self._node, self._node_id, self._report)
            if self._loop is not None:
                self._memory.attach(self._loop.listen)
        return self._memory

    @property
    def keeper(self) -> MemoryKeeper | None:
        """What holds in memory what ranks have saved; None: nothing does."""
        return self._memory.keeper if self._memory is not None else None

    def let_memory_go(self) -> None:
        """Let the keeper end: no attempt follows here."""
        if self._memory is not None:
            self._memory.end()
