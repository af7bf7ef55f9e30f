"""T-PPO's parts: advantages of unfinished responses, windows that go on, and that no token trains twice."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "rl"))

import strokes
import tppo
from gae import extended_gae
from learner import Learner
from rl_jobs import pids, train
from windows import Slot, Spent, go_on

VALUES = st.lists(st.floats(-2, 2), min_size=2, max_size=20)


@given(number=st.integers(0, 1 << 40), seed=st.integers(0, 100))
def test_the_right_response_to_any_problem_fits_and_is_worth_1(number: int, seed: int) -> None:
    text = strokes.problem(number, seed)
    response = strokes.answer(text)
    assert len(text) <= strokes.MOST_PROBLEM
    assert len(response) <= strokes.MOST_TOKENS
    assert strokes.reward(text, response) == 1
    assert strokes.decode(strokes.encode(text)) == text


@pytest.mark.parametrize(
    ("response", "reward"), [("111.", 1.0), ("11.", 0.5), ("1111.", 0.6), (".", 0.0), ("111", 0.75), ("1+1.", 0.75)]
)
def test_half_an_answer_is_worth_something(response: str, reward: float) -> None:
    assert strokes.reward("11+1=", response) == reward


@given(values=VALUES, reward=st.floats(0, 1))
def test_with_a_fade_of_1_an_advantage_is_the_reward_less_the_value(values: list[float], reward: float) -> None:
    expected = [reward - value for value in values[:-1]]
    assert extended_gae(values, reward, 1.0) == pytest.approx(expected, abs=1e-9)


@given(values=VALUES)
def test_what_is_not_finished_is_worth_what_its_last_state_is(values: list[float]) -> None:
    assert extended_gae(values, None, 1.0) == pytest.approx([values[-1] - each for each in values[:-1]], abs=1e-9)
    assert extended_gae(values, None) == extended_gae(values, values[-1])


@given(values=VALUES, reward=st.floats(0, 1))
def test_with_a_fade_of_0_only_the_next_state_counts(values: list[float], reward: float) -> None:
    after = [*values[1:-1], reward]
    expected = [one - other for one, other in zip(after, values, strict=False)]
    assert extended_gae(values, reward, 0.0) == pytest.approx(expected)


def test_a_response_goes_on_where_its_window_ended_and_each_token_is_new_once() -> None:
    model, chance, spent = Learner(0).model, torch.Generator().manual_seed(0), Spent()
    slots = [Slot(strokes.problem(number, 0)) for number in range(8)]
    new = [0] * len(slots)
    while not all(slot.is_finished for slot in slots):
        before = [list(slot.tokens) for slot in slots]
        go_on(model, slots, 4, chance, spent)
        for at, slot in enumerate(slots):
            assert slot.tokens[: slot.begin] == before[at]
            assert len(slot.tokens) - slot.begin <= 4
            new[at] += len(slot.tokens) - slot.begin
    assert new == [len(slot.tokens) for slot in slots]
    assert spent.tokens == sum(new)
    assert spent.rounds >= max(new)
    assert all(slot.reward is not None for slot in slots)


def test_with_a_window_as_long_as_the_longest_response_every_step_finishes_all() -> None:
    model, chance = Learner(0).model, torch.Generator().manual_seed(0)
    slots = [Slot(strokes.problem(number, 0)) for number in range(8)]
    go_on(model, slots, strokes.MOST_TOKENS, chance, Spent())
    assert all(slot.is_finished and slot.begin == 0 for slot in slots)


def test_tokens_of_an_unfinished_response_do_not_train_the_value() -> None:
    learner = Learner(0)
    assert learner.model.value is not None
    before = learner.model.value.weight.detach().clone()
    learner.learn([Slot("11+1=", [0, 0, 0], [-1.4, -1.4, -1.4], 1), Slot("1+1=", [0], [-1.4])])
    assert torch.equal(learner.model.value.weight, before)
    learner.learn([Slot("11+1=", [0, 0, 0], [-1.4, -1.4, -1.4], 1), Slot("1+1=", [0, 3], [-1.4, -1.4], 1)])
    assert not torch.equal(learner.model.value.weight, before)


def test_a_comparison_that_did_not_get_there_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert tppo.compare(1, 2.0, 2) == 1
    said = capsys.readouterr().out
    assert "PPO, T-PPO did not reach a reward of 2.0 in 2 steps: its ratios mean little" in said
    assert "generated tokens" in said


def test_a_job_of_roles_trains_on_each_window_once_whatever_died(tmp_path: Path) -> None:
    strikes = [(4, "rollout-0"), (8, "trainer-0")]
    result = train(tmp_path, "tppo", "--steps", "16", strikes=strikes)
    assert len(pids(result.folder, "rollout-0")) == len(pids(result.folder, "trainer-0")) == 2
    assert sorted(result.steps) == list(range(1, 17))
    trained = [key for step in result.steps.values() for key in step["trained"]]
    assert len(trained) == len(set(trained))
    parts: dict[int, list[int]] = {}
    for key in trained:
        number, _, part = key.partition(".")
        parts.setdefault(int(number), []).append(int(part))
    for number, found in parts.items():
        assert found == list(range(1, len(found) + 1)), f"windows of response {number}, in their order"
