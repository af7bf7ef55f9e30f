"""From a checked command line to an exit code, for one node of several: meets the others, joins, and works until dismissed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Mapping
from typing import Any

import msgspec

from robust_run.clock import Clock, SystemClock
from robust_run.errors import PlatformError, RobustRunError, UserError
from robust_run.launcher.agent import Agent
from robust_run.launcher.agent_signals import ENDING
from robust_run.launcher.console import Console
from robust_run.launcher.control import tls
from robust_run.launcher.control.client import Connection, dial
from robust_run.launcher.control.errors import Refusal
from robust_run.launcher.control.messages import Hello
from robust_run.launcher.control.sockets import spoken
from robust_run.launcher.controller.charge import Charge
from robust_run.launcher.guard import hold_signals, run_guarded
from robust_run.launcher.many import presence
from robust_run.launcher.many.alone import ControllerAlone
from robust_run.launcher.many.fence import Cell, Lease
from robust_run.launcher.many.keeper import Keeper, bind
from robust_run.launcher.many.leaders import ASK_AGAIN_S, led_elsewhere, not_here, refuse_if_led, where_led
from robust_run.launcher.many.link import DIAL_S, ONLY_DIAL_S, RETRY_S, Link
from robust_run.launcher.meeting import Guest, Host, SystemNetwork, meet, own_address
from robust_run.launcher.node import Node
from robust_run.launcher.process_tree import become_subreaper
from robust_run.launcher.run_directory import RunDirectory, remove_memory_folders
from robust_run.launcher.token import find_secret, job_name, job_token, read_token
from robust_run.launcher.types import JobSpec, ManyNodes, NodeInfo
from robust_run.version import __version__

#: Part of a lease after which a controller that is silent is replaced by its own node.
STUCK_PART = 2 / 3


class _Stopped(Exception):  # noqa: N818 - a signal, no error
    """A signal came before this node was in."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is continued on this node."""

    run_path: str
    agent: str = ""
    """Id of the job's agent that lives here already: only the controller is missing."""


def launch_many(spec: JobSpec, env: Mapping[str, str], resumed: Resumed | None = None) -> int:
    """Be one node of a job and return the launcher's exit code. Raises UserError and PlatformError before anything runs."""
    many = spec.many
    assert many is not None
    token = _token(many, env, resumed)
    if many.tls_cert or many.tls_ca:
        tls.agent_context(many.tls_cert, many.tls_key, many.tls_ca)  # mistakes are said before anything is started
    cell = Cell()
    guard = os.getpid()
    mask = hold_signals(spec.end_signals)

    def agent(lifeline: int) -> int:
        if resumed is not None and resumed.agent:
            charge = _charge(spec, token, RunDirectory.resume(resumed.run_path), resumed.agent, guard, resume=True)
            return ControllerAlone(spec, many, env, mask, lifeline, charge).run()
        return _NodeOfMany(spec, many, env, token, cell, guard, mask, lifeline, resumed).run()

    try:
        try:
            return run_guarded(
                agent,
                spec.end_signals,
                mask,
                must_end=cell.is_over,
            )
        finally:
            remove_memory_folders(guard)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _token(many: ManyNodes, env: Mapping[str, str], resumed: Resumed | None) -> str:
    """Return the job's token. A run that is resumed has it in its directory, wherever the secret is by now."""
    if resumed is not None and not many.token_file and os.path.exists(os.path.join(resumed.run_path, "token")):
        return read_token(resumed.run_path)
    return job_token(find_secret(many.token_file, env), job_name(many))


