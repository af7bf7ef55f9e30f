"""Node checks, the agent's side: says what this node has, listens for a round, and has one runner of checks as a child.

The runner is no worker: an attempt that is swept spares it, and it ends with the agent, with the connection that asked for it,
with the lease, and before an attempt begins here. It stays from round to round of a session, so that torch is imported once.
Nothing is waited for: the agent's loop renews the lease.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from robust_run.errors import PlatformError
from robust_run.health.checks.types import CheckProgramOrder, Finished, NodeFacts, NodeOrder
from robust_run.health.diagnostics.runner import END_S, CheckRunner, StayingRunner
from robust_run.launcher.agent.workers.store import Listener, listen_for_others
from robust_run.launcher.model.check_events import (
    CheckAnswer,
    CheckOrder,
    ChecksSaid,
    EndChecks,
    FactsTold,
    OpenPlace,
    PlaceOpened,
    ReplayStepped,
    RunChecks,
    TellFacts,
)
from robust_run.tracer.files.steps import read as read_steps

if TYPE_CHECKING:
    from robust_run.launcher.agent.attempt import Attempt
    from robust_run.launcher.agent.node import Node
    from robust_run.launcher.model.events import NodeEvent

#: How often an ended runner's exit is looked for.
LOOK_S = 0.02
#: A check program that is asked to end has so long before its runner is killed, where a job waits for the node.
HASTE_S = 3.0
#: How long a runner stays for a next round: longer than a round takes on other nodes.
STAY_S = 90.0


class AgentChecks:
    """One agent's. Everything happens in the thread of its loop."""

    def __init__(
        self,
        node: Node,
        deliver: Callable[[CheckAnswer], None],
        later: Callable[[float, Callable[[], None]], Any],
        on_idle: Callable[[], None],
    ) -> None:
        """`on_idle` is called when a runner and all it started have ended."""
        self._node = node
        self._deliver = deliver
        self._later = later
        self._on_idle = on_idle
        self._listener: Listener | None = None
        self._runner: CheckRunner | None = None
        self._ending: list[CheckRunner] = []
        self._is_waiting = False
        """The runner has nothing to do until the next round."""
        self._has_more = False
        self._stepped = -1
        self._number = -1
        spare = node.spare
        node.spare = lambda: [*spare(), *self.pids()]

    def pids(self) -> list[int]:
        """Return the runners, which outlive an attempt."""
        running = [self._runner] if self._runner is not None else []
        return [each.process.pid for each in (*running, *self._ending)]

    def obey(self, order: CheckOrder) -> None:
        """Carry out an order."""
        match order:
            case TellFacts():
                self._deliver(FactsTold(number=order.number, facts=self._facts()))
            case OpenPlace():
                self._open(order)
            case RunChecks():
                self._run(order)
            case EndChecks():
                self.end()

    def _facts(self) -> NodeFacts:
        from robust_run.health.diagnostics.here import facts_here

        facts = facts_here("", self._node.env)
        chosen = "GLOO_SOCKET_IFNAME" in self._node.env
        return msgspec.structs.replace(facts, interface="" if chosen else interface_of(self._node.address))

    def _open(self, order: OpenPlace) -> None:
        self._close_place()
        try:
            self._listener = listen_for_others(self._node.address)
        except PlatformError:
            self._deliver(PlaceOpened(number=order.number))
            return
        self._deliver(PlaceOpened(number=order.number, address=self._listener.address, port=self._listener.port))

    def _close_place(self) -> None:
        if self._listener is not None:
            self._listener.socket.close()
            self._listener = None

    def _run(self, order: RunChecks) -> None:
        self._number = order.number
        listening = self._listener.socket.fileno() if self._listener is not None else -1
        try:
            self._give(order, listening)
        except PlatformError as error:
            self._end_runner()
            self._deliver(ChecksSaid(number=order.number, is_over=True, problem=str(error)[:400]))
        finally:
            self._close_place()

    def _give(self, order: RunChecks, listening: int) -> None:
        programs = tuple(_listening_on(each, listening) for each in order.orders)
        made = NodeOrder(steps=(programs,), to_come=order.to_come)
        sockets = [listening] if listening >= 0 else []
        runner = self._runner
        if not (self._is_waiting and isinstance(runner, StayingRunner) and runner.is_there()):
            self._end_runner()
            env = {name: value for name, value in self._node.env.items() if name != "ROBUST_TOKEN"}
            runner = StayingRunner("", env) if order.to_come else CheckRunner("", made, env, sockets)
            self._runner = runner
            _loop().add_reader(runner.output, self._read, runner)
        self._is_waiting, self._has_more = False, bool(order.to_come)
        if isinstance(runner, StayingRunner):
            runner.give(made, sockets)

    def _read(self, runner: CheckRunner) -> None:
        said, more = runner.read()
        finished = [each for each in said if isinstance(each, Finished) and isinstance(runner, StayingRunner)]
        # One that could not end a process would try again in each round.
        waits = bool(finished) and not finished[-1].left and more and self._has_more
        if runner is self._runner and said:
            self._deliver(ChecksSaid(number=self._number, said=tuple(said), is_over=waits))
            if waits:
                self._stay(runner)
        if not more:
            _loop().remove_reader(runner.output)
            self._retire(runner)
        elif finished and not waits:
            runner.ask_to_end()

    def _stay(self, runner: CheckRunner) -> None:
        """Keep a runner for the next round, for a while."""
        self._is_waiting = True
        number = self._number

        def look() -> None:
            if runner is self._runner and self._is_waiting and self._number == number:
                self._end_runner()

        self._later(STAY_S, look)

    def _retire(self, runner: CheckRunner) -> None:
        """Wait for the end of a runner that has said all."""
        if runner is self._runner:
            self._ending.append(runner)
            self._runner = None
            number = self._number
            self._await_end(runner, END_S, lambda: self._deliver(ChecksSaid(number=number, is_over=True)))

    def end(self) -> bool:
        """Have what runs end; whether nothing does."""
        self._close_place()
        self._end_runner()
        return not self._ending

    def _end_runner(self) -> None:
        runner, self._runner, self._is_waiting = self._runner, None, False
        if runner is None:
            return
        with suppress(RuntimeError):
            _loop().remove_reader(runner.output)
        runner.ask_to_end()
        self._ending.append(runner)
        self._await_end(runner, HASTE_S, lambda: None)

    def _await_end(self, runner: CheckRunner, within_s: float, then: Callable[[], None]) -> None:
        give_up_at_s = time.monotonic() + within_s

        def look() -> None:
            if runner.process.poll() is None:
                if time.monotonic() > give_up_at_s:
                    with suppress(OSError):
                        runner.process.kill()  # with it its programs end
                self._later(LOOK_S, look)
                return
            self._ending.remove(runner)
            runner.end()
            then()
            if not self._ending and self._runner is None:
                self._on_idle()

        look()

    def look(self, attempt: Attempt, node_id: str, report: Callable[[NodeEvent], None]) -> None:
        """Say when all ranks of a replay have made their steps."""
        if attempt.number == self._stepped or attempt.is_ending or not attempt.workers:
            return
        for worker in attempt.workers:
            count = read_steps(self._node.run_directory.steps_file(attempt.number, worker.rank))
            if count is None or count.steps < attempt.replay_steps:
                return
        self._stepped = attempt.number
        report(ReplayStepped(attempt=attempt.number, node=node_id))


def _listening_on(order: CheckProgramOrder, descriptor: int) -> CheckProgramOrder:
    """Return an order in which the first process knows the descriptor that listens for its peers."""
    if order.meeting is None or order.meeting.rank != 0:
        return order
    return msgspec.structs.replace(order, meeting=msgspec.structs.replace(order.meeting, listen_fd=descriptor))


def interface_of(address: str) -> str:
    """Return the network interface that has this IPv4 address; empty if none is found."""
    import fcntl
    import socket
    import struct

    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        wanted = socket.inet_aton(socket.gethostbyname(address))
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                data = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", os.fsencode(name)[:15]))  # SIOCGIFADDR
                if data[20:24] == wanted:
                    return name
    return ""


def _loop() -> Any:
    import asyncio

    return asyncio.get_running_loop()
