"""The ladder, rung after rung: what it does next, by which rule, and that it always ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.health.checks.replay import Conclusion
from robust_run.health.checks.types import Ambiguity, CheckJudgement, SuspectNode
from robust_run.health.ladder.rules import RULES, explain
from robust_run.health.ladder.step import step
from robust_run.health.ladder.types import (
    Code,
    Diagnosed,
    Event,
    Failed,
    LadderDecision,
    LadderPolicy,
    Replayed,
    RollbackRefused,
    Settled,
    State,
)

NODES = tuple(f"n{number}" for number in range(24))
CHANGED = Code(running="v2", last_good="v1")


def failed(**more: Any) -> Failed:
    return Failed(**{"at_s": 1.0, "kind": "crash", "sentence": "rank 3 was killed by SIGSEGV", "nodes": NODES, **more})


def suspect(node: str, confidence: str = "high") -> SuspectNode:
    return SuspectNode(
        node=node, check="compute", confidence=confidence, rule="wrong_result", sentence=f"{node} is odd"
    )  # type: ignore[arg-type]


def unclear(*nodes: str, rule: str = "no_majority") -> Ambiguity:
    return Ambiguity(nodes=nodes, check="model", rule=rule, sentence=f"{' or '.join(nodes)}")


def diagnosed(**found: Any) -> Diagnosed:
    return Diagnosed(at_s=2.0, judgement=CheckJudgement(**found))


def replayed(verdict: str, **more: Any) -> Replayed:
    return Replayed(at_s=3.0, conclusion=Conclusion(verdict=verdict, sentence="the replay says so", **more))  # type: ignore[arg-type]


def told(*events: Event, policy: LadderPolicy | None = None) -> tuple[State, list[LadderDecision]]:
    state, decisions = State(), []
    for event in events:
        state, decision = step(policy or LadderPolicy(), state, event)
        if decision is not None:
            decisions.append(decision)
    return state, decisions


def rules(*events: Event, policy: LadderPolicy | None = None) -> list[str]:
    return [each.rule for each in told(*events, policy=policy)[1]]


CLEAN = diagnosed(passed=NODES)


def test_the_whole_ladder() -> None:
    state, decisions = told(failed(), CLEAN, failed(), failed(code=CHANGED), replayed("not_reproduced"))
    assert [each.rung for each in decisions] == ["diagnose", "reattempt", "replay", "stop"]
    state, decisions = told(failed(), CLEAN, failed(code=CHANGED), failed(), replayed("not_reproduced"))
    assert [each.rung for each in decisions] == ["diagnose", "reattempt", "rollback", "replay", "stop"]
    assert decisions[2].version == "v1"
    assert decisions[-1].rule == "replay_clean"
    assert "tried: check the nodes, try again as it is, put earlier code back, replay" in decisions[-1].sentence
    assert "rank 3 was killed by SIGSEGV" in decisions[-1].sentence and "the replay says so" in decisions[-1].sentence
    assert state.number == 5


@pytest.mark.parametrize(
    ("event", "rule", "seconds"),
    [
        (failed(), "unexplained_diagnose", 3.0),
        (failed(kind="nan"), "nan_diagnose", 30.0),
        (failed(evicted_before=("n9",)), "evicted_in_vain", 3.0),
    ],
)
def test_the_first_failure_is_diagnosed(event: Failed, rule: str, seconds: float) -> None:
    (decision,) = told(event)[1]
    assert (decision.rung, decision.rule, decision.seconds) == ("diagnose", rule, seconds)


@pytest.mark.parametrize(
    ("found", "rule", "nodes", "over_evicted"),
    [
        (diagnosed(suspects=(suspect("n3"),)), "suspects_evicted", ("n3",), ()),
        (diagnosed(suspects=(suspect("n3", "medium"), suspect("n4"))), "suspects_evicted", ("n3", "n4"), ()),
        (diagnosed(suspects=(suspect("n3", "low"),)), "nothing_certain", (), ()),
        (
            diagnosed(suspects=(suspect("n3", "medium"), suspect("n4"), suspect("n5", "medium"))),
            "certain_evicted",
            ("n4",),
            (),
        ),
        (diagnosed(suspects=tuple(map(suspect, NODES[:3]))), "too_many_suspects", (), ()),
        (diagnosed(ambiguous=(unclear("n1", "n2"),)), "ambiguous_evicted", ("n1", "n2"), ("n2",)),
        (diagnosed(ambiguous=(unclear("n1", "n2", "n3"),)), "ambiguous_kept", (), ()),
        (diagnosed(ambiguous=(unclear("n1", "n2", rule="fleet_wide"),)), "nothing_certain", (), ()),
        (diagnosed(unchecked=("no torch",)), "nothing_certain", (), ()),
        (CLEAN, "all_passed", (), ()),
    ],
)
def test_what_follows_from_a_diagnosis(
    found: Diagnosed, rule: str, nodes: tuple[str, ...], over_evicted: tuple[str, ...]
) -> None:
    decision = told(failed(), found)[1][-1]
    assert (decision.rule, decision.nodes, decision.over_evicted) == (rule, nodes, over_evicted)
    assert decision.rung == ("evict" if nodes else "reattempt")


def test_a_job_of_two_nodes_that_differ_loses_none_of_them() -> None:
    assert rules(failed(nodes=("a", "b")), diagnosed(ambiguous=(unclear("a", "b"),)))[-1] == "ambiguous_kept"


def test_one_node_may_always_be_evicted_but_no_share_twice() -> None:
    few = failed(nodes=("a", "b", "c"))
    first = (few, diagnosed(suspects=(suspect("a"),)))
    assert rules(*first)[-1] == "suspects_evicted"
    again = (failed(nodes=("b", "c")), replayed("found", machines=("b",)))
    assert rules(*first, *again)[-2:] == ["failed_again_replay", "replay_too_many"]


def test_code_that_did_not_change_is_not_rolled_back() -> None:
    same = Code(running="v1", last_good="v1")
    assert rules(failed(), CLEAN, failed(code=same))[-1] == "failed_again_replay"
    assert (
        rules(failed(), CLEAN, failed(code=CHANGED), policy=LadderPolicy(may_roll_back=False))[-1]
        == "failed_again_replay"
    )


def test_a_rollback_that_is_refused_leads_on() -> None:
    _state, decisions = told(failed(), CLEAN, failed(code=CHANGED), RollbackRefused(at_s=3.0, reason="it is gone"))
    assert decisions[-1].rule == "rollback_impossible" and "it is gone" in decisions[-1].sentence


@pytest.mark.parametrize(
    ("found", "rung", "rule"),
    [
        (replayed("found", machines=("n13",)), "evict", "replay_found"),
        (replayed("found", machines=NODES[:5]), "stop", "replay_too_many"),
        (replayed("ambiguous", candidates=("n1", "n2")), "evict", "replay_ambiguous_evicted"),
        (replayed("ambiguous", candidates=NODES[:4]), "stop", "replay_too_many"),
        (replayed("everywhere"), "stop", "replay_everywhere"),
        (replayed("not_reproduced"), "stop", "replay_clean"),
    ],
)
def test_what_follows_from_a_replay(found: Replayed, rung: str, rule: str) -> None:
    decision = told(failed(), CLEAN, failed(), found)[1][-1]
    assert (decision.rung, decision.rule) == (rung, rule)


def test_a_replay_needs_two_groups() -> None:
    one = failed(nodes=("a",))
    assert rules(one, diagnosed(passed=("a",)), one)[-1] == "nothing_left"
    _state, decisions = told(failed(), CLEAN, failed(), policy=LadderPolicy(replay_unit=16))
    assert decisions[-1].rung == "stop" and "no two groups" in decisions[-1].sentence


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ((failed(), CLEAN), "reattempt_helped"),
        ((failed(), diagnosed(suspects=(suspect("n3"),))), "evict_helped"),
        ((failed(), CLEAN, failed(code=CHANGED)), "rollback_helped"),
    ],
)
def test_progress_says_what_helped_and_ends_the_episode(events: tuple[Event, ...], rule: str) -> None:
    state, decisions = told(*events, Settled(at_s=9.0))
    assert decisions[-1].rule == rule and not state.decisions
    _after, decision = step(LadderPolicy(), state, failed())
    assert decision is not None and (decision.rung, decision.episode) == ("diagnose", 2)


def test_progress_in_quiet_times_is_nothing() -> None:
    assert told(Settled(at_s=1.0)) == (State(), [])


def test_what_answers_no_question_changes_nothing() -> None:
    state, _ = told(failed())
    for event in (replayed("everywhere"), RollbackRefused(at_s=1.0, reason=""), failed()):
        assert step(LadderPolicy(), state, event) == (state, None)


def test_explain_tells_the_story_with_its_rules() -> None:
    _, decisions = told(failed(), diagnosed(ambiguous=(unclear("n1", "n2"),)), Settled(at_s=5.0))
    lines = explain(decisions)
    assert lines[0].startswith("1. check the nodes: rank 3 was killed by SIGSEGV [unexplained_diagnose: ")
    assert lines[1].startswith("2. evict n1, n2: n1 or n2 [ambiguous_evicted: ")
    assert lines[2] == "   1 of them only because it is not known which one is at fault"
    assert lines[3].startswith("3. over: ")


EVENTS = st.one_of(
    st.builds(failed, code=st.sampled_from([Code(), CHANGED]), kind=st.sampled_from(["crash", "nan", "hang"])),
    st.builds(
        lambda names, confidence: diagnosed(suspects=tuple(suspect(name, confidence) for name in names)),
        st.sets(st.sampled_from(NODES), max_size=4),
        st.sampled_from(["high", "low"]),
    ),
    st.builds(lambda names: diagnosed(ambiguous=(unclear(*names),)), st.sets(st.sampled_from(NODES), min_size=2)),
    st.builds(
        lambda verdict, names: replayed(verdict, machines=tuple(names)),
        st.sampled_from(["found", "ambiguous", "everywhere", "not_reproduced"]),
        st.sets(st.sampled_from(NODES), max_size=3),
    ),
    st.just(RollbackRefused(at_s=1.0, reason="gone")),
    st.just(Settled(at_s=1.0)),
)


@given(st.lists(EVENTS, max_size=30))
def test_whatever_happens_rules_are_known_rungs_are_climbed_once_and_few_nodes_go(events: list[Event]) -> None:
    _state, decisions = told(*events)
    assert [each.number for each in decisions] == list(range(1, len(decisions) + 1))
    for each in decisions:
        assert each.rule in RULES and each.sentence
        assert set(each.over_evicted) <= set(each.nodes)
    for episode in {each.episode for each in decisions}:
        climbed = [each for each in decisions if each.episode == episode and each.rung != "settled"]
        rungs = [each.rung for each in climbed]
        assert rungs[0] == "diagnose" and rungs.count("diagnose") == 1
        assert rungs.count("rollback") <= 1 and rungs.count("replay") <= 1 and rungs.count("stop") <= 1
        assert len([name for each in climbed for name in each.nodes]) <= max(int(0.1 * len(NODES)), 1)
        assert "stop" not in rungs[:-1] and len(rungs) <= 6


def test_one_node_is_counted_in_the_singular() -> None:
    _, decisions = told(failed(nodes=("n0",)), diagnosed(passed=("n0",)))
    assert decisions[-1].sentence == "nothing was found on 1 node"