def _charge(
    spec: JobSpec, token: str, run_directory: RunDirectory, host_agent: str, guard: int, *, resume: bool
) -> Charge:
    """Return what a controller on this node is given, but for where it listens."""
    many = spec.many
    return Charge(
        spec=spec,
        token=token,
        run_path=run_directory.path,
        run_memory=run_directory.memory,
        listener=-1,
        address="",
        host_agent=host_agent,
        host=socket.gethostname(),
        guard=guard,
        resume=resume,
        campaigns=many is not None and many.controller_standby > 0,
        temporary=run_directory.temporary,
    )


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
    ) -> None:
        self._spec = spec
        self._many = many
        self._env = env
        self._token = token
        self._guard = guard
        self._mask = mask
        self._lifeline = lifeline
        self._resumed = resumed
        self._clock: Clock = SystemClock()
        self._lease = Lease(cell)
        self._network = SystemNetwork()
        self._console = Console(spec, self._clock)
        self._keeper = Keeper(mask, dict(env), self._console.say)
        self._node_id = os.urandom(8).hex()
        self._mark = presence.show(self._node_id)
        self._name = socket.gethostname()
        self._place: Host | Guest = Guest(addresses=(), port=many.port)
        self._candidate: socket.socket | None = None
        """The keeper's as soon as this node is in line."""
        self._candidate_port = 0
        self._ask_again_at_s = 0.0
        self._context = (
            tls.agent_context(many.tls_cert, many.tls_key, many.tls_ca) if many.tls_cert or many.tls_ca else None
        )

    def run(self) -> int:
        """Be the agent and return the exit code."""
        try:
            become_subreaper()
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            return asyncio.run(self._run())
        except RobustRunError as error:
            self._console.say(str(error))
            return error.exit_code
        finally:
            self._console.close()

    async def _run(self) -> int:
        self._console.router.attach(asyncio.get_running_loop())
        joining = asyncio.ensure_future(self._join())
        try:
            connection = await self._unless_stopped(joining)
        except _Stopped as stopped:
            await self._keeper.close(wait=False)
            return 128 + stopped.number
        except RobustRunError:
            await self._keeper.close(wait=isinstance(self._place, Host))
            raise
        return await self._work(connection)

    async def _unless_stopped(self, joining: asyncio.Task[Connection]) -> Connection:
        """Wait until this node is in, unless a signal comes or the guard goes."""
        loop = asyncio.get_running_loop()
        stop: asyncio.Future[int] = loop.create_future()

        def on_signal(number: int) -> None:
            if not stop.done():
                stop.set_result(number)

        def on_lifeline() -> None:
            received = os.read(self._lifeline, 64)
            on_signal(next((n for n in received if n in ENDING or n in self._spec.end_signals), 0) if received else 9)

        os.set_blocking(self._lifeline, False)
        loop.add_reader(self._lifeline, on_lifeline)
        for number in {*ENDING, *self._spec.end_signals}:
            if not (number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN):
                loop.add_signal_handler(number, on_signal, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
        both: list[asyncio.Future[Any]] = [joining, stop]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        loop.remove_reader(self._lifeline)
        if stop.done() and not joining.done():
            joining.cancel()
            raise _Stopped(stop.result())
        return joining.result()

    # --- joining

    async def _join(self) -> Connection:
        """Find the controller, or become its host, and be let in. Raises RobustRunError."""
        many = self._many
        give_up_at_s = self._clock.monotonic_s() + many.join_timeout_s
        said = False
        if self._resumed is not None and many.controller_standby > 0:
            await refuse_if_led(self._spec, many, self._resumed.run_path, self._clock)
        while True:
            if not self._keeper.is_running:
                elsewhere = await self._led_elsewhere()
                self._place = elsewhere if elsewhere is not None else await asyncio.to_thread(meet, many, self._network)
                if isinstance(self._place, Host):
                    self._host(self._place)
                elif self._resumed is not None:
                    raise UserError(not_here(many))
            trouble = ""
            try:
                return await self._dial("", self._hello())
            except Refusal as refusal:
                if refusal.final:
                    raise
                trouble = str(refusal)
            except (OSError, TimeoutError) as error:
                trouble = str(error)
            now_s = self._clock.monotonic_s()
            if now_s >= give_up_at_s:
                raise PlatformError(
                    f"no controller at {many.host}:{many.port} within {many.join_timeout_s:g} s (join_timeout): {trouble}"
                )
            if not said and not isinstance(self._place, Host) and now_s > give_up_at_s - many.join_timeout_s + 2.0:
                said = True
                self._console.say(f"waiting for the controller at {many.host}:{many.port}: {trouble}")
            await asyncio.sleep(RETRY_S)

    async def _led_elsewhere(self) -> Guest | None:
        """Return where another node controls the job that took it over, if it is time to ask."""
        now_s = self._clock.monotonic_s()
        if self._many.controller_standby == 0 or self._resumed is not None or now_s < self._ask_again_at_s:
            return None
        self._ask_again_at_s = now_s + ASK_AGAIN_S
        return await led_elsewhere(self._spec, self._many, self._clock)

    def _host(self, place: Host) -> None:
        """Start the controller on this node. Raises RobustRunError."""
        spec = self._spec
        if self._resumed is not None:
            run_directory = RunDirectory.resume(self._resumed.run_path)
        else:
            run_directory = RunDirectory.create(spec.log_dir, spec.run_id, self._guard)
        charge = _charge(spec, self._token, run_directory, self._node_id, self._guard, resume=self._resumed is not None)
        charge = msgspec.structs.replace(charge, address=spoken(place.addresses[0], place.port))
        self._keeper.start(charge, place.socket)

    def _hello(self) -> Hello:
        many = self._many
        address = own_address(many, self._place, self._network, next(iter(self._place.addresses), ""))
        node = NodeInfo(
            id=self._node_id,
            name=self._name,
            nproc=self._spec.nproc,
            address=address,
            node_rank=many.node_rank,
            candidate=self._candidate_address(address),
            pid=os.getpid(),
            version=__version__,
        )
        return Hello(
            nonce=b"",
            proof=b"",
            node=node,
            job=many.job,
            nnodes=f"{many.fewest}:{many.most}",
            now_s=self._clock.monotonic_s(),
        )

    def _candidate_address(self, address: str) -> str:
        """Return where this node would serve as controller, if it may become it."""
        if self._many.controller_standby == 0 or isinstance(self._place, Host):
            return ""
        if self._candidate is None:
            try:
                self._candidate = bind(address, 0)
            except OSError:
                return ""
            self._candidate_port = int(self._candidate.getsockname()[1])
        return spoken(address, self._candidate_port)

    async def _dial(self, where: str, hello: Hello) -> Connection:
        """See `link.Dialer`."""
        if where:
            host, _, port = where.rpartition(":")
            return await self._dial_one(host.strip("[]"), int(port), hello)
        error: Exception = ConnectionRefusedError(f"{self._many.host} leads nowhere yet")
        if not self._place.addresses and not isinstance(self._place, Host):
            raise OSError(f"{self._many.host} cannot be resolved")
        for address in self._place.addresses:
            try:
                return await self._dial_one(address, self._place.port, hello)
            except (OSError, TimeoutError) as failure:
                if isinstance(error, ConnectionRefusedError):  # proves nothing as long as another address is silent
                    error = failure
        raise error

    async def _dial_one(self, host: str, port: int, hello: Hello) -> Connection:
        sent_at_s = self._clock.monotonic_s()
        patience_s = DIAL_S if self._many.controller_standby else ONLY_DIAL_S
        connection = await dial(
            host, port, self._token.encode(), hello, ssl_context=self._context, timeout_s=patience_s
        )
        self._lease.length_s = connection.welcome.lease_s
        self._lease.renew(sent_at_s)
        return connection

    # --- working

    async def _work(self, connection: Connection) -> int:
        welcome = connection.welcome
        spec = msgspec.structs.replace(self._spec, run_id=welcome.run_id, rdzv_id=welcome.rdzv_id)
        run_directory = self._run_directory(welcome.run_id)
        node = Node(
            spec,
            self._env,
            self._clock,
            run_directory,
            self._console.router,
            self._console.complain,
            lambda event: agent.report(event),  # noqa: PLW0108 - there is no agent yet
            self._mask,
            address=self._hello().node.address,
        )
        node.spare = self._keeper.pids
        agent = Agent(node, self._node_id)
        link = Link(
            agent=agent,
            spec=spec,
            many=self._many,
            hello=self._hello(),
            dial=self._dial,
            lease=self._lease,
            clock=self._clock,
            say=self._console.say,
            on_candidates=lambda candidates: self._stand_by(candidates, spec, run_directory),
            own_controller=lambda: self._keeper.address,
            on_silence=self._on_silence,
            ask=lambda: where_led(spec, self._many, run_directory.path, self._clock),
        )
        agent.serve(link)
        link.take(connection)
        self._greet(spec, run_directory)
        exit_code = await agent.live(self._lifeline)
        node.end_helpers()
        await self._keeper.close(wait=link.failure is None and link.is_led_from_here)
        run_directory.remove_temporary()
        if link.failure is not None:
            raise link.failure
        return exit_code

    def _on_silence(self, where: str, silent_s: float) -> None:
        """Replace this node's controller if it does not answer, before the leases of all agents end."""
        leads_here = where == self._keeper.address or (not where and self._many.controller_standby == 0)
        if leads_here:
            self._keeper.end_stuck(silent_s, self._lease.length_s * STUCK_PART)

    def _run_directory(self, run_id: str) -> RunDirectory:
        if self._resumed is not None:
            return RunDirectory.join(os.path.dirname(os.path.abspath(self._resumed.run_path)), run_id, self._guard)
        return RunDirectory.join(self._spec.log_dir, run_id, self._guard)

    def _stand_by(self, candidates: tuple[str, ...], spec: JobSpec, run_directory: RunDirectory) -> None:
        """Be ready to take the controller over once this node is in line."""
        address = self._hello().node.candidate
        if not address or address not in candidates or self._keeper.is_running or self._candidate is None:
            return
        charge = _charge(spec, self._token, run_directory, self._node_id, self._guard, resume=True)
        charge = msgspec.structs.replace(charge, address=address)
        try:
            self._keeper.start(charge, self._candidate)
        except PlatformError as error:
            self._console.say(f"this node cannot take the controller over: {error}")

    def _greet(self, spec: JobSpec, run_directory: RunDirectory) -> None:
        ranks = f"{spec.nproc} workers" if spec.nproc > 1 else "1 worker"
        logs = "no logs kept" if run_directory.temporary else f"logs in {run_directory.shown(run_directory.path)}"
        role = "hosts the controller" if isinstance(self._place, Host) else "joined"
        self._console.say(f"{self._name} {role}: up to {ranks} of {spec.script} here, {logs}")
        for note in spec.notes:
            self._console.say(note)
