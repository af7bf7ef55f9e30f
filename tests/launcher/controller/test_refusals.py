"""What the user hears of agents that are not let in."""

from __future__ import annotations

from robust_run.launcher.controller.refusals import MOST_LINES, Refusals


def test_a_refusal_is_said_once_for_a_host_whatever_its_port() -> None:
    said: list[str] = []
    refusals = Refusals(said.append)
    for port in (4001, 4002):
        refusals(f"10.77.0.11:{port}", "its token differs")
    assert said == ["the agent at 10.77.0.11 was turned away: its token differs"]
    refusals("10.77.0.12:4001", "its token differs")
    refusals("10.77.0.11:4003", "it speaks protocol 7")
    assert len(said) == refusals.count == 3


def test_many_refusals_do_not_flood_the_terminal() -> None:
    said: list[str] = []
    refusals = Refusals(said.append)
    for number in range(3 * MOST_LINES):
        refusals(f"10.0.0.{number}:1", "its token differs")
    assert len(said) == MOST_LINES
    assert said[-1].endswith("further refusals are in controller.log alone")
