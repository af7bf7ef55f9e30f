"""From a checked command line to an exit code, for one node of several: meets the others, joins, and works until dismissed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from robust_run import tls
from robust_run.clock import Clock, SystemClock
from robust_run.errors import PlatformError, RobustRunError
from robust_run.launcher.agent.agent import Agent
from robust_run.launcher.agent.loop import live
from robust_run.launcher.agent.node import Node
from robust_run.launcher.agent.workers.process_tree import become_subreaper
from robust_run.launcher.control.client import Connection
from robust_run.launcher.controller.leadership.leaders import where_led
from robust_run.launcher.controller.leadership.types import JobFinished
from robust_run.launcher.model.job import JobSpec, ManyNodes
from robust_run.launcher.model.lease_times import longest_hold_s
from robust_run.launcher.records import evictions
from robust_run.launcher.records.memory_folders import remove_dead_memory, remove_memory_folders
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.records.token import fetch_key, job_name, job_secret, job_token, keeper_key, read_token
from robust_run.launcher.start.console import Console
from robust_run.launcher.start.guard import hold_signals, run_guarded
from robust_run.launcher.start.many import presence
from robust_run.launcher.start.many.alone import ControllerAlone
from robust_run.launcher.start.many.controller_supervisor import ControllerSupervisor, config_of
from robust_run.launcher.start.many.end_on_record import EndOnRecord
from robust_run.launcher.start.many.fence import Cell, Lease
from robust_run.launcher.start.many.interruption import Stopped, unless_stopped
from robust_run.launcher.start.many.joining import Joining, Resumed, own_name
from robust_run.launcher.start.many.link import RemoteLink
from robust_run.launcher.start.many.own_mark import OwnMark, folder_of_marks
from robust_run.launcher.start.priority import raise_priority

if TYPE_CHECKING:
    from robust_run.launcher.agent.places.place import OpenedPlace
    from robust_run.launcher.agent.signals import Scheduler
    from robust_run.launcher.start.many.setup_news import NewsOfJob


def launch_many(
    spec: JobSpec, env: Mapping[str, str], resumed: Resumed | None = None, scheduler: Scheduler | None = None
) -> int:
    """Be one node of a job and return the launcher's exit code. Raises UserError and PlatformError before anything runs."""
    many = spec.many
    assert many is not None
    if many.evict_list:
        evictions.load(many.evict_list)  # mistakes in it are said before anything is made
    # Under Slurm all nodes are started anew and derive the job's token from what the new step is called.
    token = _token(many, env, resumed if spec.slurm is None else None)
    if many.tls_cert or many.tls_ca:
        tls.client_context(many.tls_cert, many.tls_key, many.tls_ca)  # mistakes are said before anything is started
    cell = Cell()
    guard = os.getpid()
    mask = hold_signals(spec.end_signals)
    remove_dead_memory()

    def agent(lifeline: int) -> int:
        if resumed is not None and resumed.agent:
            config = config_of(spec, token, RunDirectory.resume(resumed.run_path), resumed.agent, guard, resume=True)
            return ControllerAlone(spec, many, env, mask, lifeline, config).run()
        return _NodeOfMany(spec, many, env, token, cell, guard, mask, lifeline, resumed, scheduler).run()

    try:
        try:
            return run_guarded(
                agent,
                spec.end_signals,
                mask,
                fence=cell,
            )
        finally:
            remove_memory_folders(guard)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _token(many: ManyNodes, env: Mapping[str, str], resumed: Resumed | None) -> str:
    """Return the job's token. A run that is resumed has it in its directory, wherever the secret is by now."""
    if resumed is not None and not many.token_file and os.path.exists(os.path.join(resumed.run_path, "token")):
        return read_token(resumed.run_path)
    return job_token(job_secret(many, env), job_name(many))


