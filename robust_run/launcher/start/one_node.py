"""In-process link of a one-node job: its agent and its controller live in one process, and talk by calling each other."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from robust_run.clock import Clock
from robust_run.launcher.agent.agent import Agent
from robust_run.launcher.controller.controller import Controller
from robust_run.launcher.model.actions import Finish, Order
from robust_run.launcher.model.events import Event, GuardLost, NodeEvent, SignalReceived
from robust_run.launcher.model.job import NO_PORT, JobSpec
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.start.console import Console

if TYPE_CHECKING:
    import asyncio

    from robust_run.launcher.model.links import Timer
    from robust_run.launcher.model.start_notes import Seen
    from robust_run.launcher.operator.server.server import ApiServer

#: When people are answered first.
SERVE_AFTER_S = 0.5
#: When it is begun to keep what the node does.
USAGE_AFTER_S = 2.0


class OneNode:
    """The controller of a one-node job as its agent sees it, and the agent as the controller sees it."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[_Waiting] = []
        self.controller: Controller | None = None
        self.finish: Finish | None = None
        self._api: ApiServer | None = None
        self._is_closed = False

    @property
    def is_led_from_here(self) -> bool:
        """See `ControllerLink`."""
        return True

    @property
    def term(self) -> int:
        """See `ControllerLink`."""
        return 0

    def _tell(self, event: Event) -> None:
        if self.controller is not None:
            self.controller.tell(event)

    def report(self, event: NodeEvent) -> None:
        """See `ControllerLink`."""
        self._tell(event)

    def deliver(self, seen: Seen) -> None:
        """See `ControllerLink`."""
        if self.controller is not None:
            self.controller.see(self._agent.node_id, seen)

    def told_to_end(self, number: int, *, again: bool) -> None:
        """See `ControllerLink`."""
        self._tell(SignalReceived(signal=number, again=again))

    def guard_lost(self) -> None:
        """See `ControllerLink`."""
        self._tell(GuardLost())

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """See `ControllerLink`."""
        self._loop = loop
        for waiting in self._waiting:
            waiting.start(loop)

    def send(self, node: str, order: Order) -> None:
        """See `Outbox`."""
        if node == self._agent.node_id:
            self._agent.obey(order)

    def later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Call after a time, which begins when the loop does."""
        if self._loop is not None:
            return self._loop.call_later(delay_s, call)
        waiting = _Waiting(delay_s, call)
        self._waiting.append(waiting)
        return waiting

    def serve_people_with(self, make: Callable[[], ApiServer]) -> None:
        """Answer `robust status` and its like, once the job has been there for a moment: its start has better things to do."""
        self.later(SERVE_AFTER_S, lambda: self._serve_people(make))

    def _serve_people(self, make: Callable[[], ApiServer]) -> None:
        if self._is_closed:
            return  # the job has ended before: what says where it serves would stay
        api = make()
        api.start()
        self._api = api

    def keep_usage(self, run_directory: RunDirectory, clock: Clock, say: Callable[[str], None]) -> None:
        """Keep how full and busy this node is, for pages, once the job has been there for a moment."""

        def begin() -> None:
            from robust_run.launcher.controller.usage_book import UsageBook

            agent, controller = self._agent, self.controller
            if controller is not None:
                ask = lambda: (agent.node_id, agent.usage())  # noqa: E731
                controller.usage = UsageBook(controller.state, run_directory, clock, self.later, say, ask)

        self.later(USAGE_AFTER_S, begin)

    def fetch_code(self, tree: str) -> bool:  # noqa: ARG002
        """See `ControllerLink`: what this node lacks, nobody has."""
        return False

    async def close(self) -> None:
        """See `ControllerLink`."""
        self._is_closed = True
        if self._api is not None:
            await self._api.close()

    def finished(self, finish: Finish) -> None:
        """Keep how the job ended."""
        self.finish = finish


class _Waiting:
    """A timer set before the loop exists."""

    def __init__(self, delay_s: float, call: Callable[[], None]) -> None:
        self._delay_s = delay_s
        self._call: Callable[[], None] | None = call
        self._handle: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._call is not None:
            self._handle = loop.call_later(self._delay_s, self._call)

    def cancel(self) -> None:
        """See `Timer`."""
        self._call = None
        if self._handle is not None:
            self._handle.cancel()


def api_of(
    spec: JobSpec, controller: Controller, run_directory: RunDirectory, clock: Clock, console: Console, host: str
) -> ApiServer:
    """Return what answers people; a TCP port only where one was asked for."""
    from robust_run.launcher.controller.handle import Handle, job_facts
    from robust_run.launcher.operator.server.server import ApiServer, HttpPlace
    from robust_run.launcher.records import token

    path = "" if run_directory.temporary else run_directory.path
    facts = job_facts(spec, controller, host, clock.unix_s(), path, memory=run_directory.memory)
    secret = ""
    http = None
    if spec.http_port is not None and spec.http_port != NO_PORT:
        secret = token.job_token(os.urandom(32).hex(), spec.run_id)
        token.write_token(run_directory.path, secret)
        http = HttpPlace(
            address=spec.http_host,
            port=spec.http_port,
            metrics_token=token.metrics_token_here("", os.environ),
            prometheus_dir=spec.prometheus_dir,
            run_id=spec.run_id,
        )
    handle = Handle(facts, controller, run_directory.journal)
    return ApiServer(handle, run_directory.path, secret, clock, console.say_unless_full, http)
