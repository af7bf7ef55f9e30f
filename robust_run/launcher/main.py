"""From a checked command line to an exit code: puts the parts of a one-node job together and speaks the last word."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from robust_run.clock import Clock, SystemClock
from robust_run.errors import RobustRunError, UserError
from robust_run.launcher import core
from robust_run.launcher.agent import Agent
from robust_run.launcher.console import DRAIN_S, Console
from robust_run.launcher.controller.controller import Controller, Timer
from robust_run.launcher.controller.last_word import say_goodbye
from robust_run.launcher.events import (
    ControllerResumed,
    Event,
    Finish,
    GuardLost,
    JobStarted,
    NodeEvent,
    NodeJoined,
    NodeLost,
    Order,
    SignalReceived,
)
from robust_run.launcher.guard import guard_is_gone, hold_signals, run_guarded
from robust_run.launcher.incidents import IncidentBook
from robust_run.launcher.journal import Journal
from robust_run.launcher.node import Node
from robust_run.launcher.policy import policy_of
from robust_run.launcher.process_tree import become_subreaper
from robust_run.launcher.run_directory import RunDirectory
from robust_run.launcher.types import JobSpec, NodeInfo
from robust_run.launcher.warm import client as warm_process
from robust_run.version import __version__

if TYPE_CHECKING:
    import asyncio

    from robust_run.launcher.api.server import ApiServer
    from robust_run.launcher.warm.given import WarmStart

#: A job is asked how it is only when it has been there for a moment; its start has better things to do.
SERVE_AFTER_S = 0.5


def launch(spec: JobSpec, env: Mapping[str, str]) -> int:
    """Run a job to its end and return the launcher's exit code. Raises UserError and PlatformError before anything runs."""
    if spec.many is not None:
        from robust_run.launcher.many.main import launch_many

        return launch_many(spec, env)
    mask = hold_signals(spec.end_signals)
    try:
        run_directory = RunDirectory.create(spec.log_dir, spec.run_id)
        try:
            offer = warm_process.look(spec, env)
            return run_guarded(
                lambda lifeline: run_agent(_with_note(spec, offer.note), env, run_directory, lifeline, mask),
                spec.end_signals,
                mask,
                elsewhere=lambda lifeline: offer.hand_over(spec, env, run_directory, lifeline, mask),
            )
        finally:
            run_directory.remove_temporary()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def resume(spec: JobSpec, env: Mapping[str, str], run_directory: RunDirectory) -> int:
    """Go on with a one-node job from its journal, with the attempt after the last. Raises PlatformError."""
    mask = hold_signals(spec.end_signals)
    try:
        try:
            return run_guarded(
                lambda lifeline: run_agent(spec, env, run_directory, lifeline, mask, resumed=True),
                spec.end_signals,
                mask,
            )
        finally:
            run_directory.remove_temporary()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _with_note(spec: JobSpec, note: str) -> JobSpec:
    return msgspec.structs.replace(spec, notes=(*spec.notes, note)) if note else spec


