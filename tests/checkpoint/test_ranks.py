"""Several ranks that save and load together, by way of storage and of a real keeper."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from keepers import LIMIT_S, KeeperGround
from made_ranks import Ranks, in_attempt

from robust_run.ckpt_io.memory.types import generation_uuid
from robust_run.ckpt_io.notes import read_damage

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("sharded", ["", "_sharded"])
def test_storage_a_training_that_was_interrupted_ends_like_one_that_was_not(
    ranks: Ranks, tmp_path: Path, sharded: str
) -> None:
    straight = ranks.values(f"straight{sharded}")
    assert straight[0]["drawn"] != straight[1]["drawn"]
    ranks.values(f"first_half{sharded}", ROBUST_CKPT_DIR=str(tmp_path / "ckpt"))
    assert ranks.values(f"second_half{sharded}", ROBUST_CKPT_DIR=str(tmp_path / "ckpt")) == straight


@pytest.mark.parametrize("sharded", ["", "_sharded"])
def test_memory_a_training_that_was_interrupted_ends_like_one_that_was_not(
    ranks: Ranks, keeper: KeeperGround, sharded: str
) -> None:
    straight = ranks.values(f"straight{sharded}")
    ranks.values(f"first_half{sharded}", **in_attempt(keeper, 0))
    keeper.look_until(lambda found: (0, 3, (0, 1)) in found)
    assert ranks.values(f"second_half{sharded}", **in_attempt(keeper, 1, 3)) == straight


def test_storage_is_spread_anew_over_another_number_of_ranks(ranks: Ranks, tmp_path: Path) -> None:
    where = {"ROBUST_CKPT_DIR": str(tmp_path / "ckpt")}
    ranks.values("first_half_sharded", **where)
    saved = ranks.values("look_at_sharded", **where)
    assert ranks.values("load_alone", 1, **where) == [saved[0]]
    assert [each[0] for each in ranks.values("look_at_sharded", 3, **where)] == [3, 3, 3]


def test_storage_keeps_what_is_not_the_same_on_all_ranks_for_each(ranks: Ranks, tmp_path: Path) -> None:
    where = {"ROBUST_CKPT_DIR": str(tmp_path / "ckpt")}
    ranks.values("save_own", **where)
    assert ranks.values("load_own", **where) == [
        [1, {"stage": [float(rank)] * 3, "same": [1.0, 1.0], "rank": str(rank)}] for rank in range(2)
    ]


def test_a_part_that_is_absent_is_an_error_on_all_ranks_and_noted(
    ranks: Ranks, keeper: KeeperGround, tmp_path: Path
) -> None:
    for rank in range(2):
        (tmp_path / "run" / "attempt_1" / str(rank)).mkdir(parents=True)
    ranks.values("first_half", **in_attempt(keeper, 0))
    keeper.look_until(lambda found: (0, 3, (0, 1)) in found)
    env = in_attempt(keeper, 1, 3) | {"ROBUST_RESUME": "rrck+memory://0/7", "ROBUST_RUN_DIR": str(tmp_path / "run")}
    answers = ranks.do("second_half", **env)
    assert [answer["error"] for answer in answers] == ["CheckpointError"] * 2
    assert all("step 7 cannot be loaded from memory" in answer["text"] for answer in answers)
    (note,) = read_damage(str(tmp_path / "run" / "attempt_1" / "0"))
    assert (note.uuid, note.url) == (generation_uuid("job", 0, 7), "rrck+memory://0/7")


def test_memory_is_refused_in_another_layout(ranks: Ranks, keeper: KeeperGround) -> None:
    ranks.values("first_half_sharded", **in_attempt(keeper, 0))
    keeper.look_until(lambda found: (0, 3, (0, 1)) in found)
    answers = ranks.do("second_half", **in_attempt(keeper, 1, 3))
    assert all("memory holds it in that layout only" in answer["text"] for answer in answers)


def test_a_job_without_its_keeper_goes_on_with_storage(ranks: Ranks, keeper: KeeperGround, tmp_path: Path) -> None:
    began = len(ranks.said.read_text())
    env = in_attempt(keeper, 0) | {"ROBUST_CKPT_DIR": str(tmp_path / "ckpt"), "ROBUST_CKPT_EVERY": "1"}
    keeper.kill()
    ranks.values("first_half", **env)
    assert sorted(os.listdir(tmp_path / "ckpt")) == ["step-1", "step-2", "step-3"]
    said = [line for line in ranks.said.read_text()[began:].splitlines() if "keeps no checkpoints in memory" in line]
    assert len(said) == 2, said


@pytest.mark.parametrize(
    ("differs", "stored"),
    [
        ({"1:ROBUST_CKPT_MEMORY": "off"}, ["step-1", "step-2", "step-3"]),
        ({"0:ROBUST_CKPT_MEMORY": "off"}, ["step-1", "step-2", "step-3"]),
        ({"0:ROBUST_CKPT_EVERY": "2"}, ["step-2"]),
        ({"1:ROBUST_CKPT_EVERY": "2"}, []),
    ],
    ids=["no memory on one", "no memory on the first", "the first was told", "another was told"],
)
def test_ranks_that_were_told_different_things_do_the_same(
    ranks: Ranks, keeper: KeeperGround, tmp_path: Path, differs: dict[str, str], stored: list[str]
) -> None:
    (tmp_path / "ckpt").mkdir()
    ranks.values("first_half", **in_attempt(keeper, 0), ROBUST_CKPT_DIR=str(tmp_path / "ckpt"), **differs)
    until_s = time.monotonic() + LIMIT_S  # where memory is on, the keeper writes, in the background
    while stored and not is_whole(tmp_path / "ckpt" / stored[-1]) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert sorted(os.listdir(tmp_path / "ckpt")) == stored


def is_whole(folder: Path) -> bool:
    return (folder / "MANIFEST").exists()


def test_memory_that_fails_on_one_rank_as_a_warning_comes_is_off_on_all(
    ranks: Ranks, keeper: KeeperGround, tmp_path: Path
) -> None:
    env = in_attempt(keeper, 0) | {"ROBUST_WARNING_FILE": str(tmp_path / "warning.json")}
    ranks.values("memory_fails", **env, ROBUST_CKPT_DIR=str(tmp_path / "ckpt"))
    assert sorted(os.listdir(tmp_path / "ckpt")) == ["step-2", "step-3", "step-4"]
    assert all(step <= 2 for _, step, _ in keeper.look()), "rank 0 copies for nothing no more"
