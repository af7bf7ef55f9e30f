"""Checks on an agent's node: one runner for all rounds of a session, which ends with the last and when the node is needed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from robust_run.health.checks.types import CheckProgramOrder, Ended, Meeting
from robust_run.launcher.agent.checks import STAY_S, AgentChecks
from robust_run.launcher.model.check_events import ChecksSaid, EndChecks, OpenPlace, RunChecks

pytestmark = pytest.mark.timeout(600)


class Desk:
    """An agent's checks, and what they deliver."""

    def __init__(self, folder: str, **env: str) -> None:
        self.delivered: list[Any] = []
        self.idle = 0
        self.folder = folder
        loop = asyncio.get_running_loop()
        self.later: list[tuple[float, Callable[[], None]]] = []

        def later(delay_s: float, call: Callable[[], None]) -> object:
            self.later.append((delay_s, call))
            return loop.call_later(delay_s, call)

        node = SimpleNamespace(env={**os.environ, **env}, spare=list, address="127.0.0.1")
        self.checks = AgentChecks(node, self.delivered.append, later, self._on_idle)  # type: ignore[arg-type]

    def _on_idle(self) -> None:
        self.idle += 1

    def order(self, number: int, check: str = "disk", to_come: tuple[str, ...] = (), **more: Any) -> None:
        small = {"check": check, "node": "a", "seconds": 0.0, "passes": 1, "size_bytes": 1 << 20, "folder": self.folder}
        made = CheckProgramOrder(**{**small, **more})
        self.checks.obey(RunChecks(number=number, orders=(made,), to_come=to_come))  # type: ignore[arg-type]

    async def over(self, number: int) -> list[str]:
        """Wait until a round is over; return the outcomes of its programs."""

        def answers() -> list[ChecksSaid]:
            return [each for each in self.delivered if isinstance(each, ChecksSaid) and each.number == number]

        await until(lambda: any(each.is_over for each in answers()))
        assert not any(each.problem for each in answers())
        return [said.result.outcome for each in answers() for said in each.said if isinstance(said, Ended)]


async def until(what: Callable[[], bool]) -> None:
    while not what():
        await asyncio.sleep(0.01)


def on_a_desk(story: Callable[[Desk], Awaitable[None]], folder: Any, **env: str) -> None:
    async def whole() -> None:
        desk = Desk(str(folder), **env)
        try:
            await story(desk)
        finally:
            desk.checks.end()
            await until(lambda: not desk.checks.pids())

    asyncio.run(whole())


def test_a_runner_stays_while_something_is_to_come_and_ends_with_the_last_round(tmp_path: Any) -> None:
    async def story(desk: Desk) -> None:
        desk.order(1, to_come=("disk", "disk"))
        assert await desk.over(1) == ["done"]
        (runner,) = desk.checks.pids()
        desk.order(2, to_come=("disk",))
        assert await desk.over(2) == ["done"]
        assert desk.checks.pids() == [runner]
        desk.order(3)
        assert await desk.over(3) == ["done"]
        assert desk.checks.pids() == []
        assert desk.idle == 1

    on_a_desk(story, tmp_path)


def test_a_node_that_is_needed_is_free_at_once(tmp_path: Any) -> None:
    async def story(desk: Desk) -> None:
        desk.order(1, to_come=("disk",))
        await desk.over(1)
        assert not desk.checks.end(), "the runner is about to end"
        await until(lambda: desk.idle == 1)
        assert desk.checks.end() and desk.checks.pids() == []

    on_a_desk(story, tmp_path)


def test_a_session_that_was_given_up_leaves_nothing(tmp_path: Any) -> None:
    async def story(desk: Desk) -> None:
        desk.order(1, to_come=("disk",))
        await desk.over(1)
        desk.checks.obey(EndChecks())
        await until(lambda: desk.idle == 1)
        desk.order(2, to_come=("disk",))
        assert await desk.over(2) == ["done"]

    on_a_desk(story, tmp_path)


def test_a_runner_that_died_while_it_waited_has_a_successor(tmp_path: Any) -> None:
    async def story(desk: Desk) -> None:
        desk.order(1, to_come=("disk",))
        await desk.over(1)
        (runner,) = desk.checks.pids()
        os.kill(runner, signal.SIGKILL)
        os.waitid(os.P_PID, runner, os.WEXITED | os.WNOWAIT)
        desk.order(2, to_come=("disk",))
        assert await desk.over(2) == ["done"]
        assert desk.checks.pids() != [runner]

    on_a_desk(story, tmp_path)


def test_a_runner_does_not_wait_for_ever_for_a_next_round(tmp_path: Any) -> None:
    async def story(desk: Desk) -> None:
        for number in (1, 2):
            desk.order(number, to_come=("disk",))
            await desk.over(number)
        early, late = [call for delay_s, call in desk.later if delay_s == STAY_S]
        early()
        assert len(desk.checks.pids()) == 1 and desk.checks._runner is not None, "it has had another round since"
        late()
        await until(lambda: desk.idle == 1)
        assert desk.checks.pids() == []

    on_a_desk(story, tmp_path)


def test_a_round_that_is_not_over_is_ended_by_the_next(tmp_path: Any) -> None:
    async def story(desk: Desk) -> None:
        desk.order(1, to_come=("disk",), limit_s=1000.0)
        await until(lambda: bool(desk.delivered))
        desk.order(2, check="memory", to_come=("disk",))
        assert await desk.over(2) == ["done"]
        assert not any(each.is_over for each in desk.delivered if each.number == 1)

    on_a_desk(story, tmp_path, ROBUST_CHECK_FAULTS='[{"check": "disk", "hang": true}]')


def test_ranks_of_a_later_round_meet_where_the_agent_listens(tmp_path: Any) -> None:
    async def story(desk: Desk) -> None:
        desk.order(1, check="compute", to_come=("exchange",))
        assert await desk.over(1) == ["done"]
        desk.checks.obey(OpenPlace(number=2))
        place = desk.delivered[-1]
        meetings = [Meeting(rank=rank, nodes=("a", "a"), address="127.0.0.1", port=place.port) for rank in (0, 1)]
        orders = tuple(
            CheckProgramOrder(check="exchange", node="a", seconds=0.0, passes=2, size_bytes=1 << 16, meeting=each)
            for each in meetings
        )
        desk.checks.obey(RunChecks(number=3, orders=orders, to_come=("disk",)))
        assert await desk.over(3) == ["done", "done"]

    on_a_desk(story, tmp_path, GLOO_SOCKET_IFNAME="lo")
