"""Lifecycle of a controller of several nodes: it leads, controls the job until that is over or another is elected, and goes."""

from __future__ import annotations

import asyncio
import os
import socket

from robust_run import tls
from robust_run.clock import Clock
from robust_run.launcher.control.server import ControlServer
from robust_run.launcher.control.sockets import raise_file_limit
from robust_run.launcher.controller.code.staging import store_folder
from robust_run.launcher.controller.comparing.fleet_comparison import FleetComparison
from robust_run.launcher.controller.config import ControllerConfig
from robust_run.launcher.controller.controller import Controller
from robust_run.launcher.controller.eviction_list import EvictionList
from robust_run.launcher.controller.leadership.alone import AloneWatch
from robust_run.launcher.controller.leadership.hold import LeadershipHold, take_hold
from robust_run.launcher.controller.refusals import Refusals
from robust_run.launcher.controller.remembered_nodes import RememberedNodes
from robust_run.launcher.controller.run_register import close_earlier, enter
from robust_run.launcher.controller.service import LOOK_S, Service
from robust_run.launcher.controller.usage_book import UsageBook
from robust_run.launcher.core.diagnosis.rule_book import book_of
from robust_run.launcher.core.state import JobState, policy_of
from robust_run.launcher.model.actions import Finish
from robust_run.launcher.model.code_events import CodeCaptured, RollbackAsked, UpdateStaged
from robust_run.launcher.model.events import Event, LimitNear, SignalReceived
from robust_run.launcher.model.health_events import HealthSeen
from robust_run.launcher.model.job import ManyNodes
from robust_run.launcher.model.lease_times import HOLD_MARGIN_S, lease_times, longest_hold_s
from robust_run.launcher.model.node_events import (
    ControllerResumed,
    JobStarted,
    LeaseRecorded,
    NodeEvicted,
    NodeReadmitted,
)
from robust_run.launcher.records.journal import Journal
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.start.console import Console
from robust_run.launcher.start.controller_api import serve_people
from robust_run.launcher.start.controller_past import Past
from robust_run.launcher.start.controller_records import ControllerRecords
from robust_run.launcher.start.fleet_memory import look_back
from robust_run.launcher.start.many.controller_supervisor import REPLACED

#: Events that a successor must know of before anything is done about them.
URGENT = (JobStarted, NodeEvicted, NodeReadmitted, HealthSeen, SignalReceived, LimitNear, LeaseRecorded)
URGENT_OF_CODE = (CodeCaptured, UpdateStaged, RollbackAsked)
#: Connections at the port that have not proven themselves, where this process may open enough files.
MOST_STRANGERS = 1024
SIGTERM = 15
#: How long agents may take to go home before the controller does.
GOING_HOME_S = 5.0


