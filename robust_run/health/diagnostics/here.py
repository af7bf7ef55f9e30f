"""Checks on this machine: a runner process for each node, usually one. With several names it is a fleet on loopback."""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from robust_run.errors import PlatformError
from robust_run.health.checks.plan import CheckRound, MeetingPlace
from robust_run.health.checks.types import (
    CheckName,
    CheckProgramOrder,
    Ended,
    Finished,
    NodeFacts,
    NodeOrder,
    Result,
    Said,
)
from robust_run.health.diagnostics.runner import CheckRunner, StayingRunner

_DRIVER_FOLDER = "/proc/driver/nvidia/gpus"


def facts_here(
    name: str, env: Mapping[str, str], *, folder: str = "", driver_folder: str = _DRIVER_FOLDER
) -> NodeFacts:
    """Return what this machine has, without loading a driver."""
    try:
        count = len(os.listdir(driver_folder))
    except OSError:
        count = 0
    chosen = env.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        words = [word.strip() for word in chosen.split(",")]
        count = min(count, next((at for at, word in enumerate(words) if word in ("", "-1")), len(words)))
    devices = tuple(f"cuda:{number}" for number in range(min(count, 256))) or ("cpu",)
    return NodeFacts(name=name, devices=devices, folder=folder)


class LocalFleet:
    """A fleet of one machine."""

    def __init__(self, nodes: Sequence[NodeFacts], env: Mapping[str, str]) -> None:
        self._nodes = tuple(nodes)
        self._env = dict(env)
        self._listening: dict[str, socket.socket] = {}
        self._planned: tuple[CheckName, ...] = ()
        self._staying: dict[str, StayingRunner] = {}

    def facts(self) -> Sequence[NodeFacts]:
        """Return the nodes it was made of."""
        return self._nodes

    def begin(self, rounds: Sequence[CheckRound]) -> None:
        """Have one runner for each node in all rounds."""
        self._planned = tuple(made.check for made in rounds)

    def end(self) -> None:
        """End the runners."""
        self._planned = ()
        self._end(list(self._staying.values()))

    def open_places(self, nodes: Sequence[str]) -> Mapping[str, MeetingPlace]:
        """Listen for each of them on a free port of loopback. Raises PlatformError where there is none."""
        try:
            for name in nodes:
                made = socket.create_server(("127.0.0.1", 0), backlog=1024)
                self._listening[name] = made
        except OSError as error:
            self._close_places()
            raise PlatformError(f"cannot listen on 127.0.0.1: {error.strerror}") from error
        return {
            name: MeetingPlace(address="127.0.0.1", port=made.getsockname()[1], listen_fd=made.fileno())
            for name, made in self._listening.items()
        }

    def carry_out(
        self, work: Mapping[str, tuple[CheckProgramOrder, ...]], limit_s: float, tell: Callable[[str, Said], None]
    ) -> Sequence[Result]:
        """Start a runner for each node, and return what they said in time; none of them is left."""
        self._planned = self._planned[1:]
        runners: list[CheckRunner] = []
        results: list[Result] = []
        finished: set[str] = set()
        try:
            for name, orders in work.items():
                runners.append(self._runner(name, orders))
            for name, said in _lines(runners, time.monotonic() + limit_s):
                if isinstance(said, Ended):
                    results.append(said.result)
                elif isinstance(said, Finished) and not said.left:
                    finished.add(name)
                tell(name, said)
        finally:
            self._end([each for each in runners if each.name not in finished or each.name not in self._staying])
            self._close_places()
        return results

    def _runner(self, name: str, orders: tuple[CheckProgramOrder, ...]) -> CheckRunner:
        order, sockets = NodeOrder(steps=(orders,), to_come=self._planned), self._sockets(orders)
        if name in self._staying and not self._staying[name].is_there():  # it died between two rounds
            self._end([self._staying[name]])
        if name not in self._staying:
            if not self._planned:
                return CheckRunner(name, order, self._env, sockets)
            self._staying[name] = StayingRunner(name, self._env)
        self._staying[name].give(order, sockets)
        return self._staying[name]

    def _end(self, runners: Sequence[CheckRunner]) -> None:
        for runner in runners:
            self._staying.pop(runner.name, None)
            runner.ask_to_end()
        for runner in runners:
            runner.end()

    def _sockets(self, orders: Sequence[CheckProgramOrder]) -> list[int]:
        return [order.meeting.listen_fd for order in orders if order.meeting and order.meeting.listen_fd >= 0]

    def _close_places(self) -> None:
        for made in self._listening.values():
            made.close()
        self._listening.clear()


def _lines(runners: Sequence[CheckRunner], until_s: float) -> Iterator[tuple[str, Said]]:
    """Yield what runners say, until all have carried out their orders or time is up."""
    with selectors.DefaultSelector() as selector:
        for runner in runners:
            selector.register(runner.output, selectors.EVENT_READ, runner)
        while selector.get_map() and (left_s := until_s - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                said, more = key.data.read()
                for each in said:
                    yield key.data.name, each
                if not more or any(isinstance(each, Finished) for each in said):
                    selector.unregister(key.fd)
