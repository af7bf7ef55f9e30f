"""Event loop of an agent: the loop, who is listened to, signals, sensors, what is looked at every second.

Imported after the first workers of a one-node job have been started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from robust_run.errors import InternalError, PlatformError
from robust_run.installation import OURS, ended_by
from robust_run.launcher.agent.housekeeping import Housekeeping
from robust_run.launcher.agent.signals import AgentSignals
from robust_run.launcher.model.events import SignalPassedOn

if TYPE_CHECKING:
    import socket

    from robust_run.launcher.agent.agent import Agent
    from robust_run.launcher.agent.attempt import Attempt
    from robust_run.launcher.agent.health import AgentHealth
    from robust_run.launcher.agent.memory.flush import LastFlush
    from robust_run.launcher.agent.node import Node
    from robust_run.launcher.agent.signals import Scheduler
    from robust_run.launcher.agent.workers.store import StoreHost
    from robust_run.launcher.model.links import ControllerLink


HOUSEKEEPING_S = 1.0
#: Sensors wait so long for the first workers' sake.
SENSORS_AFTER_S = 1.0


class HelperListeners:
    """Listeners on the sockets of an agent's helper processes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: StoreHost) -> None:
        self._loop = loop
        self._store = store

    def listen(self, sock: socket.socket, call: Callable[[], None] | None) -> None:
        """Call whenever there is something to read; None: not any more."""
        if sock.fileno() >= 0:
            self._loop.remove_reader(sock.fileno())
            if call is not None:
                self._loop.add_reader(sock.fileno(), call)

    def listen_to_store(self) -> None:
        """Listen to the store's process, which may be a new one."""
        descriptor = self._store.fileno()
        if descriptor is not None:
            self._loop.add_reader(descriptor, self._read_store, descriptor)

    def _read_store(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        if self._store.fileno() != descriptor:
            return
        self._store.read()
        self.listen_to_store()


def run(agent: Agent, node: Node, link: ControllerLink, lifeline: int, scheduler: Scheduler | None = None) -> int:
    """Serve until this node is no longer needed and return its exit code; `lifeline` is the guard's pipe (see `guard`).

    Raises InternalError: a fault of ours must end the job rather than leave it unwatched: the guard then ends its processes.
    """
    return asyncio.run(live(agent, node, link, lifeline, scheduler))


async def live(
    agent: Agent, node: Node, link: ControllerLink, lifeline: int, scheduler: Scheduler | None = None
) -> int:
    """Do what `run` does, in a loop that runs already."""
    await AgentLoop(agent, node, link, scheduler).live(lifeline)
    assert agent.exit_code is not None
    return agent.exit_code


class AgentLoop:
    """One agent's. Made within the loop, and served until the agent is no longer needed."""

    def __init__(self, agent: Agent, node: Node, link: ControllerLink, scheduler: Scheduler | None) -> None:
        self._agent = agent
        self._node = node
        self._link = link
        self._scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        self._listeners = HelperListeners(self._loop, node.store)
        self._housekeeping = Housekeeping(agent, node)
        self._health: AgentHealth | None = None
        """The agent's part in what sensors see; None: not begun, or switched off."""
        self._bug: BaseException | None = None
        self._told_at_s: float | None = None
        """When a signal said that the job, or this node's part in it, is to end."""
        self._last_flush: LastFlush | None = None

    async def live(self, lifeline: int) -> None:
        """Serve until `stop`; `lifeline` is the guard's pipe (see `guard`).

        Raises InternalError: a fault of ours must end the job rather than leave it unwatched: the guard then ends its processes.
        """
        self._loop.set_exception_handler(self._on_bug)
        self._attach_signals(lifeline)
        self._node.router.attach(self._loop)
        self._listeners.listen_to_store()
        self._node.starter.attach(self._listeners.listen)
        self._agent.loop_runs(self)
        self._link.attach(self._loop)
        if self._agent.exit_code is not None:
            self._done.set()
        self._keep_house()
        if self._node.spec.sensors:
            self.later(SENSORS_AFTER_S, self._begin_health)
        await self._done.wait()
        if self._health is not None:
            self._health.end()
        if self._node.spec.ckpt_memory:
            await self._flush_memory()
            self._agent.parts.let_memory_go()
        self._housekeeping.look_for_first_step()
        await self._link.close()
        if self._bug is not None:
            if change := OURS.change():
                raise PlatformError(ended_by(self._bug, change)) from self._bug
            raise InternalError(f"a fault of robust-run ended the job: {self._bug!r}; please report it") from self._bug

    async def _flush_memory(self) -> None:
        """Have what was saved in memory last written to storage: with the keeper it would be gone.

        A node that leaves a job of several cannot do that by itself; but all of them may have been told to end at once.
        """
        keeper, spec = self._agent.parts.keeper, self._node.spec
        is_job_over = self._agent.is_job_over or spec.many is None
        if keeper is None or self._bug is not None or not (is_job_over or self._told_at_s is not None):
            return
        from robust_run.launcher.agent.memory.flush import LastFlush

        self._last_flush = LastFlush(
            keeper,
            self._node.say,
            self._loop,
            spec.shutdown_timeout_s,
            is_job_over=is_job_over,
            stands_in=self._agent.stands_in,
        )
        await self._last_flush.run(self._told_at_s)

    def stop(self) -> None:
        """Have `live` return."""
        self._done.set()

    def later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call after a time."""
        return self._loop.call_later(delay_s, call)

    def call_soon(self, call: Callable[[], None]) -> asyncio.Handle:
        """Call in the loop's thread; from any thread. Raises RuntimeError if the loop is closed."""
        return self._loop.call_soon_threadsafe(call)

    def _on_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._bug = context.get("exception") or InternalError(str(context.get("message")))
        if not OURS.change():  # else that is the reason, and there is nothing to report
            loop.default_exception_handler(context)
        self.stop()

    # --- attempts

    def listen(self, sock: socket.socket, call: Callable[[], None] | None) -> None:
        """Call whenever there is something to read; None: not any more."""
        self._listeners.listen(sock, call)

    def watch(self, attempt: Attempt) -> None:
        """See its workers end from now on; those that have already ended are seen at once."""
        attempt.watch(self._loop)

    def attempt_began(self, attempt: Attempt) -> None:
        """Watch an attempt that was just started: its workers, its store, what its sensors see."""
        self.watch(attempt)
        self._listeners.listen_to_store()
        if self._health is not None:
            self._health.attempt_began(attempt)

    def attempt_is_ending(self) -> None:
        """Its end is about to be reported: what came before must be on record before."""
        self._housekeeping.look_for_first_step()

    def attempt_ended(self) -> None:
        """No workers run here any more."""
        if self._health is not None:
            self._health.attempt_ended()

    # --- every second

    def _keep_house(self, rounds: int = 1) -> None:
        self._housekeeping.look(rounds, self._health)
        self.later(HOUSEKEEPING_S, lambda: self._keep_house(rounds + 1))

    def _begin_health(self) -> None:
        if self._done.is_set():
            return
        from robust_run.launcher.agent.health import begin

        agent = self._agent
        attempt = agent.attempt if agent.is_running else None
        self._health = begin(self._node, agent.node_id, self._loop, agent.report, attempt)

    def usage(self) -> tuple[float, ...]:
        """Return what this node did since the last call; empty where it is not watched."""
        return self._health.usage() if self._health is not None else ()

    # --- signals: see `agent.signals.Reacts`

    def _attach_signals(self, lifeline: int) -> None:
        signals = AgentSignals(self, self._node.spec, self._node.clock, self._node.say)
        if self._scheduler is not None and self._node.spec.slurm is not None:
            signals.watch = self._scheduler(self, self._node, self._link, self._loop)
        signals.attach(self._loop, lifeline)

    def told_to_end(self, number: int, *, again: bool) -> None:
        """Leave it to whom the agent reports to."""
        self._told_at_s = self._loop.time() if self._told_at_s is None else self._told_at_s
        if self._last_flush is not None:
            self._last_flush.told_to_end(again=again)
        self._link.told_to_end(number, again=again)

    def guard_lost(self) -> None:
        """Leave it to whom the agent reports to."""
        self._told_at_s = self._loop.time() if self._told_at_s is None else self._told_at_s
        if self._last_flush is not None:
            self._last_flush.told_to_end(again=True)
        self._link.guard_lost()

    def resized(self) -> None:
        """Tell the workers' terminals and the workers."""
        self._node.router.resize()
        if self._agent.attempt is not None:
            self._agent.attempt.tell_resized()

    def pass_on(self, number: int) -> tuple[list[int], list[int]]:
        """Hand a signal to the workers that handle it; return their ranks, and those of the workers that do not."""
        attempt = self._agent.attempt
        if attempt is None:
            return [], []
        told = attempt.pass_on(number)
        self._agent.report(SignalPassedOn(signal=number, ranks=tuple(told), node=self._agent.node_id))
        return told, sorted(set(attempt.living()) - set(told))
