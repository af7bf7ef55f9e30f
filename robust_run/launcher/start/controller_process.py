"""The process that is the controller of a job of several nodes: a child of the agent that hosts it.

It is a process of its own so that it can die without a worker noticing. Its agent starts it again, and it continues from the
journal; or a candidate on another node is elected and does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

import msgspec

from robust_run.clock import Clock, SystemClock
from robust_run.errors import PlatformError, RobustRunError, UserError
from robust_run.launcher.control import tls
from robust_run.launcher.control.server import ControlServer
from robust_run.launcher.control.sockets import raise_file_limit
from robust_run.launcher.controller.code_staging import store_folder
from robust_run.launcher.controller.config import ControllerConfig
from robust_run.launcher.controller.controller import Controller
from robust_run.launcher.controller.eviction_list import EvictionList
from robust_run.launcher.controller.fleet_comparison import FleetComparison
from robust_run.launcher.controller.handle import Handle, job_facts
from robust_run.launcher.controller.last_word import say_goodbye
from robust_run.launcher.controller.leadership.types import JobFinished
from robust_run.launcher.controller.leadership_hold import LeadershipHold, take_hold
from robust_run.launcher.controller.refusals import Refusals
from robust_run.launcher.controller.service import LOOK_S, Service
from robust_run.launcher.core.diagnosis.rule_book import book_of
from robust_run.launcher.core.state import JobState, policy_of
from robust_run.launcher.core.step import replay
from robust_run.launcher.model.actions import Finish
from robust_run.launcher.model.code_events import CodeCaptured, RollbackAsked, UpdateStaged
from robust_run.launcher.model.events import (
    ControllerResumed,
    Event,
    JobStarted,
    LimitNear,
    NodeEvicted,
    NodeReadmitted,
    SignalReceived,
)
from robust_run.launcher.model.health_events import HealthSeen
from robust_run.launcher.model.job import ManyNodes
from robust_run.launcher.operator.server.server import ApiServer, HttpPlace
from robust_run.launcher.records.incidents import IncidentBook
from robust_run.launcher.records.journal import GONE_S, Journal, events_of
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.records.token import write_token
from robust_run.launcher.start.console import DRAIN_S, Console, drawing, telling
from robust_run.launcher.start.many.controller_supervisor import REPLACED

#: Schedulers signal every process of a job. What a signal means is the agents' to say; this process ends with its agent.
IGNORED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTTOU,
)
#: Of a manifest that is told to nodes that come later: it must fit into a frame of a greeting.
LARGEST_SNAPSHOT_BYTES = 900 << 10
#: Events that a successor must know of before anything is done about them.
URGENT = (NodeEvicted, NodeReadmitted, HealthSeen, SignalReceived, LimitNear, CodeCaptured, UpdateStaged, RollbackAsked)
#: How long agents may take to go home before the controller does.
GOING_HOME_S = 5.0


class ControllerProcess:
    """One life of the controller."""

    def __init__(self, config: ControllerConfig, console: Console, clock: Clock) -> None:
        assert config.spec.many is not None
        self._config = config
        self._console = console
        self._clock = clock
        self._many: ManyNodes = config.spec.many
        self._run_directory = RunDirectory(config.run_path, config.run_memory, config.temporary, config.guard)
        self._finished: asyncio.Event | None = None
        self._finish: Finish | None = None
        self._started_unix_s = clock.unix_s()
        self._eviction_list = EvictionList(self._many.evict_list, clock, console.say)
        self._refusals = Refusals(console.say)

    async def run(self) -> int:
        """Control the job until it is over, or another controller is elected. Raises RobustRunError."""
        config, spec = self._config, self._config.spec
        self._finished = asyncio.Event()
        hold = await take_hold(config, self._clock, self._console.say)
        resumed = config.resume or hold.is_successor
        journal, book = self._records()
        state = await self._past(hold, journal, book) if resumed else JobState()
        term = max(hold.term, state.term + 1 if resumed else 1)
        journal.term = term
        if journal.is_empty():
            journal.open_with(spec, config.host)
        service = self._service(term)
        controller = Controller(
            policy=policy_of(spec),
            state=state,
            journal=journal,
            book=book,
            clock=self._clock,
            outbox=hold.outbox(service),
            later=asyncio.get_running_loop().call_later,
            on_finish=self._on_finish,
            on_change=lambda event: self._changed(event, hold, state),
        )
        controller.admits = spec.admission_checks
        await self._serve(controller, service, hold, term)
        if not resumed:
            await self._capture(controller)
        self._begin(controller, service, term, resumed=resumed)
        api = self._serve_people(controller, service)
        try:
            await self._wait(hold, service)
            if self._finish is None:
                self._console.say(f"this controller (term {term}) stops: {hold.reason}")
                return REPLACED
            await self._close(service, hold)
        finally:
            await api.close()
        self._say_goodbye(self._finish, state, journal, book)
        return 0

    def _records(self) -> tuple[Journal, IncidentBook]:
        """Return what is kept of the job. Raises UserError if another controller keeps it."""
        config, folders, console = self._config, self._run_directory, self._console
        journal = Journal(folders.journal, self._clock, on_error=console.complain)
        if not config.campaigns and not journal.claim(GONE_S):
            raise UserError(
                f"the run in {config.run_path!r}: another controller runs this job already; robust status shows it. "
                "Is --node-rank 0 given on two nodes?"
            )
        tells = telling(config.spec, folders, self._clock, console)
        return journal, IncidentBook(self._clock, folders, console.say, console.complain, tells, drawing)

    def _service(self, term: int) -> Service:
        config, spec = self._config, self._config.spec
        service = Service(
            spec, self._many, spec.run_id, self._clock, self._note, config.host_agent, term, self._snapshot()
        )
        service.code_folder = store_folder(self._run_directory.journal)
        return service

    def _say_goodbye(self, finish: Finish, state: JobState, journal: Journal, book: IncidentBook) -> None:
        book.flush()
        say_goodbye(
            self._console.say,
            self._run_directory,
            book,
            finish,
            state,
            self._clock.unix_s() - self._started_unix_s,
            refused=self._refusals.count,
            journal_problem=journal.problem,
        )
        journal.wait_durable(DRAIN_S)

    def _snapshot(self) -> bytes | None:
        """Return the job's snapshot, as this node has restored it or the run directory says; None: it is too large to be told."""
        found = self._config.setup
        if self._config.spec.setup is not None and not found:
            try:
                with open(self._run_directory.snapshot, "rb") as file:
                    found = file.read(LARGEST_SNAPSHOT_BYTES + 1)
            except OSError:
                return b""
        return found if len(found) <= LARGEST_SNAPSHOT_BYTES else None

    async def _past(self, hold: LeadershipHold, journal: Journal, book: IncidentBook) -> JobState:
        """Return the state to continue from: what the journal says or, where it is not shared, what was saved."""
        past = [] if journal.is_empty() else journal.past()  # it may have been lost before it began anything
        book.load(past)
        if past:
            self._started_unix_s = past[0].at
        saved = await hold.load()
        return saved if saved is not None else replay(policy_of(self._config.spec), events_of(past))

    async def _serve(self, controller: Controller, service: Service, hold: LeadershipHold, term: int) -> None:
        raise_file_limit()
        many = self._many
        context = tls.controller_context(many.tls_cert, many.tls_key, many.tls_ca) if many.tls_cert else None
        server = ControlServer(self._config.token.encode(), service, self._clock, ssl_context=context)
        server.beat_term = term
        server.on_refused = self._refusals
        service.server, service.controller = server, controller
        if self._config.spec.sensors:
            controller.comparison = FleetComparison(
                controller.state,
                self._clock,
                asyncio.get_running_loop(),
                controller.tell,
                book_of(controller.policy).outliers,
                many.heartbeat_s,
            )
        listener = socket.socket(fileno=self._config.listener)
        listener.listen(65535)
        await server.start(listener)
        self._look(service, hold)

    def _look(self, service: Service, hold: LeadershipHold) -> None:
        """Look for silent agents, and carry the end of the leadership to where it is acted on."""
        service.leads_until_s = hold.leads_until_s
        if service.server is not None:
            service.server.beat_until_s = hold.leads_until_s
        if self._clock.monotonic_s() < hold.leads_until_s:
            service.look()
        asyncio.get_running_loop().call_later(LOOK_S, self._look, service, hold)

    def _begin(self, controller: Controller, service: Service, term: int, *, resumed: bool) -> None:
        now_s = self._clock.monotonic_s()
        restart = self._config.spec.slurm.restart if self._config.spec.slurm is not None else 0
        if resumed and restart > controller.state.restart:
            self._console.say(f"the job goes on after attempt {controller.state.attempt}; it was requeued")
            controller.tell(ControllerResumed(term=term, host=self._config.host, restart=restart))
        elif resumed:
            present = [member.info.id for member in controller.state.members.values() if member.present]
            service.detector.expect({*present, *controller.state.unended, *controller.state.strays}, now_s)
            self._console.say(f"the controller is back (term {term}), {len(present)} nodes are expected")
            controller.book.say_again()
            controller.tell(ControllerResumed(term=term, host=self._config.host, hold_s=service.times.hold_s))
        self._eviction_list.tell(controller.state, controller.tell)
        if not resumed:
            controller.tell(JobStarted(restart=restart))

    async def _capture(self, controller: Controller) -> None:
        """Keep the code that the job is started with, as it is on this node: all others run the same. Where the disk is too slow,
        the first attempt runs what lies in each node's folder.
        """
        from robust_run.launcher.agent.code_versions.node_code import NodeCode
        from robust_run.launcher.controller.code_staging import capture_first

        code = NodeCode(self._config.spec, os.environ, self._run_directory, self._console.say)
        await capture_first(code.place, controller.tell, self._clock)

    def _serve_people(self, controller: Controller, service: Service) -> ApiServer:
        config, many = self._config, self._many
        path = "" if config.temporary else config.run_path
        facts = job_facts(config.spec, controller, config.host, self._started_unix_s, path)
        handle = Handle(
            facts,
            controller,
            self._run_directory.journal,
            lambda node: service.detector.silent_s(node, self._clock.monotonic_s()),
        )
        http = HttpPlace(
            address="",
            port=config.spec.http_port or 0,
            name=config.address.rpartition(":")[0].strip("[]"),
            tls_cert=many.tls_cert,
            tls_key=many.tls_key,
            tls_ca=many.tls_ca,
        )
        api = ApiServer(handle, self._run_directory.path, self._config.token, self._clock, self._console.say, http)
        try:
            write_token(self._run_directory.path, self._config.token)
        except PlatformError as error:
            self._console.say(str(error))
        api.start()
        return api

    def _on_finish(self, finish: Finish) -> None:
        self._finish = finish
        if self._finished is not None:
            self._finished.set()

    def _changed(self, event: Event, hold: LeadershipHold, state: JobState) -> None:
        hold.changed(state, urgent=isinstance(event, URGENT))
        self._eviction_list.after(event, state)

    async def _wait(self, hold: LeadershipHold, service: Service) -> None:
        """Return when the job is over or somebody else leads."""
        assert self._finished is not None
        over = asyncio.ensure_future(self._finished.wait())
        lost = asyncio.ensure_future(hold.lost())
        await asyncio.wait({over, lost}, return_when=asyncio.FIRST_COMPLETED)
        for task in (over, lost):
            task.cancel()
        if self._finish is None:
            service.leads_until_s = float("-inf")

    async def _close(self, service: Service, hold: LeadershipHold) -> None:
        """Let the agents go home first, so that none finds nobody and wonders."""
        give_up_at_s = self._clock.monotonic_s() + GOING_HOME_S
        while service.connected and self._clock.monotonic_s() < give_up_at_s:
            await asyncio.sleep(0.01)
        await hold.leave()
        if service.server is not None:
            await service.server.close("the job is over")

    def _note(self, text: str) -> None:
        try:
            with open(self._run_directory.controller_log, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{self._clock.unix_s():.3f} {text}\n")
        except OSError as error:
            self._console.complain(self._run_directory.controller_log, error)


def main(descriptor: int) -> None:
    """Be the controller, charged by what `descriptor` holds; never returns."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        config = msgspec.json.decode(file.read(), type=ControllerConfig)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    clock = SystemClock()
    console = Console(config.spec, clock)
    code = 70
    try:
        code = asyncio.run(_guarded(config, console, clock))
    except JobFinished:
        code = 0
    except RobustRunError as error:
        console.say(str(error))
        code = error.exit_code if isinstance(error, UserError) else 1
    except BaseException:
        import traceback

        console.say(f"a fault of robust-run ended the controller; please report it: {traceback.format_exc()}")
    finally:
        console.close()
        sys.stdout.flush()
        os._exit(code)


async def _guarded(config: ControllerConfig, console: Console, clock: Clock) -> int:
    """Run; a fault of ours ends the process, and the agent starts another one from the journal."""
    loop = asyncio.get_running_loop()
    console.router.attach(loop)
    fault: asyncio.Future[int] = loop.create_future()

    def on_bug(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        loop.default_exception_handler(context)
        if not fault.done():
            fault.set_result(70)

    loop.set_exception_handler(on_bug)
    run = asyncio.ensure_future(ControllerProcess(config, console, clock).run())
    await asyncio.wait({run, fault}, return_when=asyncio.FIRST_COMPLETED)
    return run.result() if run.done() else fault.result()
