"""The agent process of one node of several: meets the others, joins, and works until dismissed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from robust_run.clock import Clock, SystemClock
from robust_run.errors import RobustRunError
from robust_run.launcher.agent.agent import Agent
from robust_run.launcher.agent.loop import live
from robust_run.launcher.agent.node import Node
from robust_run.launcher.agent.workers.process_tree import become_subreaper
from robust_run.launcher.control.client import Connection
from robust_run.launcher.control.messages import Hello
from robust_run.launcher.model.events import NodeEvent
from robust_run.launcher.model.job import JobSpec, ManyNodes
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.records.token import fetch_key, keeper_key
from robust_run.launcher.start.console import Console
from robust_run.launcher.start.many import presence
from robust_run.launcher.start.many.controller_supervisor import ControllerSupervisor
from robust_run.launcher.start.many.dialing import own_name
from robust_run.launcher.start.many.fence import Cell, Lease
from robust_run.launcher.start.many.interruption import Stopped, unless_stopped
from robust_run.launcher.start.many.joining import Joining, Resumed
from robust_run.launcher.start.many.link import RemoteLink
from robust_run.launcher.start.many.own_mark import OwnMark, folder_of_marks
from robust_run.launcher.start.many.standing_by import StandingBy
from robust_run.launcher.start.needed_later import AGENT, prepare_agent
from robust_run.launcher.start.priority import raise_priority

if TYPE_CHECKING:
    from robust_run.launcher.agent.checkpoint.early import EarlyCheckpoint
    from robust_run.launcher.agent.places.place import OpenedPlace
    from robust_run.launcher.agent.signals import Scheduler


class NodeOfMany:
    """The agent process of one node."""

    def __init__(  # noqa: PLR0913, PLR0917 - all that it is made of
        self,
        spec: JobSpec,
        many: ManyNodes,
        env: Mapping[str, str],
        token: str,
        cell: Cell,
        guard: int,
        mask: set[int],
        lifeline: int,
        resumed: Resumed | None,
        scheduler: Scheduler | None,
    ) -> None:
        self._spec = spec
        self._many = many
        self._env = env
        self._token = token
        self._guard = guard
        self._mask = mask
        self._lifeline = lifeline
        self._resumed = resumed
        self._scheduler = scheduler
        self._opened: OpenedPlace | None = None
        self._fetched_at: socket.socket | None = None
        """Where other nodes get units of a checkpoint that is fetched ahead."""
        self._early: EarlyCheckpoint | None = None
        self._ready_s: float | None = None
        self._clock: Clock = SystemClock()
        self._cell = cell
        self._lasting_pids: Callable[[], list[int]] = list
        self._lease = Lease(cell)
        self._console = Console(spec, self._clock)
        self._supervisor = ControllerSupervisor(mask, dict(env), self._console.say)
        self._node_id = os.urandom(8).hex()
        self._mark = presence.show(self._node_id)
        self._name = own_name(spec)
        marks = folder_of_marks(spec, env, socket.gethostname())
        self._own_mark = OwnMark(spec, marks, self._node_id, self._console.say)
        self._joining = Joining(
            spec=spec,
            many=many,
            token=token,
            guard=guard,
            resumed=resumed,
            clock=self._clock,
            lease=self._lease,
            supervisor=self._supervisor,
            node_id=self._node_id,
            marks=marks,
            say=self._console.say,
        )

    def run(self) -> int:
        """Be the agent and return the exit code."""
        try:
            become_subreaper()
            raise_priority()
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            self._share_fetched()
            if self._spec.image is not None or self._spec.setup is not None:
                from robust_run.launcher.agent.places.opening import timed

                opened, opening = timed(self._clock, self._open_place)
                self._opened = opened._replace(opening=opening)
            if self._spec.ckpt_mount:
                from robust_run.launcher.agent.checkpoint.mount_server import check

                check(self._env)
            self._ready_s = self._clock.monotonic_s()
            # Not asyncio.run: it waits for threads that may be asking a name server that does not answer.
            return asyncio.new_event_loop().run_until_complete(self._run())
        except RobustRunError as error:
            self._console.say(str(error))
            return error.exit_code
        finally:
            self._console.close()

    def _open_place(self) -> OpenedPlace:
        """Make the workers' place before this node joins: one that cannot does not take part in the job. Raises PlatformError."""
        from robust_run.launcher.start.many.opening import open_place

        run_path = self._resumed.run_path if self._resumed is not None else ""
        joining, console = self._joining, self._console
        return open_place(
            self._spec, self._env, self._clock, joining, console.say, self._lifeline, self._token, run_path
        )

    def _share_fetched(self) -> None:
        """Listen where other nodes get units of the checkpoint, if one is to be fetched ahead: else each fetches all of it."""
        spec = self._spec
        if spec.ckpt_dir is None or "://" not in spec.ckpt_dir or not spec.ckpt_ahead or self._many.most < 2:
            return
        from robust_run.launcher.agent.checkpoint.sharing import listen

        self._fetched_at = listen(self._console.say)
        self._joining.fetch_port = self._fetched_at.getsockname()[1] if self._fetched_at is not None else 0
        from robust_run.launcher.agent.checkpoint import early as checkpoint_early

        if self._resumed is None and checkpoint_early.is_wanted(spec):
            port = self._fetched_at.fileno() if self._fetched_at is not None else -1
            say = self._console.say
            self._early = checkpoint_early.begin(spec, self._env, self._clock, None, self._mask, say, port)

    async def _run(self) -> int:
        self._console.router.attach(asyncio.get_running_loop())
        joining = asyncio.ensure_future(self._joining.join())
        try:
            connection = await unless_stopped(joining, self._lifeline, self._spec.end_signals)
        except Stopped as stopped:
            await self._supervisor.close(wait=False)
            return 128 + stopped.number
        except RobustRunError:
            await self._supervisor.close(wait=self._joining.is_host)
            raise
        return await self._work(connection)

    # --- working

    async def _work(self, connection: Connection) -> int:
        welcome = connection.welcome
        self._joining.check_setup(welcome)
        spec = msgspec.structs.replace(self._spec, run_id=welcome.run_id, rdzv_id=welcome.rdzv_id)
        run_directory = self._run_directory(welcome.run_id)
        hello = self._joining.hello()
        node = self._made_node(spec, run_directory, hello, lambda event: agent.report(event))  # noqa: PLW0108 - there is no agent yet
        agent = Agent(node, self._node_id)
        standing_by = self._standing_by(spec, run_directory)
        link = self._link(spec, agent, hello, standing_by)
        agent.serve(link)
        link.take(connection)
        standing_by.remember(connection.where, welcome.candidates)
        link.know_run(run_directory.shown(run_directory.path))
        self._greet(spec, run_directory)
        prepare_agent(asyncio.get_running_loop().call_later, spec, run_directory, *AGENT)
        exit_code = await live(agent, node, link, self._lifeline, self._scheduler)
        node.end_helpers(exit_code)
        await self._supervisor.close(wait=link.failure is None and link.is_led_from_here)
        run_directory.remove_temporary()
        if link.is_over:
            self._own_mark.remove()
        if link.failure is not None:
            raise link.failure
        return exit_code

    def _made_node(
        self, spec: JobSpec, run_directory: RunDirectory, hello: Hello, report: Callable[[NodeEvent], None]
    ) -> Node:
        place = self._opened.place if self._opened is not None else None
        if place is not None:
            place.own = hello.node.blocks
        if self._early is not None:
            self._early.helpers.log_to(run_directory.store_log)
        node = Node(
            spec,
            self._env,
            self._clock,
            run_directory,
            self._console.router,
            self._console.complain,
            report,
            self._mask,
            address=hello.node.address,
            opened=self._opened,
            memory_key=keeper_key(self._token, spec.run_id) if spec.ckpt_memory else b"",
            early=self._early,
        )
        if self._fetched_at is not None:
            from robust_run.launcher.agent.checkpoint.sharing import CheckpointSharing

            key = fetch_key(self._token, spec.run_id)
            node.sharing = CheckpointSharing(self._fetched_at, hello.node.fetches, key)
        node.spare = self._supervisor.pids
        self._lasting_pids = node.lasting_pids
        node.workplace.ready_s = self._ready_s
        return node

    def _standing_by(self, spec: JobSpec, run_directory: RunDirectory) -> StandingBy:
        return StandingBy(
            spec=spec,
            many=self._many,
            run_directory=run_directory,
            joining=self._joining,
            supervisor=self._supervisor,
            mark=self._own_mark,
            token=self._token,
            node_id=self._node_id,
            guard=self._guard,
            clock=self._clock,
            say=self._console.say,
        )

    def _link(self, spec: JobSpec, agent: Agent, hello: Hello, standing_by: StandingBy) -> RemoteLink:
        link = RemoteLink(
            agent=agent,
            spec=spec,
            many=self._many,
            hello=hello,
            dial=self._joining.dial,
            lease=self._lease,
            clock=self._clock,
            say=self._console.say,
            on_candidates=lambda candidates: standing_by.candidates_changed(candidates, link.where),
            own_controller=lambda: self._supervisor.address,
            on_silence=self._on_silence,
            ask=lambda: standing_by.where_led(link),
        )
        return link

    def _on_silence(self, where: str, silent_s: float) -> None:
        """Replace this node's controller if it does not answer, before the leases of all agents end. Called at each look."""
        self._cell.spare(self._lasting_pids())
        leads_here = where == self._supervisor.address or (not where and self._many.controller_standby == 0)
        if leads_here:
            self._supervisor.end_stuck(silent_s, self._lease.times.stuck_s)

    def _run_directory(self, run_id: str) -> RunDirectory:
        if self._resumed is not None:
            return RunDirectory.join(os.path.dirname(os.path.abspath(self._resumed.run_path)), run_id, self._guard)
        return RunDirectory.join(self._spec.log_dir, run_id, self._guard)

    def _greet(self, spec: JobSpec, run_directory: RunDirectory) -> None:
        ranks = f"{spec.nproc} workers" if spec.nproc > 1 else "1 worker"
        logs = "no logs kept" if run_directory.temporary else f"logs in {run_directory.shown(run_directory.path)}"
        role = "hosts the controller" if self._joining.is_host else "joined"
        self._console.say(f"{self._name} {role}: up to {ranks} of {spec.script} here, {logs}")
        if self._opened is not None and self._opened.place is not None:
            self._console.say(self._opened.place.sentence)
        for note in spec.notes:
            self._console.say(note)