class OneNode:
    """The controller of a one-node job as its agent sees it, and the agent as the controller sees it."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[_Waiting] = []
        self.controller: Controller | None = None
        self.finish: Finish | None = None
        self.on_loop: Callable[[asyncio.AbstractEventLoop], object] = lambda _: None
        self._api: ApiServer | None = None

    def _tell(self, event: Event) -> None:
        if self.controller is not None:
            self.controller.tell(event)

    def report(self, event: NodeEvent) -> None:
        """See `Superior`."""
        self._tell(event)

    def told_to_end(self, number: int, *, again: bool) -> None:
        """See `Superior`."""
        self._tell(SignalReceived(signal=number, again=again))

    def guard_lost(self) -> None:
        """See `Superior`."""
        self._tell(GuardLost())

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """See `Superior`."""
        self._loop = loop
        for waiting in self._waiting:
            waiting.start(loop)
        self.on_loop(loop)

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

    def serve_people(self, api: ApiServer) -> None:
        """Answer `robust status` and its like from now on."""
        api.start()
        self._api = api

    async def close(self) -> None:
        """See `Superior`."""
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


def run_agent(
    spec: JobSpec,
    env: Mapping[str, str],
    run_directory: RunDirectory,
    lifeline: int,
    mask: set[int],
    given: WarmStart | None = None,
    *,
    resumed: bool = False,
) -> int:
    """Be agent and controller of a one-node job, in a process of its own, and return the exit code.

    `mask` is the signal mask for workers; the signals the agent handles are held until it can. `given`: it was forked from a
    warm process. `resumed`: the run directory holds the journal of a controller that is gone.
    """
    clock = SystemClock()
    started_at_s = clock.monotonic_s()
    console = Console(spec, clock)
    agent: Agent | None = None

    def report(event: NodeEvent) -> None:
        if agent is not None:
            agent.report(event)

    try:
        become_subreaper()
        node = Node(spec, env, clock, run_directory, console.router, console.complain, report, mask, given)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # the agent's group is not the terminal's, and it writes to it
        host = socket.gethostname()
        agent = Agent(node, os.urandom(8).hex())
        link = OneNode(agent)
        agent.serve(link)
        journal = Journal(run_directory.journal, clock, on_error=console.complain)
        if not journal.claim():
            raise UserError(f"another launcher continues the run in {run_directory.path!r}; robust status shows it")
        book = IncidentBook(clock, run_directory, console.say, console.complain)
        controller = link.controller = _controller(spec, clock, link, journal, book, resumed=resumed)
        link.on_loop = lambda _: link.later(
            SERVE_AFTER_S, lambda: link.serve_people(_api(spec, controller, run_directory, clock, console, host))
        )
        if not resumed:
            journal.open_with(spec, host)
        _begin(
            controller, NodeInfo(id=agent.node_id, name=host, nproc=spec.nproc, version=__version__), resumed=resumed
        )
        _greet(spec, node, resumed=resumed)
        agent.run(lifeline)
        book.flush()
        node.end_helpers()
        assert link.finish is not None
        lived_s = clock.monotonic_s() - started_at_s
        say_goodbye(console.say, run_directory, book, link.finish, controller.state, lived_s)
        journal.wait_durable(DRAIN_S)
        return link.finish.exit_code
    except RobustRunError as error:
        console.say(str(error))
        return error.exit_code
    except RuntimeError as error:
        if "thread" not in str(error):
            raise
        os.write(2, f"robust-run: {error}; is the process limit (ulimit -u) reached?\n".encode())
        return 1
    finally:
        console.close()
        if guard_is_gone(lifeline):  # it was killed, so nobody else will
            run_directory.remove_temporary()


def _controller(
    spec: JobSpec, clock: Clock, link: OneNode, journal: Journal, book: IncidentBook, *, resumed: bool
) -> Controller:
    policy = policy_of(spec)
    state = core.JobState()
    if resumed:
        state = core.replay(policy, journal.past_events())
        journal.term = state.term + 1
        book.load()
    return Controller(
        policy=policy,
        state=state,
        journal=journal,
        book=book,
        clock=clock,
        outbox=link,
        later=link.later,
        on_finish=link.finished,
    )


def _begin(controller: Controller, node: NodeInfo, *, resumed: bool) -> None:
    """Start the first attempt; or, in a job that goes on, the next: whatever the old agent had started died with it."""
    if not resumed:
        controller.tell(JobStarted())
    else:
        old = [member.info.id for member in controller.state.members.values() if member.present]
        controller.tell(ControllerResumed(term=controller.state.term + 1, host=node.name))
        for each in old:
            controller.tell(NodeLost(node=each, silent_s=0.0))
    controller.tell(NodeJoined(node=node))


def _api(
    spec: JobSpec, controller: Controller, run_directory: RunDirectory, clock: Clock, console: Console, host: str
) -> ApiServer:
    """Return what answers people; a TCP port only where one was asked for."""
    from robust_run.launcher import token
    from robust_run.launcher.api.handle import JobFacts
    from robust_run.launcher.api.server import ApiServer, HttpPlace
    from robust_run.launcher.controller.handle import Handle

    facts = JobFacts(
        run_id=spec.run_id,
        rdzv_id=spec.rdzv_id,
        script=spec.script,
        host=host,
        pid=os.getpid(),
        version=__version__,
        started_unix_s=clock.unix_s(),
        run_directory="" if run_directory.temporary else run_directory.path,
        policy=controller.policy,
    )
    secret = ""
    if spec.http_port is not None:
        secret = token.job_token(os.urandom(32).hex(), spec.run_id)
        token.write_token(run_directory.path, secret)
    http = HttpPlace(port=spec.http_port) if spec.http_port is not None else None
    handle = Handle(facts, controller, run_directory.journal)
    return ApiServer(handle, run_directory.path, secret, clock, console.say_unless_full, http)


def _greet(spec: JobSpec, node: Node, *, resumed: bool) -> None:
    ranks = f"{spec.nproc} workers" if spec.nproc > 1 else "1 worker"
    logs = (
        "no logs kept"
        if node.run_directory.temporary
        else f"logs in {node.run_directory.shown(node.run_directory.path)}"
    )
    node.say(f"{ranks} of {spec.script} {'resumed' if resumed else 'started'}, {logs}")
    for note in spec.notes:
        node.say(note)
