"""From results of all nodes to suspects: each rule by its row, and what must not accuse anybody."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from robust_run.health.checks.history import History, Output, SlownessLimits, expectation, key, learn
from robust_run.health.checks.judge import judge
from robust_run.health.checks.types import NodeFacts, Result

Make = Callable[..., Result]


def pair(
    make: Make, one: str, other: str, number: int = 0, check: str = "neighbours", **of: dict[str, object]
) -> list[Result]:
    """Two results of one pair; `of[node]` changes one of them."""
    group = (one, other)
    return [
        make(check, name, group=group, round=number, **{"figures": {"bus_bytes_per_s": 1e9}, **of.get(name, {})})
        for name in group
    ]


# --- a node by itself -----------------------------------------------------------------------------------------------


def test_wrong_results_need_no_second_opinion(result: Make) -> None:
    judged = judge(
        [result("compute", "a", device="cuda:3", wrong=("pass 7: a matrix product differs",)), result("compute", "b")]
    )
    (found,) = judged.suspects
    assert (found.node, found.device, found.rule, found.confidence) == ("a", "cuda:3", "wrong_result", "high")
    assert "cuda:3" in found.sentence and "pass 7" in found.sentence
    assert judged.passed == ("b",)


@pytest.mark.parametrize("outcome", ["hung", "crashed"])
def test_a_check_that_does_not_end_well_is_a_finding(result: Make, outcome: str) -> None:
    judged = judge(
        [result("memory", "a", outcome=outcome, problem="why"), result("memory", "b"), result("memory", "c")]
    )
    assert [(each.node, each.rule) for each in judged.suspects] == [("a", outcome)]


def test_a_check_that_one_node_alone_cannot_make_is_a_weak_sign(result: Make) -> None:
    judged = judge(
        [result("compute", "a", outcome="failed", problem="no torch"), result("compute", "b"), result("compute", "c")]
    )
    assert [(each.node, each.rule, each.confidence) for each in judged.suspects] == [("a", "could_not_check", "low")]


def test_a_check_that_nobody_can_make_accuses_nobody_and_is_not_a_pass(result: Make) -> None:
    judged = judge([result("compute", name, outcome="failed", problem="no torch") for name in "ab"])
    assert not judged.suspects and len(judged.unchecked) == 2
    assert not judged.is_clean and judged.passed == ()


def test_what_happens_to_most_nodes_is_no_fault_of_theirs(result: Make) -> None:
    judged = judge([result("disk", name, wrong=("no space left",)) for name in "abc"] + [result("disk", "d")])
    assert not judged.suspects
    assert [(each.rule, each.nodes) for each in judged.ambiguous] == [("fleet_wide", ("a", "b", "c"))]


def test_a_node_that_shows_fewer_devices_than_most(result: Make) -> None:
    facts = [NodeFacts(name=name, devices=tuple(f"cuda:{n}" for n in range(7 if name == "b" else 8))) for name in "abc"]
    assert [(each.node, each.rule) for each in judge([], facts).suspects] == [("b", "fewer_devices")]


def test_injected_faults_are_said(result: Make) -> None:
    assert "this is a test" in judge([result("disk", "a", injected=True)]).notes[-1]


# --- bits -----------------------------------------------------------------------------------------------------------


def model(make: Make, node: str, *outputs: str, **more: object) -> Result:
    digests = {output: outputs.count(output) for output in outputs}
    stages = {"hidden": outputs[0], "loss": outputs[0]}
    return make("model", node, digests=digests, stages=stages, passes=len(outputs), **more)


def test_the_majority_names_the_odd_node_and_where_it_parts(result: Make) -> None:
    judged = judge([model(result, "a", "x"), model(result, "b", "y"), model(result, "c", "x")])
    (found,) = judged.suspects
    assert (found.node, found.rule, found.confidence) == ("b", "odd_output", "high")
    assert "from the hidden on" in found.sentence


def test_two_nodes_that_differ_cannot_tell_which_is_wrong(result: Make) -> None:
    judged = judge([model(result, "a", "x"), model(result, "b", "y")])
    assert not judged.suspects
    assert [(each.rule, each.nodes) for each in judged.ambiguous] == [("no_majority", ("a", "b"))]
    assert "a third could" in judged.ambiguous[0].sentence


def test_two_against_two_is_no_majority(result: Make) -> None:
    judged = judge([model(result, name, output) for name, output in zip("abcd", "xxyy", strict=True)])
    assert not judged.suspects and judged.ambiguous[0].nodes == ("a", "b", "c", "d")


def test_a_node_whose_own_passes_differ_needs_no_majority(result: Make) -> None:
    judged = judge([model(result, "a", "x", "x", "z"), model(result, "b", "x", "x", "x")])
    assert [(each.node, each.rule) for each in judged.suspects] == [("a", "unstable_output")]
    assert "1 of 3 equal passes" in judged.suspects[0].sentence


def test_where_most_are_unstable_the_check_is_at_fault(result: Make) -> None:
    judged = judge([model(result, name, "x", name) for name in "abc"])
    assert not judged.suspects and "not deterministic" in judged.unchecked[0]


def test_devices_of_different_kinds_are_not_compared(result: Make) -> None:
    judged = judge([model(result, "a", "x", kind="H100"), model(result, "b", "y", kind="A100")])
    assert not judged.suspects and not judged.ambiguous
    assert any("among themselves only" in note for note in judged.notes)


def test_one_bad_device_of_a_node_is_named(result: Make) -> None:
    judged = judge([model(result, "a", "y" if number == 5 else "x", device=f"cuda:{number}") for number in range(8)])
    assert [(each.node, each.device) for each in judged.suspects] == [("a", "cuda:5")]


def test_the_past_decides_between_two(result: Make) -> None:
    history = History(outputs={"model cpu": (Output(digest="x", nodes=("old", "older")),)})
    judged = judge([model(result, "a", "x"), model(result, "b", "y")], history=history)
    assert [(each.node, each.rule) for each in judged.suspects] == [("b", "other_output_than_before")]


# --- rates ----------------------------------------------------------------------------------------------------------


def memory(make: Make, node: str, rate: float) -> Result:
    return make("memory", node, figures={"bytes_per_s": rate})


def test_a_rate_far_below_the_fleets_past(result: Make) -> None:
    history = History(series={key(memory(result, "a", 1.0), "bytes_per_s"): (100.0, 101.0, 99.0, 100.0, 102.0)})
    judged = judge([memory(result, "a", 60.0), memory(result, "b", 80.0)], history=history)
    assert [(each.node, each.rule) for each in judged.suspects] == [("a", "slow_against_history")]
    assert "usual are 100" in judged.suspects[0].sentence


def test_a_rate_far_below_the_others_of_the_run(result: Make) -> None:
    judged = judge([memory(result, "a", 40.0), memory(result, "b", 100.0), memory(result, "c", 90.0)])
    assert [(each.node, each.rule) for each in judged.suspects] == [("a", "slow_against_peers")]


def test_two_nodes_are_too_few_for_that(result: Make) -> None:
    assert not judge([memory(result, "a", 1.0), memory(result, "b", 100.0)]).suspects


def test_a_fleet_that_varies_widens_its_own_limits() -> None:
    steady = expectation((100.0, 101.0, 99.0, 100.0, 100.0), SlownessLimits())
    wild = expectation((100.0, 140.0, 60.0, 80.0, 120.0), SlownessLimits())
    assert steady is not None and steady.least == pytest.approx(70.0)
    assert wild is not None and wild.least < 0
    assert expectation((100.0,) * 4, SlownessLimits()) is None


def test_suspects_and_injected_faults_teach_nothing(result: Make) -> None:
    results = [
        memory(result, "a", 5.0),
        memory(result, "b", 100.0),
        result("memory", "c", figures={"bytes_per_s": 7.0}, injected=True),
    ]
    learned = learn(History(), results, passed=("b", "c"))
    assert list(learned.series.values()) == [(100.0,)]


def test_a_bad_node_that_was_the_first_does_not_decide_for_ever(result: Make) -> None:
    first = learn(History(), [model(result, "bad", "y")], ["bad"])
    assert judge([model(result, "a", "x")], history=first).suspects == ()
    later = learn(first, [model(result, name, "x") for name in "abc"], "abc")
    assert [each.node for each in judge([model(result, "bad", "y")], history=later).suspects] == ["bad"]
    mended = learn(later, [model(result, "bad", "x")], ["bad"])
    assert mended.outputs == {"model cpu": (Output(digest="x", nodes=("a", "b", "c", "bad")),)}


# --- groups ---------------------------------------------------------------------------------------------------------

BROKEN = {"outcome": "failed", "problem": "connection closed by peer"}


def test_a_node_that_is_bad_with_both_neighbours(result: Make) -> None:
    bad = {"wrong": ("what came from rank 1 on b was not what it sent",)}
    judged = judge(
        [
            *pair(result, "a", "b", 0, a=bad),
            *pair(result, "c", "d", 0),
            *pair(result, "b", "c", 1, c=bad),
            *pair(result, "d", "a", 1),
        ]
    )
    assert [(each.node, each.rule, each.confidence) for each in judged.suspects] == [("b", "bad_with_all", "high")]
    assert not judged.ambiguous and judged.passed == ("a", "c", "d")


def test_two_that_do_well_with_others_but_not_together_have_a_bad_link(result: Make) -> None:
    judged = judge(
        [
            *pair(result, "a", "b", 0, a=BROKEN),
            *pair(result, "c", "d", 0),
            *pair(result, "b", "c", 1),
            *pair(result, "d", "a", 1),
        ]
    )
    assert not judged.suspects
    assert [(each.rule, each.nodes) for each in judged.ambiguous] == [("between", ("a", "b"))]


def test_of_a_single_bad_pair_it_cannot_be_told_which(result: Make) -> None:
    judged = judge(pair(result, "a", "b", a=BROKEN, b=BROKEN))
    assert [(each.rule, each.nodes) for each in judged.ambiguous] == [("one_of_a_group", ("a", "b"))]


def test_who_hangs_explains_the_peers_that_gave_up(result: Make) -> None:
    hung = {"outcome": "hung", "problem": "killed at its limit"}
    judged = judge([*pair(result, "a", "b", a=BROKEN, b=hung), *pair(result, "c", "a", 1)])
    assert [(each.node, each.rule) for each in judged.suspects] == [("b", "hung")]
    assert judged.passed == ("a", "c")


def test_whoever_only_met_a_bad_node_is_not_checked(result: Make) -> None:
    crashed = {"outcome": "crashed", "problem": "was killed by SIGSEGV"}
    judged = judge(pair(result, "a", "b", a=BROKEN, b=crashed))
    assert [each.node for each in judged.suspects] == ["b"]
    assert judged.unchecked == ("a: neighbours says nothing: whom it was to meet was bad",)


def test_a_group_that_died_as_one_accuses_nobody_by_itself(result: Make) -> None:
    crashed = {"outcome": "crashed", "problem": "was killed by SIGABRT"}
    judged = judge(pair(result, "a", "b", a=crashed, b=crashed))
    assert not judged.suspects and judged.ambiguous[0].nodes == ("a", "b")


BUSY = {"cpus": 2, "others_cpus": 1.4}


def test_a_busy_node_is_not_slow_but_not_checked(result: Make) -> None:
    """What it looks like from outside is the same; whoever worked there may be gone in a minute."""
    slow = {"figures": {"flop_per_s": 3e9}}
    history = History(series={"compute flop_per_s cpu": (10e9,) * 6})
    (found,) = judge([result("compute", "a", **slow)], history=history).suspects
    assert found.rule == "slow_against_history"
    judged = judge([result("compute", "a", **slow, **BUSY)], history=history)
    assert not judged.suspects and not judged.is_clean
    assert judged.unchecked == (
        "a: compute: flop_per_s is 3 G, usual are 10 G (6 values), but 1.4 of 2 CPUs of a worked for others meanwhile; "
        "check again when nothing else runs there",
    )


def test_a_busy_node_that_is_fast_enough_was_checked(result: Make) -> None:
    history = History(series={"compute flop_per_s cpu": (10e9,) * 6})
    assert judge([result("compute", "a", figures={"flop_per_s": 9e9}, **BUSY)], history=history).is_clean


def test_work_of_others_excuses_no_wrong_result(result: Make) -> None:
    judged = judge([result("compute", "a", wrong=("pass 7: a matrix product differs",), **BUSY)])
    assert [each.rule for each in judged.suspects] == ["wrong_result"]


def test_a_node_that_is_busy_among_its_peers_is_not_slow(result: Make) -> None:
    results = [result("memory", name, figures={"bytes_per_s": 10e9}) for name in "abc"]
    judged = judge([*results, result("memory", "d", figures={"bytes_per_s": 1e9}, **BUSY)])
    assert not judged.suspects and len(judged.unchecked) == 1


def test_a_group_is_not_slow_where_one_member_was_busy(result: Make) -> None:
    """All wait for each other, so it is the same whoever was the slowest."""
    figures = {"figures": {"bus_bytes_per_s": 1e7}}
    met = [*pair(result, "a", "b"), *pair(result, "c", "d"), *pair(result, "e", "f")]
    met += pair(result, "b", "c", number=1, b=figures, c={**figures, **BUSY})
    judged = judge(met)
    assert not judged.suspects and not judged.ambiguous
    assert judged.unchecked and "1.4 of 2 CPUs of c" in judged.unchecked[0]


@pytest.mark.parametrize("check", ["compute", "model", "exchange"])
def test_a_program_that_reaches_its_limit_on_a_starved_node_accuses_nobody(result: Make, check: str) -> None:
    hung = {"outcome": "hung", "problem": "killed at its limit of 60 s"}
    peers = [result(check, name) for name in "bc"]
    judged = judge([result(check, "a", **hung, cpus=2, others_cpus=1.0), *peers])
    assert not judged.suspects and judged.passed == ("b", "c")
    assert judged.unchecked[0].startswith(f"a: the check {check} hung: killed at its limit of 60 s; 1.0 of 2 CPUs of a")
    (found,) = judge([result(check, "a", **hung, cpus=2, others_cpus=0.9), *peers]).suspects
    assert found.rule == "hung"


def test_what_others_say_of_a_starved_node_accuses_nobody(result: Make) -> None:
    """Who waited for it says that it lost it, and both its groups are bad."""
    hung = {"outcome": "hung", "problem": "killed at its limit of 60 s", "cpus": 2, "others_cpus": 1.8}
    lost = {"outcome": "failed", "problem": "b was not heard of"}
    met = [*pair(result, "a", "b", a=lost, b=hung), *pair(result, "b", "c", number=1, b=hung, c=lost)]
    judged = judge([*met, *pair(result, "c", "d", number=2), *pair(result, "a", "d", number=3)])
    assert not judged.suspects and not judged.ambiguous and len(judged.unchecked) == 1
    wrong = {"wrong": ("what came from rank 1 on b was not what it sent (pass 1)",)}
    assert not judge(pair(result, "a", "b", a=wrong, b=hung)).is_clean
    assert "was not what it sent" in judge(pair(result, "a", "b", a=wrong, b=hung)).ambiguous[0].sentence


@pytest.mark.parametrize("check", ["exchange", "allreduce"])
def test_who_waited_in_vain_for_one_that_could_not_begin_is_not_accused(result: Make, check: str) -> None:
    """A library that one of them lacks: the other waits until it is killed."""
    absent = {"outcome": "failed", "problem": "OSError: libgloo.so: cannot open", "unmet": True}
    hung = {"outcome": "hung", "problem": "killed at its limit of 60 s"}
    met = [result(check, "a", group=("a", "b"), **absent), result(check, "b", group=("a", "b"), **hung)]
    judged = judge(met)
    assert not judged.suspects and not judged.ambiguous
    assert judged.unchecked == (f"a: the check {check} could not be made: OSError: libgloo.so: cannot open",)
    (found,) = judge([msgspec.structs.replace(each, unmet=False) for each in met]).suspects
    assert found.node == "b", "who only lost the other says so, and accuses it"
    others = [*pair(result, "c", "d"), *pair(result, "e", "f")]
    assert {each.node for each in judge([*met, *others]).suspects} <= {"a"}


def test_the_speed_of_a_busy_node_teaches_nothing(result: Make) -> None:
    measured = [result("compute", "a", figures={"flop_per_s": 9e9}, digests={"x": 3}, **BUSY)]
    history = learn(History(), measured, ["a"])
    assert history.series == {} and history.outputs


def test_slow_groups_of_allreduce_meet_in_the_slow_node(result: Make) -> None:
    from robust_run.health.checks.plan import rounds_of

    facts = [NodeFacts(name=f"n{number}") for number in range(9)]
    results = [
        result(
            "allreduce",
            name,
            group=group,
            round=made.number,
            figures={"bus_bytes_per_s": 2e8 if "n4" in group else 1e9},
        )
        for made in rounds_of("allreduce", facts)
        for group in made.groups
        for name in group
    ]
    judged = judge(results, facts)
    assert [(each.node, each.rule) for each in judged.suspects] == [("n4", "bad_with_all")]


def test_what_arrives_wrong_is_explained_before_what_was_slow_for_a_moment(result: Make) -> None:
    wrong = {"wrong": ("what came from rank 1 on b was not what it sent (pass 1)",)}
    slow = {"figures": {"bus_bytes_per_s": 1e7}}
    met = [
        *pair(result, "a", "b", a=wrong),
        *pair(result, "b", "c", 1, c=wrong),
        *pair(result, "c", "a", 2, c=slow, a=slow),
    ]
    judged = judge(met)
    assert [(each.node, each.rule) for each in judged.suspects] == [("b", "bad_with_all")]
    assert [each.nodes for each in judged.ambiguous] == [("c", "a")], "slow together, and each well with nobody"


def test_one_group_is_judged_by_the_fleets_past(result: Make) -> None:
    slow = pair(result, "a", "b", check="allreduce")
    history = History(series={key(slow[0], "bus_bytes_per_s"): (4e9,) * 6})
    assert judge(slow, history=history).ambiguous[0].nodes == ("a", "b")
