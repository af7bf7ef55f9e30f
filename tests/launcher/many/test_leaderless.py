"""A job whose controller is lost before anybody was in line: who offers to lead, and who does not."""

from __future__ import annotations

import asyncio

import pytest

from robust_run.launcher.controller.leadership.types import CoordinatorUnreachable, LeaderRecord, RunStanding
from robust_run.launcher.start.many.leaderless import MOST_SPREAD_S, LeaderlessWatch, offers, turn_of

LED = RunStanding(
    run_id="run", leader=LeaderRecord(term=1, address="n0:1", host="n0", run_id="run"), sign="1 a", ttl_s=1.0
)


def standing(**other: object) -> RunStanding:
    return RunStanding(**{name: getattr(LED, name) for name in LED.__struct_fields__} | other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "silent_s", "is_in_line", "what"),
    [
        pytest.param(LED, 3.5, False, True, id="its node is lost"),
        pytest.param(LED, 3.4, False, False, id="others have their turn first"),
        pytest.param(standing(ttl_s=2.0), 3.5, False, False, id="it had a longer lease"),
        pytest.param(LED, 99.0, True, False, id="somebody is in line: an election goes on"),
        pytest.param(standing(sign=None), 99.0, False, False, id="etcd says that its lease is not over"),
        pytest.param(standing(over=True), 99.0, False, False, id="the job is over"),
        pytest.param(standing(run_id="other"), 99.0, False, False, id="another run of the job leads"),
        pytest.param(RunStanding(run_id="", sign="9 b"), 99.0, False, False, id="a newer robust-run wrote it"),
        pytest.param(None, 99.0, False, False, id="the folder is not the one that the leader has"),
    ],
)
def test_who_offers_to_lead(seen: RunStanding | None, silent_s: float, is_in_line: bool, what: bool) -> None:
    found = offers(seen, run_id="run", silent_s=silent_s, usual_ttl_s=1.0, turn_s=0.5, is_in_line=is_in_line)
    assert found == what


def test_a_thousand_nodes_do_not_offer_at_once_and_each_knows_its_time() -> None:
    turns = [turn_of(f"{number:x}", 1000) for number in range(1000)]
    assert turns == [turn_of(f"{number:x}", 1000) for number in range(1000)]
    assert min(turns) < 1 < 45 < max(turns) < 50
    assert max(turn_of(f"{number:x}", 100_000) for number in range(1000)) < MOST_SPREAD_S


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s


class Ground:
    """A node that looks at a record, which says what the test wants."""

    def __init__(self) -> None:
        self.seen: RunStanding | None = LED
        self.trouble: Exception | None = None
        self.clock = Clock()
        self.watch = LeaderlessWatch(self._ask, run_id="run", usual_ttl_s=1.0, turn_s=0.0, clock=self.clock)

    async def _ask(self) -> RunStanding | None:
        if self.trouble is not None:
            raise self.trouble
        return self.seen

    def looks(self, after_s: float) -> bool:
        self.clock.now_s += after_s
        return asyncio.run(self.watch.look(is_in_line=False))


def test_a_leader_that_others_reach_goes_on_showing_life_and_is_waited_for() -> None:
    ground = Ground()
    for beat in range(20):
        ground.seen = standing(sign=f"1 {beat}")
        assert not ground.looks(5.0)


def test_a_leader_of_which_nothing_is_seen_any_more_is_followed() -> None:
    ground = Ground()
    assert not ground.looks(0.0), "the first look proves nothing, however old the record is"
    assert not ground.looks(2.9)
    assert ground.looks(0.1)


def test_a_place_that_does_not_answer_proves_nothing() -> None:
    ground = Ground()
    ground.looks(0.0)
    ground.trouble = CoordinatorUnreachable("the folder is not mounted")
    assert not ground.looks(99.0)