def _is_kept(journal: Journal, hold: LeadershipHold) -> bool:
    """Whether a successor would know what is in the state: on the disk, and where candidates meet if they do not share it."""
    journal.sync_soon()
    return journal.is_durable(journal.written) and not journal.problem and hold.is_saved


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
        self._remembered: RememberedNodes | None = None
        self._leaves_since_s: float | None = None
        """Since when it is known that this node leaves the job."""
        self._is_handed_over = False
        self._alone = AloneWatch(lease_times(self._many).lost_s + self._many.lease_s)

    async def run(self) -> int:
        """Control the job until it is over, or another controller is elected. Raises RobustRunError."""
        config, spec = self._config, self._config.spec
        self._finished = asyncio.Event()
        resumed = config.resume  # a process of a run that was there before it: a candidate's too
        if config.closes:
            await close_earlier(config, self._clock, self._console.say)
        past = Past(self._run_directory.journal, policy_of(spec)) if resumed else None
        election = take_hold(config, self._clock, self._console.say)
        hold = await (past.beside(election) if past is not None else election)
        if config.campaigns:
            await enter(config, self._clock, self._console.say)
        records = ControllerRecords(config, self._run_directory, self._console, self._clock, self._started_unix_s)
        journal, book = records.journal, records.book
        state = await records.past(hold, past) if past is not None else JobState()
        self._started_unix_s = records.started_unix_s
        term = max(hold.term, state.term + 1 if resumed else 1)
        journal.term = term
        if journal.is_empty():
            journal.open_with(spec, config.host)
        service = self._service(term, records.snapshot())
        service.leases.take_over(state.lost_after_s, self._clock.monotonic_s())
        service.lease_record.is_kept = lambda: _is_kept(journal, hold)
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
            self._remembered = look_back(config, self._clock, self._console.say, asyncio.get_running_loop())
            await self._capture(controller)
        self._begin(controller, service, term, resumed=resumed)
        silent_s = service.detector.silent_s
        api = serve_people(
            config,
            controller,
            self._run_directory,
            self._clock,
            self._started_unix_s,
            silent_s=lambda node: silent_s(node, self._clock.monotonic_s()),
            say=self._console.say,
        )
        try:
            await self._wait(hold, service)
            if self._finish is None:
                controller.is_deposed = True
                self._console.say(f"this controller (term {term}) stops: {hold.reason}")
                await api.close()  # what is asked for from now on is another controller's to do
                if service.server is not None:
                    await service.server.close("this controller is not the leader any more")
                await hold.rest()
                return 0 if self._is_handed_over else REPLACED
            await self._close(service, hold)
        finally:
            await api.close()
        records.say_goodbye(self._finish, state, refused=self._refusals.count)
        return 0

    def _service(self, term: int, snapshot: bytes | None) -> Service:
        config, spec = self._config, self._config.spec
        service = Service(spec, self._many, spec.run_id, self._clock, self._note, config.host_agent, term, snapshot)
        service.code_folder = store_folder(self._run_directory.journal)
        return service

    async def _serve(self, controller: Controller, service: Service, hold: LeadershipHold, term: int) -> None:
        most_unproven = min(MOST_STRANGERS, raise_file_limit() // 4)  # the agents need the rest
        many = self._many
        context = tls.server_context(many.tls_cert, many.tls_key, many.tls_ca) if many.tls_cert else None
        token = self._config.token.encode()
        server = ControlServer(token, service, self._clock, ssl_context=context, most_unproven=most_unproven)
        server.beat_term = term
        server.on_refused = self._refusals
        server.grant = service.grant
        service.server, service.controller = server, controller
        if self._config.spec.sensors:
            controller.comparison = FleetComparison(
                controller.state,
                self._clock,
                asyncio.get_running_loop(),
                controller.tell,
                book_of(controller.policy).outliers,
                many.heartbeat_s,
                lambda then: controller.parts.node_roles.look(then),  # noqa: PLW0108 - imported when it is called
            )
            later = asyncio.get_running_loop().call_later
            controller.usage = UsageBook(controller.state, self._run_directory, self._clock, later, controller.book.say)
        listener = socket.socket(fileno=self._config.listener)
        listener.listen(65535)
        await server.start(listener)
        service.on_out_of_sight = lambda: self._stand_down(hold)
        self._look(service, hold)

    def _stand_down(self, hold: LeadershipHold) -> None:
        if self._finish is None:
            hold.stand_down("it sees no other node, and another may: it lets others lead first")

    def _hand_over(self, service: Service, hold: LeadershipHold) -> None:
        """Give the leadership away, or end the job, where this node leaves in good order (see `handing_over`)."""
        from robust_run.launcher.controller.leadership.handing_over import handing_of

        now_s = self._clock.monotonic_s()
        self._leaves_since_s = now_s if self._leaves_since_s is None else self._leaves_since_s
        assert service.controller is not None
        answer = handing_of(
            service.succession.line(now_s),
            has_left=service.succession.host_has_left,
            job_ends=self._finish is not None,
            is_kept=service.lease_record.is_kept(),
            since_s=now_s - self._leaves_since_s,
        )
        if answer == "resign":
            self._is_handed_over = True
            hold.stand_down("its node leaves the job, another one leads", turns=0.0)
        elif answer == "end_job":
            self._console.say("the node of the controller leaves, and no other is in line to lead: the job ends")
            service.controller.tell(SignalReceived(signal=SIGTERM))

    def _look(self, service: Service, hold: LeadershipHold) -> None:
        """Look for silent agents, and carry the end of the leadership to where it is acted on."""
        service.leads_until_s = hold.leads_until_s
        if service.server is not None:
            service.server.beat_until_s = hold.leads_until_s
        now_s = self._clock.monotonic_s()
        if now_s < hold.leads_until_s:
            service.look()
            if service.succession.host_has_left and not self._is_handed_over:
                self._hand_over(service, hold)
            if self._finish is None and self._alone.look(now_s=now_s, **service.succession.company()):
                self._stand_down(hold)
        asyncio.get_running_loop().call_later(LOOK_S, self._look, service, hold)

    def _begin(self, controller: Controller, service: Service, term: int, *, resumed: bool) -> None:
        now_s = self._clock.monotonic_s()
        restart = self._config.spec.slurm.restart if self._config.spec.slurm is not None else 0
        if resumed and restart > controller.state.restart:
            self._console.say(f"the job goes on after attempt {controller.state.attempt}; it was requeued")
            controller.tell(ControllerResumed(term=term, host=self._config.host, restart=restart))
        elif resumed:
            present = [member.info.id for member in controller.state.members.values() if member.present]
            waited_s = service.leases.recorded_s
            expected = {*present, *controller.state.unended, *controller.state.strays}
            service.detector.expect(expected, now_s, waited_s)
            self._console.say(f"the controller is back (term {term}), {len(present)} nodes are expected")
            controller.book.say_again()
            hold_s, needs = waited_s + HOLD_MARGIN_S, 0
            if controller.state.is_new:  # the one before died when it had not begun, or its journal is lost
                hold_s, needs = max(hold_s, self._config.hold_s), self._config.needs
            elif controller.state.is_held_from_start:  # by another clock: for how much longer is not known
                hold_s = max(hold_s, longest_hold_s(self._many))
            controller.tell(ControllerResumed(term=term, host=self._config.host, hold_s=hold_s, needs=needs))
        self._eviction_list.tell(controller.state, controller.tell)
        if not resumed:
            controller.tell(JobStarted(restart=restart, hold_s=self._config.hold_s, needs=self._config.needs))

    async def _capture(self, controller: Controller) -> None:
        """Keep the code that the job is started with, as it is on this node: all others run the same. Where the disk is too slow,
        the first attempt runs what lies in each node's folder.
        """
        from robust_run.launcher.agent.code_versions.node_code import NodeCode
        from robust_run.launcher.controller.code.staging import capture_first

        code = NodeCode(self._config.spec, os.environ, self._run_directory, self._console.say)
        await capture_first(code.place, controller.tell, self._clock)

    def _on_finish(self, finish: Finish) -> None:
        self._finish = finish
        if self._finished is not None:
            self._finished.set()

    def _changed(self, event: Event, hold: LeadershipHold, state: JobState) -> None:
        hold.changed(state, urgent=isinstance(event, (*URGENT, *URGENT_OF_CODE)))
        self._eviction_list.after(event, state)
        if self._remembered is not None:
            self._remembered.after(event, state)

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
