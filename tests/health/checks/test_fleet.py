"""Several nodes on loopback, with gloo: real processes that meet, faults of one of them, and who is named for it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from robust_run.health.checks.fleet import CheckListener
from robust_run.health.checks.judge import judge
from robust_run.health.checks.plan import CheckRound, Wish, orders
from robust_run.health.checks.types import CheckJudgement, Finished, NodeFacts, Said
from robust_run.health.diagnostics.here import LocalFleet, facts_here

pytestmark = pytest.mark.timeout(600)  # each program imports torch

BRIEF = {"seconds": 0.0, "passes": 3, "size_bytes": 1 << 18}


def test_nodes_that_are_well_pass(ground: Any) -> None:
    session = ground.check(["a", "b"], Wish(only=("exchange", "neighbours", "allreduce"), **BRIEF))
    judged = session.judgement()
    assert judged.passed == ("a", "b") and judged.is_clean
    assert {(each.check, each.outcome, each.passes) for each in session.results} == {
        (check, "done", 3) for check in ("exchange", "neighbours", "allreduce")
    }
    assert all(each.figures["bus_bytes_per_s"] > 0 for each in session.results)


def test_ranks_whose_time_is_up_earlier_count_passes_like_all(ground: Any) -> None:
    facts = NodeFacts(name="a", interface="lo")
    here = LocalFleet([facts], ground.env())
    made = CheckRound(check="exchange", number=0, groups=(("a",),))
    places = here.open_places(["a"])
    first, second = orders(made, {"a": facts}, Wish(seconds=0.3, size_bytes=1 << 18), places)["a"]
    in_a_hurry = msgspec.structs.replace(second, seconds=0.0, passes=1)
    results = here.carry_out({"a": (first, in_a_hurry)}, 60.0, lambda _node, _said: None)
    assert [each.outcome for each in results] == ["done", "done"]
    assert [each.wrong for each in results] == [(), ()]
    assert results[0].passes == results[1].passes >= 3
    assert all(each.figures["bus_bytes_per_s"] > 0 for each in results)


def test_a_node_that_sends_other_data_than_it_should(ground: Any) -> None:
    session = ground.check("abc", Wish(only=("neighbours",), **BRIEF), {"node": "b", "corrupt": 1.0})
    judged = session.judgement()
    assert [(each.node, each.rule) for each in judged.suspects] == [("b", "bad_with_all")]
    assert "on b was not what it sent" in judged.suspects[0].sentence
    too_slow = {
        node for each in judged.ambiguous for node in each.nodes if "the median of" in each.sentence
    }  # this machine is busy
    assert too_slow.union(judged.passed) == {"a", "c"}


def test_sums_that_are_wrong(ground: Any) -> None:
    session = ground.check(["a", "b"], Wish(only=("allreduce",), **BRIEF), {"node": "b", "corrupt": 1.0})
    assert [each.wrong for each in session.results] == [("the sums are wrong (pass 1)",)] * 2
    assert session.judgement().ambiguous[0].nodes == ("a", "b")


def test_the_reference_model_finds_flipped_bits_by_a_majority_and_says_where_there_is_none(ground: Any) -> None:
    wish = Wish(only=("model",), seconds=0.0, passes=10)
    session = ground.check("abc", wish, {"node": "b", "flip": 1.0, "stuck": True})
    assert found_in(session.judgement()) == [("odd_output", ("b",))]
    of_two = [each for each in session.results if each.node in "ab"]
    assert found_in(judge(of_two)) == [("no_majority", ("a", "b"))]


def test_the_reference_model_finds_bits_that_flip_now_and_then(ground: Any) -> None:
    wish = Wish(only=("model",), seconds=0.0, passes=10)
    judged = ground.check("ab", wish, {"node": "b", "flip": 0.3, "seed": 5}).judgement()
    assert found_in(judged) == [("unstable_output", ("b",))]


def found_in(judged: CheckJudgement) -> list[tuple[str, tuple[str, ...]]]:
    found = [(each.rule, (each.node,)) for each in judged.suspects]
    return found + [(each.rule, each.nodes) for each in judged.ambiguous]


def test_a_node_that_stands_still_is_told_from_those_that_wait_for_it(ground: Any) -> None:
    wish = Wish(only=("neighbours",), limit_s=40.0, **BRIEF)  # they give up after three quarters of it
    session = ground.check("abc", wish, {"node": "b", "stop": True})
    assert {(each.node, each.outcome) for each in session.results if each.round == 0} == {
        ("a", "failed"),
        ("b", "hung"),
    }
    assert [(each.node, each.rule) for each in session.judgement().suspects] == [("b", "hung")]


def test_runners_say_how_it_goes(ground: Any) -> None:
    class Noting(CheckListener):
        def __init__(self) -> None:
            self.said: list[tuple[str, str]] = []

        def on_said(self, node: str, said: Said) -> None:
            self.said.append((node, type(said).__name__))
            assert not isinstance(said, Finished) or not said.left

    watcher = Noting()
    ground.check(["a"], Wish(only=("disk",), **BRIEF), watcher=watcher)
    assert watcher.said == [("a", "Began"), ("a", "Ended"), ("a", "Finished")]


@pytest.mark.parametrize(
    ("gpus", "chosen", "devices"),
    [
        (0, None, ("cpu",)),
        (2, None, ("cuda:0", "cuda:1")),
        (4, "2,3", ("cuda:0", "cuda:1")),
        (4, "0,-1,2", ("cuda:0",)),
        (4, "", ("cpu",)),
    ],
)
def test_what_a_machine_has(tmp_path: Any, gpus: int, chosen: str | None, devices: tuple[str, ...]) -> None:
    for number in range(gpus):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
    env = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert facts_here("a", env, driver_folder=str(tmp_path)).devices == devices
