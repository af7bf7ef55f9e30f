"""What NCCL completed travels with the rounds of the agents and is added up by the controller."""

from __future__ import annotations

import pytest
from stories import several_nodes

from robust_run.clock import SystemClock
from robust_run.launcher.control.errors import ProtocolError
from robust_run.launcher.control.frames import HEADER_BYTES, decode_from_agent, encode
from robust_run.launcher.controller.comparing.pacing import Pacing
from robust_run.launcher.core.rebase import rebased_sights
from robust_run.launcher.model.job import Paces
from robust_run.tracer.nccl.rates import NAMES, CommRate
from robust_run.tracer.pace.types import NodePace


def paces(*rates: CommRate, attempt: int = 0) -> Paces:
    return Paces(pace=NodePace(attempt, "", 10.0, 20.0, ()), nccl=rates)


def pacing() -> Pacing:
    return Pacing(
        state=several_nodes("a", "b").state,
        clock=SystemClock(),
        ask=lambda _: False,
        tell=lambda _: None,
        say=lambda _: None,
    )


def test_rates_of_all_nodes_are_added_up():
    rounds = pacing()
    rounds.take("a", paces(CommRate("dp_1", 2, 10, 20, 0.5)))
    rounds.take("b", paces(CommRate("dp_1", 1, 1, 2, 0.25), CommRate("tp_0", 1, 0, 0, 0.0)))
    rounds.take("a", paces(CommRate("dp_1", 2, 10, 20, 0.5)))
    assert rounds.nccl_rates() == (CommRate("dp_1", 5, 21, 42, 1.25), CommRate("tp_0", 1, 0, 0, 0.0))


def test_nodes_that_are_not_of_the_attempt_do_not_count():
    rounds = pacing()
    rounds.take("c", paces(CommRate("dp_1", 2, 10, 20, 0.5)))
    rounds.take("a", paces(CommRate("dp_1", 2, 10, 20, 0.5), attempt=7))
    assert rounds.nccl_rates() == ()


def test_they_travel_and_keep_through_a_change_of_clock():
    said = paces(CommRate("dp_1", 2, 10, 20, 0.5))
    assert decode_from_agent(encode(said)[HEADER_BYTES:]) == said
    moved = rebased_sights(said, 100.0)
    assert isinstance(moved, Paces)
    assert (moved.nccl, moved.pace.began_s) == (said.nccl, 110.0)


@pytest.mark.parametrize(
    "rates",
    [
        [CommRate(f"c{number}", 1, 1, 1, 0.0) for number in range(NAMES + 2)],
        [CommRate("x" * 1000, 1, 1, 1, 0.0)],
        [CommRate("dp_1", -1, 1, 1, 0.0)],
        [CommRate("dp_1", 1, 1, 1, -1.0)],
    ],
)
def test_more_than_was_agreed_is_no_message(rates: list[CommRate]):
    with pytest.raises(ProtocolError):
        decode_from_agent(encode(paces(*rates))[HEADER_BYTES:])
