"""Several ranks that call torch.distributed.checkpoint, by way of storage and of a real keeper."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from keepers import KeeperGround
from made_ranks import Ranks, in_attempt

pytestmark = pytest.mark.timeout(900)
HOWS = ["", "_sharded", "_sync", "_sync_sharded", "_mixed_sharded"]


def sharded(how: str) -> str:
    return "_sharded" if how.endswith("_sharded") else ""


@pytest.mark.parametrize("how", HOWS)
def test_storage_a_training_that_was_interrupted_ends_like_one_that_was_not(
    ranks: Ranks, tmp_path: Path, how: str
) -> None:
    straight = ranks.values(f"straight{sharded(how)}")
    where = {"ROBUST_CKPT_DIR": str(tmp_path / "ckpt")}
    ranks.values(f"dcp_first_half{how}", **where)
    assert sorted(os.listdir(tmp_path / "ckpt")) == ["step-1", "step-2", "step-3"]
    assert ranks.values(f"dcp_second_half{sharded(how)}", **where) == straight


@pytest.mark.parametrize("how", HOWS)
def test_memory_a_training_that_was_interrupted_ends_like_one_that_was_not(
    ranks: Ranks, keeper: KeeperGround, tmp_path: Path, how: str
) -> None:
    straight = ranks.values(f"straight{sharded(how)}")
    where = {"ROBUST_CKPT_DIR": str(tmp_path / "ckpt")}
    ranks.values(f"dcp_first_half{how}", **where, **in_attempt(keeper, 0))
    keeper.look_until(lambda found: (0, 3, (0, 1)) in found)
    assert not (tmp_path / "ckpt").exists()
    assert ranks.values(f"dcp_second_half{sharded(how)}", **where, **in_attempt(keeper, 1, 3)) == straight


def test_storage_is_spread_anew_and_memory_is_refused_in_another_layout(
    ranks: Ranks, keeper: KeeperGround, tmp_path: Path
) -> None:
    where = {"ROBUST_CKPT_DIR": str(tmp_path / "ckpt")}
    ranks.values("dcp_first_half_sharded", **where)
    saved = ranks.values("dcp_look_sharded", **where)
    assert [each[:2] for each in ranks.values("dcp_look_sharded", 3, **where)] == [saved[0][:2]] * 3
    assert [each[:2] for each in ranks.values("dcp_look", **where)] == [saved[0][:2]] * 2

    ranks.values("dcp_first_half_sharded", **in_attempt(keeper, 0))
    keeper.look_until(lambda found: (0, 3, (0, 1)) in found)
    for answer in ranks.do("dcp_look", **in_attempt(keeper, 1, 3)):
        assert "memory holds it in that layout only" in answer["text"], answer


def test_what_all_ranks_have_can_be_sharded_out_of_memory(ranks: Ranks, keeper: KeeperGround) -> None:
    """It is all here: nothing of it is with another rank."""
    ranks.values("dcp_first_half", **in_attempt(keeper, 0))
    keeper.look_until(lambda found: (0, 3, (0, 1)) in found)
    plain = ranks.values("dcp_look", **in_attempt(keeper, 1, 3))
    assert [each[:2] for each in ranks.values("dcp_look_sharded", **in_attempt(keeper, 2, 3))] == [
        each[:2] for each in plain
    ]


def test_ranks_that_save_without_each_other_are_refused(ranks: Ranks, tmp_path: Path) -> None:
    for answer in ranks.do("dcp_alone_among_others", ROBUST_CKPT_DIR=str(tmp_path / "ckpt")):
        assert "1 of 2 ranks save together" in answer["text"], answer
    assert not (tmp_path / "ckpt").exists()


def test_a_save_that_fails_on_storage_is_every_ranks_error_and_the_next_one_is_well(
    ranks: Ranks, tmp_path: Path
) -> None:
    answers = ranks.values("dcp_save_where_nothing_can_be", ROBUST_CKPT_DIR=str(tmp_path / "ckpt"))
    assert all("/proc/nothing" in first and second == "" for first, second in answers), answers
    assert os.listdir(tmp_path / "ckpt") == ["step-2"]


def test_what_fsdp1_has_is_refused_by_its_name(ranks: Ranks, tmp_path: Path) -> None:
    for answer in ranks.do("save_sharded_tensor", ROBUST_CKPT_DIR=str(tmp_path / "ckpt")):
        assert answer["error"] == "StateRefused" and "weight: is a ShardedTensor, of FSDP1" in answer["text"], answer
