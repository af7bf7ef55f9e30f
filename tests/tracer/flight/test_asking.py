"""How often recorders are asked: a matter of what that costs, with a limit on everything."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.tracer.flight.asking import EVERY_S, LONGEST_S, NAMES_S, QUIET_S, REST, SOON_S, AskPlan, Question

NONE: frozenset[tuple[bool, int]] = frozenset()


def asked(plan: AskPlan, for_s: float, *, quiet_s: float = 0.0, took_s: float = 0.0003, unnamed=NONE) -> list[Question]:  # type: ignore[no-untyped-def]
    """Return what is asked of a rank that is looked at four times a second and answers in so long."""
    found: list[Question] = []
    for look in range(int(for_s * 4)):
        question = plan.due(look / 4, quiet_s, unnamed)
        if question is not None:
            found.append(question)
            plan.answered(question, took_s, look / 4)
    return found


def without_nccl() -> AskPlan:
    plan = AskPlan()
    plan.refused("nccl")
    return plan


def test_nccls_counts_are_asked_for_every_two_seconds() -> None:
    assert asked(AskPlan(), 60.0) == ["nccl"] * 30


def test_gloos_recorder_is_not_asked_while_the_worker_makes_calls_or_steps() -> None:
    assert asked(without_nccl(), 3600.0) == []


def test_of_a_silent_worker_it_is_asked_and_takes_half_a_percent_of_a_core() -> None:
    found = asked(without_nccl(), 600.0, quiet_s=QUIET_S, took_s=0.028)
    assert set(found) == {"gloo_whole"}
    assert len(found) * 0.028 <= 600.0 / REST + 0.028


def test_where_a_silent_worker_has_work_under_way_the_next_look_comes_soon_however_long_an_answer_takes() -> None:
    plan = without_nccl()
    assert plan.due(0.0, QUIET_S, NONE) == "gloo_whole"
    plan.answered("gloo_whole", 2.0, 2.0, matters=True)
    assert plan.due(2.0 + SOON_S, QUIET_S, NONE) == "gloo_whole"


def test_names_are_asked_for_less_and_less_and_of_the_recorder_that_knows_them() -> None:
    found = asked(AskPlan(), 16 * NAMES_S, unnamed=frozenset({(True, 3)}))
    assert found.count("nccl_whole") == 5
    assert asked(without_nccl(), 16 * NAMES_S, unnamed=frozenset({(False, 0)})) == ["gloo_whole"] * 5


def test_a_recorder_that_is_not_there_is_not_asked_again() -> None:
    plan = without_nccl()
    plan.refused("gloo_whole")
    assert asked(plan, 600.0, quiet_s=100.0, unnamed=frozenset({(False, 0), (True, 0)})) == []


@pytest.mark.parametrize("question", ["nccl", "gloo_whole"])
def test_who_does_not_answer_is_asked_less_and_less(question: Question) -> None:
    plan = AskPlan() if question == "nccl" else without_nccl()
    times: list[float] = []
    for second in range(7200):
        if plan.due(second, 10.0, NONE) == question:
            times.append(second)
            plan.failed(question, second)
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps[:3] == [10, 20, 40]
    assert max(gaps) == LONGEST_S


@given(st.floats(0.0001, 2.0), st.floats(0.0, 100.0), st.sets(st.tuples(st.booleans(), st.integers(0, 3)), max_size=3))
def test_no_recorder_takes_more_than_a_two_hundredth_of_a_core(took_s: float, quiet_s: float, unnamed: set) -> None:
    plan, spent_s, for_s = AskPlan(EVERY_S), {True: 0.0, False: 0.0}, 300.0
    for look in range(int(for_s * 4)):
        question = plan.due(look / 4, quiet_s, unnamed)
        if question is not None:
            spent_s[question == "gloo_whole"] += took_s
            plan.answered(question, took_s, look / 4)
    assert all(spent <= for_s / REST + took_s for spent in spent_s.values())
