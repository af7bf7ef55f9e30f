"""The end of a job waits for what memory has to be in storage: so long, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from robust_run.ckpt_io.memory.agent_protocol import Flushed
from robust_run.launcher.agent.memory.flush import LEAST_S, PERHAPS_S, TOLD_S, UNASKED_S, LastFlush, left_s


class FakeKeeper:
    """Answers as many times as it was asked, when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, float]] = []
        self.then: Callable[[Flushed | None], None] = lambda _: None

    def flush(
        self,
        limit_s: float,
        others_s: float,
        then: Callable[[Flushed | None], None],
        *,
        is_job_over: bool,
        stands_in: tuple[int, ...],
    ) -> None:
        self.asked.append((limit_s, others_s))
        self.then = then


def ended(
    *steps: Callable[[FakeKeeper, LastFlush], None], told_after_s: float | None = None, is_job_over: bool = True
) -> tuple[FakeKeeper, list[str]]:
    """The end of a job during which these happen."""
    keeper, said = FakeKeeper(), []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        flush = LastFlush(keeper, said.append, loop, 30.0, is_job_over=is_job_over)
        for step in steps:
            loop.call_soon(step, keeper, flush)
        await flush.run(None if told_after_s is None else loop.time() - told_after_s)

    asyncio.run(run())
    return keeper, said


def answers(text: str, *, is_stored: bool = True) -> Callable[[FakeKeeper, LastFlush], None]:
    return lambda keeper, _: keeper.then(Flushed(number=0, text=text, is_stored=is_stored))


def test_a_job_that_ends_by_itself_has_time() -> None:
    keeper, said = ended(answers("step 5 was written"))
    assert (keeper.asked[0][0], said) == (UNASKED_S, ["step 5 was written"])


def test_a_signal_leaves_less_time_and_the_second_none() -> None:
    keeper, said = ended(
        lambda _, flush: flush.told_to_end(again=False),
        lambda _, flush: flush.told_to_end(again=True),
        answers("there was no more time", is_stored=False),
        lambda _, flush: flush.told_to_end(again=True),
    )
    assert [limit_s for limit_s, _ in keeper.asked] == [UNASKED_S, TOLD_S, 0.0]
    assert said == ["there was no more time"]


@pytest.mark.parametrize(
    ("since_told_s", "shutdown_timeout_s", "left"),
    [(0.0, 30.0, TOLD_S), (20.0, 30.0, 23.0), (20.0, 20.0, 8.0), (29.0, 20.0, LEAST_S), (500.0, 30.0, LEAST_S)],
)
def test_after_a_signal_there_is_what_a_scheduler_leaves(
    since_told_s: float, shutdown_timeout_s: float, left: float
) -> None:
    assert left_s(since_told_s, shutdown_timeout_s) == pytest.approx(left)


def test_a_keeper_that_is_gone_ends_it() -> None:
    _, said = ended(lambda keeper, _: keeper.then(None))
    assert said == []


def test_nothing_is_said_of_a_step_that_only_this_node_would_have_written() -> None:
    failed = answers("nothing was heard of the node of rank 0", is_stored=False)
    keeper, said = ended(failed, told_after_s=1.0, is_job_over=False)
    assert (keeper.asked[0][1], said) == (PERHAPS_S, [])