class _NodeOfMany:
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
        self._leaderless: object = None
        """Looks for a sign of life of who led, while nobody does; None: somebody does."""
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
            if self._spec.image is not None or self._spec.setup is not None:
                from robust_run.launcher.agent.places.opening import timed

                opened, opening = timed(self._clock, self._open_place)
                self._opened = opened._replace(opening=opening)
            self._share_fetched()
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
        news = self._news() if self._spec.setup is not None else None
        if self._spec.image is None:
            return self._open_setup(news)
        from robust_run.launcher.agent.places.image_start import open_image

        opened = open_image(
            self._spec,
            self._env,
            self._clock,
            self._spec.log_dir,  # the run directory will be in it
            self._console.say,
            self._lifeline,
            token=self._token,
            news=news,
        )
        if opened.place is not None:
            self._joining.block_ports = opened.place.block_ports
            self._joining.setup = opened.place.snapshot
        return opened

    def _open_setup(self, news: NewsOfJob | None) -> OpenedPlace:
        from robust_run.launcher.agent.places.setup_start import open_setup

        assert news is not None
        opened = open_setup(self._spec, self._env, self._clock, self._console.say, self._lifeline, news, self._token)
        assert opened.place is not None
        self._joining.block_ports = opened.place.block_ports
        self._joining.setup = opened.place.snapshot
        return opened

    def _news(self) -> NewsOfJob:
        from robust_run.launcher.start.many.setup_news import NewsOfJob

        run_path = self._resumed.run_path if self._resumed is not None else ""
        return NewsOfJob(self._spec, self._many, self._joining, self._clock, run_path)

    def _share_fetched(self) -> None:
        """Listen where other nodes get units of the checkpoint, if one is to be fetched ahead: else each fetches all of it."""
        spec = self._spec
        if spec.ckpt_dir is None or "://" not in spec.ckpt_dir or not spec.ckpt_ahead or self._many.most < 2:
            return
        from robust_run.launcher.agent.checkpoint_sharing import listen

        self._fetched_at = listen(self._console.say)
        self._joining.fetch_port = self._fetched_at.getsockname()[1] if self._fetched_at is not None else 0

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
        place = self._opened.place if self._opened is not None else None
        if place is not None:
            place.own = hello.node.blocks
        node = Node(
            spec,
            self._env,
            self._clock,
            run_directory,
            self._console.router,
            self._console.complain,
            lambda event: agent.report(event),  # noqa: PLW0108 - there is no agent yet
            self._mask,
            address=hello.node.address,
            opened=self._opened,
            memory_key=keeper_key(self._token, spec.run_id) if spec.ckpt_memory else b"",
        )
        if self._fetched_at is not None:
            from robust_run.launcher.agent.checkpoint_sharing import CheckpointSharing

            key = fetch_key(self._token, spec.run_id)
            node.sharing = CheckpointSharing(self._fetched_at, hello.node.fetches, key)
        node.spare = self._supervisor.pids
        self._lasting_pids = node.lasting_pids
        node.workplace.ready_s = self._ready_s
        agent = Agent(node, self._node_id)
        end = EndOnRecord(run_directory.journal)
        link = RemoteLink(
            agent=agent,
            spec=spec,
            many=self._many,
            hello=hello,
            dial=self._joining.dial,
            lease=self._lease,
            clock=self._clock,
            say=self._console.say,
            on_candidates=lambda candidates: self._candidates_changed(candidates, spec, run_directory, link),
            own_controller=lambda: self._supervisor.address,
            on_silence=self._on_silence,
            ask=lambda: self._where_led(spec, run_directory, end, link),
        )
        agent.serve(link)
        link.take(connection)
        self._remember(welcome.run_id, connection.where, welcome.candidates)
        link.know_run(run_directory.shown(run_directory.path))
        self._greet(spec, run_directory)
        exit_code = await live(agent, node, link, self._lifeline, self._scheduler)
        node.end_helpers(exit_code)
        await self._supervisor.close(wait=link.failure is None and link.is_led_from_here)
        run_directory.remove_temporary()
        if link.is_over:
            self._own_mark.remove()
        if link.failure is not None:
            raise link.failure
        return exit_code

    async def _where_led(self, spec: JobSpec, run_directory: RunDirectory, end: EndOnRecord, link: RemoteLink) -> str:
        """Return HOST:PORT of a leader; empty: the controller cannot move, or none is known. Raises JobFinished."""
        if self._many.controller_standby:
            where = await where_led(spec, self._many, run_directory.path, self._clock)
            if where:
                self._leaderless = None
            elif not link.is_leaving and not self._supervisor.is_running:
                await self._offer_to_lead(spec, run_directory, link)
            return where
        finish = end.look()
        if finish is not None:
            raise JobFinished(f"its journal says so: {finish.outcome}", finish.exit_code)
        return ""

    async def _offer_to_lead(self, spec: JobSpec, run_directory: RunDirectory, link: RemoteLink) -> None:
        """Stand for election where nobody leads, and nobody was in line as far as this node was told (see `leaderless`)."""
        from robust_run.launcher.records.shared_folders import on_shared_file_system
        from robust_run.launcher.start.many.founding import majority_of
        from robust_run.launcher.start.many.leaderless import LeaderlessWatch, watch_of

        many = self._many
        if self._leaderless is None:
            self._leaderless = watch_of(spec, many, run_directory.path, self._node_id, self._clock)
        assert isinstance(self._leaderless, LeaderlessWatch)
        if not await self._leaderless.look(is_in_line=bool(link.candidates)):
            return
        is_shared = bool(many.coordinator) or await asyncio.to_thread(on_shared_file_system, run_directory.path)
        needs = 0 if is_shared else majority_of(many.fewest, many.most)
        if self._lead_next(spec, run_directory, needs=needs, hold_s=longest_hold_s(many)):
            self._console.say(
                "nobody leads this job any more, and no node was in line to: this node stands for election"
            )

    def _remember(self, run_id: str, where: str, candidates: tuple[str, ...]) -> None:
        """Note on this node's disk what it is to know after a power loss, where it may found a run then."""
        if self._many.controller_standby or self._joining.is_host:
            addresses = tuple(dict.fromkeys((where, *candidates)))
            self._own_mark.note(run_id, addresses, self._joining.forget_earlier)

    def _candidates_changed(
        self, candidates: tuple[str, ...], spec: JobSpec, run_directory: RunDirectory, link: RemoteLink
    ) -> None:
        self._remember(spec.run_id, link.where, candidates)
        self._stand_by(candidates, spec, run_directory)

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

    def _stand_by(self, candidates: tuple[str, ...], spec: JobSpec, run_directory: RunDirectory) -> None:
        """Be ready to take the controller over once this node is in line."""
        address = self._joining.hello().node.candidate
        if address and address in candidates:
            self._lead_next(spec, run_directory)

    def _lead_next(self, spec: JobSpec, run_directory: RunDirectory, *, needs: int = 0, hold_s: float = 0.0) -> bool:
        """Have a controller wait here to be elected; return whether one does that from now on.

        `needs`, `hold_s`: of the first attempt, if that has not begun as far as is on record.
        """
        address = self._joining.hello().node.candidate
        if not address or self._supervisor.is_running or self._joining.candidate is None:
            return False
        if not self._many.coordinator and not os.path.isdir(os.path.join(run_directory.path, "leader")):
            self._console.say(
                f"this node cannot take the controller over: {run_directory.path} is not what the controller's node has there; "
                "share the folder (--log-dir), or give --coordinator"
            )
            return False
        config = config_of(spec, self._token, run_directory, self._node_id, self._guard, resume=True)
        config = msgspec.structs.replace(config, address=address, setup=self._joining.setup, needs=needs, hold_s=hold_s)
        try:
            self._supervisor.start(config, self._joining.candidate)
        except PlatformError as error:
            self._console.say(f"this node cannot take the controller over: {error}")
            return False
        return True

    def _greet(self, spec: JobSpec, run_directory: RunDirectory) -> None:
        ranks = f"{spec.nproc} workers" if spec.nproc > 1 else "1 worker"
        logs = "no logs kept" if run_directory.temporary else f"logs in {run_directory.shown(run_directory.path)}"
        role = "hosts the controller" if self._joining.is_host else "joined"
        self._console.say(f"{self._name} {role}: up to {ranks} of {spec.script} here, {logs}")
        if self._opened is not None and self._opened.place is not None:
            self._console.say(self._opened.place.sentence)
        for note in spec.notes:
            self._console.say(note)
