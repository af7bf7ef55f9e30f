"""RAS is asked on suspicion, by few nodes, and its answer travels with what these see."""

from __future__ import annotations

import asyncio

import pytest

from robust_run.tracer.ras.types import RasReport
from robust_run.tracer.sight.ras import heard, is_ours_to_ask, with_report
from robust_run.tracer.types import RankSight

REPORT = RasReport(nccl="2.29.7", form="json", communicators=())


@pytest.mark.parametrize(
    ("address", "ranks", "samples", "asks"),
    [
        ("127.0.0.1:5", (0, 1, 2, 3), 3, True),
        ("127.0.0.1:5", (1,), 3, True),
        ("127.0.0.1:5", (4, 5, 6, 7), 3, False),
        ("127.0.0.1:5", (0, 1), 1, False),
        ("", (0, 1), 3, False),
    ],
)
def test_who_asks_and_when(address: str, ranks: tuple[int, ...], samples: int, asks: bool):
    assert is_ours_to_ask(address, ranks, samples) == asks


def test_nobody_answers_without_raising():
    assert asyncio.run(heard("127.0.0.1:1", (0,), 3)) is None


def test_the_answer_is_on_one_sight():
    sights = tuple(RankSight(rank=rank, node="a") for rank in range(3))
    assert [sight.ras for sight in with_report(sights, REPORT)] == [REPORT, None, None]
    assert with_report(sights, None) == sights
    assert with_report((), REPORT) == ()
