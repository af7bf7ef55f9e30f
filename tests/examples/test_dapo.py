"""DAPO's parts, each by itself: what is right, who is better than his group, what is clipped, dropped and too long."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "rl"))

import batch
import objective
import places
import reward
import rollout
import task
import weights
from samples import Group, Prompt, Response, group_of, packed, prompt_of

from robust_run.ckpt_io import dcp


def group(number: int, *responses: str) -> Group:
    tries = tuple(Response(tuple(task.encode(each)), (-1.0,) * len(each)) for each in responses)
    return reward.verified(Group(number, 3, "3+2=", tries))


@pytest.mark.parametrize(
    ("response", "is_right"), [("5.", True), ("5", False), ("05.", False), ("6.", False), (".", False), ("5..", False)]
)
def test_a_response_is_right_as_a_whole_or_not_at_all(response: str, is_right: bool) -> None:
    assert task.is_right("3+2=", response) is is_right


@given(number=st.integers(0, 1 << 40), seed=st.integers(0, 100))
def test_a_problem_follows_from_its_number_and_can_be_solved(number: int, seed: int) -> None:
    text = task.problem(number, seed)
    assert text == task.problem(number, seed)
    assert len(task.encode(text)) == rollout.PROBLEM_TOKENS
    assert task.decode(task.encode(text)) == text
    assert task.is_right(text, task.answer(text))


def test_advantages_are_those_over_the_group() -> None:
    assert objective.advantages([1.0, 0.0, 0.0, 1.0]) == [1.0, -1.0, -1.0, 1.0]
    assert objective.advantages([0.5, 0.5]) == [0.0, 0.0]


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=16))
def test_advantages_of_a_group_add_up_to_nothing(rewards: list[float]) -> None:
    assert sum(objective.advantages(rewards)) == pytest.approx(0, abs=1e-3)


def test_the_clip_is_higher_than_it_is_low() -> None:
    ratios = torch.tensor([0.5, 0.8, 1.0, 1.28, 2.0])
    better, worse = objective.clipped(ratios, torch.ones(5)), objective.clipped(ratios, -torch.ones(5))
    assert better.tolist() == pytest.approx([0.5, 0.8, 1.0, 1.28, 1.28])
    assert worse.tolist() == pytest.approx([-0.8, -0.8, -1.0, -1.28, -2.0])


def test_beyond_the_clip_nothing_is_learnt() -> None:
    new = torch.log(torch.tensor([[1.3, 1.2], [0.7, 0.9]])).requires_grad_()
    objective.loss(new, torch.zeros(2, 2), torch.tensor([1.0, -1.0]), torch.ones(2, 2)).backward()
    assert new.grad is not None
    assert (new.grad == 0).tolist() == [[True, False], [True, False]]


def test_each_token_counts_as_much_in_a_long_response_as_in_a_short_one() -> None:
    mask = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    new = torch.zeros(2, 4, requires_grad=True)
    objective.loss(new, torch.zeros(2, 4), torch.tensor([1.0, 1.0]), mask).backward()
    assert new.grad is not None
    assert new.grad.tolist() == (-mask / 5).tolist()


@pytest.mark.parametrize(("length", "off"), [(1, 0.0), (2, 0.0), (3, -0.25), (6, -1.0), (7, -1.0)])
def test_what_is_too_long_loses_reward_step_by_step(length: int, off: float) -> None:
    assert objective.overlong(length, 6, 4) == off


def test_groups_that_teach_nothing_are_dropped_and_asked_for_again() -> None:
    found = batch.Batch(wanted=2)
    found.add(group(0, "5.", "5."))
    found.add(group(1, "4.", "."))
    assert (found.missing, found.dropped) == (2, [0, 1])
    found.add(group(2, "5.", "4."))
    assert found.missing == 1
    found.add(group(3, "12", "5."))
    assert found.missing == 0
    assert found.fates() == {"trained": [2, 3], "dropped": [0, 1]}
    assert found.reward == 4 / 8
    assert found.tokens == 4 + 3 + 4 + 4


def test_rewards_are_for_what_is_right_less_what_is_too_long() -> None:
    assert batch.rewards_of(group(0, "5.", "4.", "555.", "5555")) == [1.0, 0.0, -1.0, -1.0]


def test_a_row_of_a_batch_counts_the_tokens_that_were_drawn() -> None:
    problems, responses, _, gains, mask = batch.tensors_of([group(0, "5.", "12")])
    assert problems.tolist() == [task.encode("3+2=")] * 2
    assert responses.shape == (2, rollout.MOST_TOKENS)
    assert mask.sum(1).tolist() == [2.0, 2.0]
    assert gains.tolist() == pytest.approx([1.0, -1.0])


def test_words_of_the_queues_come_out_as_they_went_in() -> None:
    prompt, tried = Prompt(5, 1, 16, 7), group(5, "5.", "12")
    assert prompt_of(packed(prompt)) == prompt
    assert group_of(packed(tried)) == tried


def test_who_responds_again_draws_the_same(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = rollout.new_model()
    torch.nn.init.normal_(model.head.weight)
    first = rollout.respond(model, [Prompt(5, 1, 16, 7)], 7)
    weights.publish(model, 7, str(tmp_path / "weights"))
    follower = weights.Follower(rollout.new_model(), str(tmp_path / "weights"))
    assert follower.look() == 7
    assert weights.digest(follower.model) == weights.digest(model)
    assert rollout.respond(follower.model, [Prompt(5, 1, 16, 7)], 7) == first
    assert rollout.respond(follower.model, [Prompt(5, 1, 16, 7)], 8) != first


def test_a_trainer_that_went_back_publishes_older_weights_and_rollouts_follow(tmp_path: Path) -> None:
    model, path = rollout.new_model(), str(tmp_path / "weights")
    weights.publish(model, 3, path)
    follower = weights.Follower(rollout.new_model(), path)
    assert follower.look() == 3
    weights.publish(model, 2, path)
    assert follower.look() == 2


def test_a_prompt_of_a_step_that_is_over_is_not_waited_for(tmp_path: Path) -> None:
    """A queue gives at least once: a prompt comes again whose first holder had responded, and died before it said so."""
    model, path = rollout.new_model(), str(tmp_path / "weights")
    follower = weights.Follower(rollout.new_model(), path)
    weights.publish(model, 3, path)
    assert rollout.is_due(follower, 3)
    assert not rollout.is_due(follower, 2), "it would wait for ever, with prompts that others wait for"
    later = threading.Timer(0.2, weights.publish, (model, 4, path))
    later.start()
    assert rollout.is_due(follower, 4), "what is not published yet is waited for"
    later.join()


def test_a_response_ends_with_its_first_end() -> None:
    end = task.END
    assert rollout.cut([3, end, end, end], [-1.0, -2.0, 0.0, 0.0]) == Response((3, end), (-1.0, -2.0))
    assert rollout.cut([3, 4], [-1.0, -2.0]) == Response((3, 4), (-1.0, -2.0))


def test_a_trainer_may_go_back_to_the_checkpoint_before_the_newest_or_to_the_beginning() -> None:
    """One that is damaged is passed over."""
    assert places.oldest_needed([]) == places.oldest_needed([50]) == 0
    assert places.oldest_needed([100, 50]) == 50
    assert places.oldest_needed([50, 250, 300]) == 250, "one that stays for other reasons is never started from"


class KeptQueue:
    """Notes what it may forget."""

    def __init__(self) -> None:
        self.through = -1
        self.released: list[int] = []

    def state_dict(self) -> dict[str, object]:
        return {"through": self.through}

    def release(self, state: dict[str, object]) -> None:
        self.released.append(int(str(state["through"])))


def test_a_queue_forgets_what_was_trained_on_before_checkpoints_that_storage_has_whole(tmp_path: Path) -> None:
    queue, state = KeptQueue(), {"weights": torch.ones(2)}
    kept = places.Places(queue, state, str(tmp_path), every=2)  # type: ignore[arg-type]
    for step in range(1, 9):
        queue.through = 10 * step
        kept.note(step)
        if step % 2 == 0 and step != 6:
            dcp.save(dict(state), f"{tmp_path}/step-{step}")
        if step == 6:  # it was begun, and is not whole
            (tmp_path / "step-6").mkdir()
        kept.release(step)
    assert queue.released == [20, 40]
