"""What a node knows of who leads its job, and when it stands for election itself."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from robust_run.clock import Clock
from robust_run.errors import PlatformError
from robust_run.launcher.controller.leadership.leaders import where_led
from robust_run.launcher.controller.leadership.types import JobFinished
from robust_run.launcher.model.job import JobSpec, ManyNodes
from robust_run.launcher.model.lease_times import longest_hold_s
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.start.many.controller_supervisor import ControllerSupervisor, config_of
from robust_run.launcher.start.many.end_on_record import EndOnRecord
from robust_run.launcher.start.many.joining import Joining
from robust_run.launcher.start.many.own_mark import OwnMark

if TYPE_CHECKING:
    from robust_run.launcher.start.many.link import RemoteLink


class StandingBy:
    """The node's place in line to lead, once it is let in."""

    def __init__(  # noqa: PLR0913 - all that it needs
        self,
        *,
        spec: JobSpec,
        many: ManyNodes,
        run_directory: RunDirectory,
        joining: Joining,
        supervisor: ControllerSupervisor,
        mark: OwnMark,
        token: str,
        node_id: str,
        guard: int,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        """`spec`: as the controller has named the job."""
        self._spec = spec
        self._many = many
        self._run_directory = run_directory
        self._joining = joining
        self._supervisor = supervisor
        self._mark = mark
        self._token = token
        self._node_id = node_id
        self._guard = guard
        self._clock = clock
        self._say = say
        self._end = EndOnRecord(run_directory.journal)
        self._leaderless: object = None
        """Looks for a sign of life of who led, while nobody does; None: somebody does."""

    async def where_led(self, link: RemoteLink) -> str:
        """Return HOST:PORT of a leader; empty: the controller cannot move, or none is known. Raises JobFinished."""
        if self._many.controller_standby:
            where = await where_led(self._spec, self._many, self._run_directory.path, self._clock)
            if where:
                self._leaderless = None
            elif not link.is_leaving and not self._supervisor.is_running:
                await self._offer_to_lead(link)
            return where
        finish = self._end.look()
        if finish is not None:
            raise JobFinished(f"its journal says so: {finish.outcome}", finish.exit_code)
        return ""

    async def _offer_to_lead(self, link: RemoteLink) -> None:
        """Stand for election where nobody leads, and nobody was in line as far as this node was told (see `leaderless`)."""
        from robust_run.launcher.records.shared_folders import on_shared_file_system
        from robust_run.launcher.start.many.founding import majority_of
        from robust_run.launcher.start.many.leaderless import LeaderlessWatch, watch_of

        many, path = self._many, self._run_directory.path
        if self._leaderless is None:
            self._leaderless = watch_of(self._spec, many, path, self._node_id, self._clock)
        assert isinstance(self._leaderless, LeaderlessWatch)
        if not await self._leaderless.look(is_in_line=bool(link.candidates)):
            return
        is_shared = bool(many.coordinator) or await asyncio.to_thread(on_shared_file_system, path)
        needs = 0 if is_shared else majority_of(many.fewest, many.most)
        if self._lead_next(needs=needs, hold_s=longest_hold_s(many)):
            self._say("nobody leads this job any more, and no node was in line to: this node stands for election")

    def candidates_changed(self, candidates: tuple[str, ...], where: str) -> None:
        """Be ready to take the controller over once this node is in line. `where`: HOST:PORT of who leads."""
        self.remember(where, candidates)
        address = self._joining.hello().node.candidate
        if address and address in candidates:
            self._lead_next()

    def remember(self, where: str, candidates: tuple[str, ...]) -> None:
        """Note on this node's disk what it is to know after a power loss, where it may found a run then."""
        if self._many.controller_standby or self._joining.is_host:
            addresses = tuple(dict.fromkeys((where, *candidates)))
            self._mark.note(self._spec.run_id, addresses, self._joining.forget_earlier)

    def _lead_next(self, *, needs: int = 0, hold_s: float = 0.0) -> bool:
        """Have a controller wait here to be elected; return whether one does that from now on.

        `needs`, `hold_s`: of the first attempt, if that has not begun as far as is on record.
        """
        address, folder = self._joining.hello().node.candidate, self._run_directory.path
        if not address or self._supervisor.is_running or self._joining.candidate is None:
            return False
        if not self._many.coordinator and not os.path.isdir(os.path.join(folder, "leader")):
            self._say(
                f"this node cannot take the controller over: {folder} is not what the controller's node has there; "
                "share the folder (--log-dir), or give --coordinator"
            )
            return False
        config = config_of(self._spec, self._token, self._run_directory, self._node_id, self._guard, resume=True)
        config = msgspec.structs.replace(config, address=address, setup=self._joining.setup, needs=needs, hold_s=hold_s)
        try:
            self._supervisor.start(config, self._joining.candidate)
        except PlatformError as error:
            self._say(f"this node cannot take the controller over: {error}")
            return False
        return True
