"""ROBUST_CKPT_KEEP at work: older checkpoints go once newer ones are there, by rank 0 or by its keeper, and only what is ours."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from keepers import LIMIT_S, KeeperGround
from made_ranks import Ranks

from robust_run.ckpt_io import catalog
from robust_run.ckpt_io.memory.agent_protocol import Flushed, FlushLast

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[KeeperGround]:
    (tmp_path / "memory").mkdir(mode=0o700)
    made = KeeperGround(str(tmp_path / "memory")).ready()
    yield made
    made.end()


def steps_in(folder: Path) -> list[int]:
    found = catalog.list_checkpoints(str(folder))
    return sorted(each.step or 0 for each in found if each.state == "valid")


def env_of(folder: Path, keep: str = "3", **more: str) -> dict[str, str]:
    return {"ROBUST_CKPT_DIR": str(folder), "ROBUST_CKPT_KEEP": keep, **more}


def in_memory(keeper: KeeperGround, folder: Path, attempt: int = 0, resumed_step: int | None = None) -> dict[str, str]:
    keeper.begin_attempt(attempt, (0, 1), resumed_step)
    memory = {"ROBUST_CKPT_MEMORY": keeper.folder, "TORCHELASTIC_RESTART_COUNT": str(attempt), "ROBUST_JOB": "job"}
    return env_of(folder, **memory, ROBUST_CKPT_EVERY="2")


def test_without_being_told_all_of_them_stay(ranks: Ranks, tmp_path: Path) -> None:
    ranks.values("save_ten", ROBUST_CKPT_DIR=str(tmp_path))
    assert steps_in(tmp_path) == list(range(1, 11))
    ranks.values("save_ten", **env_of(tmp_path, "all"))
    assert steps_in(tmp_path) == list(range(1, 21))


@pytest.mark.parametrize("of", [1, 2])
def test_ranks_that_write_keep_so_many_and_what_they_began_from(ranks: Ranks, tmp_path: Path, of: int) -> None:
    ranks.values("save_ten", of, **env_of(tmp_path))
    assert steps_in(tmp_path) == [8, 9, 10]
    ranks.values("save_ten", of, **env_of(tmp_path))
    assert steps_in(tmp_path) == [10, 18, 19, 20], "it may have to begin there again"
    ranks.values("save_ten", of, **env_of(tmp_path, "1"))
    assert steps_in(tmp_path) == [20, 30]


@pytest.mark.parametrize("program", ["trainer_ten", "lightning_ten"])
def test_callbacks_of_frameworks_keep_as_many_as_they_are_told(ranks: Ranks, tmp_path: Path, program: str) -> None:
    ranks.values(program, 1, ROBUST_CKPT_DIR=str(tmp_path))
    assert steps_in(tmp_path) == [9, 10]


def test_what_was_saved_without_it_or_by_the_program_itself_stays(ranks: Ranks, tmp_path: Path) -> None:
    ranks.values("save_ten", ROBUST_CKPT_DIR=str(tmp_path))
    shutil.copytree(tmp_path / "step-10", tmp_path / "best")
    ranks.values("save_ten", **env_of(tmp_path, "2"))
    assert steps_in(tmp_path) == sorted([*range(1, 11), 10, 19, 20])


def test_a_program_that_does_not_load_leaves_what_was_there(ranks: Ranks, tmp_path: Path) -> None:
    """Its own are older, by their steps; the ones of before are not of its past."""
    ranks.values("save_ten", **env_of(tmp_path))
    ranks.values("save_ten", **env_of(tmp_path))
    assert steps_in(tmp_path) == [10, 18, 19, 20]
    ranks.values("save_ten_without_load", **env_of(tmp_path, "2"))
    assert steps_in(tmp_path) == [9, 10, 18, 19, 20]


def test_one_that_cannot_be_read_does_not_count(ranks: Ranks, tmp_path: Path) -> None:
    """It is passed over by load, which begins from the one before it."""
    ranks.values("save_ten", **env_of(tmp_path))
    for part in (tmp_path / "step-10").glob("parts-*/*"):
        part.write_bytes(bytes(len(part.read_bytes())))
    assert steps_in(tmp_path) == [8, 9, 10], "its parts are as long as they should be"
    ranks.values("save_ten", **env_of(tmp_path, "1"))
    assert steps_in(tmp_path) == [9, 19], "10 was saved again meanwhile, and is whole and older"


def test_a_folder_that_cannot_be_listed_costs_no_training(ranks: Ranks, tmp_path: Path) -> None:
    """A manifest that is a folder, say."""
    ranks.values("save_ten", **env_of(tmp_path, "1"))
    (tmp_path / "odd" / "MANIFEST").mkdir(parents=True)
    ranks.values("save_ten", **env_of(tmp_path, "1"))
    assert 20 in steps_in(tmp_path)


def test_the_keeper_removes_while_training_goes_on_and_again_at_the_end(
    ranks: Ranks, keeper: KeeperGround, tmp_path: Path
) -> None:
    folder = tmp_path / "ckpt"
    ranks.values("save_ten", **env_of(folder, "9"))
    assert steps_in(folder) == list(range(2, 11))
    ranks.values("save_ten", **in_memory(keeper, folder))
    keeper.look_until(lambda found: (0, 20, (0, 1)) in found)
    keeper.tell(FlushLast(number=1, limit_s=LIMIT_S))
    said = keeper.next_of(Flushed)
    assert said.is_stored, said.text
    steps = steps_in(folder)
    assert 10 in steps and steps[-1] == 20 and len(steps) == 4, steps


def test_a_node_that_leaves_a_job_that_may_go_on_removes_nothing(
    ranks: Ranks, keeper: KeeperGround, tmp_path: Path
) -> None:
    folder = tmp_path / "ckpt"
    ranks.values("save_ten", **env_of(folder, "9"))
    ranks.values("save_ten", **{**in_memory(keeper, folder), "ROBUST_CKPT_EVERY": "1h"})
    keeper.tell(FlushLast(number=1, limit_s=LIMIT_S, is_job_over=False))
    said = keeper.next_of(Flushed)
    assert said.is_stored, said.text
    assert steps_in(folder) == [*range(2, 11), 20]
