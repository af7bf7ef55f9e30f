"""Memory that more or fewer ranks saved than load it: what is loaded is what storage would have given, or nothing is."""

from __future__ import annotations

from pathlib import Path

import pytest
from keepers import KeeperGround
from made_ranks import Ranks

from robust_run.checkpoint.rules.settings import Generation, generation_of
from robust_run.ckpt_io.memory.types import generation_address, generation_name, generation_of_name, saved_by_of_name

pytestmark = pytest.mark.timeout(600)


def environment(keeper: KeeperGround, attempt: int, **more: str) -> dict[str, str]:
    memory = {"ROBUST_CKPT_MEMORY": keeper.folder, "TORCHELASTIC_RESTART_COUNT": str(attempt), "ROBUST_JOB": "job"}
    return {**memory, **more}


def in_memory_and_storage(
    ranks: Ranks, keeper: KeeperGround, tmp_path: Path, scenario: str, saved_by: int
) -> dict[str, str]:
    """Have so many ranks save step 3 both ways; return what has others load it from storage."""
    stored = {"ROBUST_CKPT_DIR": str(tmp_path / "ckpt")}
    ranks.values(scenario, saved_by, **stored)
    keeper.begin_attempt(0, tuple(range(saved_by)))
    ranks.values(scenario, saved_by, **environment(keeper, 0))
    return stored


def loads_from_memory(
    keeper: KeeperGround, attempt: int, now: int, saved_by: int, step: int = 3, of: int = 0
) -> dict[str, str]:
    """Begin an attempt of another number of ranks; return their environment."""
    keeper.begin_attempt(attempt, tuple(range(now)), step, resumed_attempt=of)
    return environment(keeper, attempt, ROBUST_RESUME=generation_address(of, step, saved_by))


@pytest.mark.parametrize(("saved_by", "now"), [(2, 1), (2, 3), (4, 2), (3, 2)])
def test_sharded_state_is_what_storage_would_have_given(
    ranks: Ranks, keeper: KeeperGround, tmp_path: Path, saved_by: int, now: int
) -> None:
    stored = in_memory_and_storage(ranks, keeper, tmp_path, "first_half_sharded", saved_by)
    keeper.look_until(lambda found: any(each[:2] == (0, 3) and len(each[2]) == saved_by for each in found))
    look = "look_at_sharded" if now > 1 else "load_alone"
    expected = ranks.values(look, now, **stored)
    assert [each[0] for each in expected] == [3] * now
    assert ranks.values(look, now, **loads_from_memory(keeper, 1, now, saved_by)) == expected


def test_what_is_not_the_same_on_all_ranks_goes_to_the_rank_with_its_number_as_from_storage(
    ranks: Ranks, keeper: KeeperGround, tmp_path: Path
) -> None:
    stored = in_memory_and_storage(ranks, keeper, tmp_path, "save_own", 2)
    keeper.look_until(lambda found: (0, 1, (0, 1)) in found)
    expected = ranks.values("load_own", 3, **stored)
    assert [each[1]["rank"] for each in expected] == ["0", "1", "0"]
    assert ranks.values("load_own", 3, **loads_from_memory(keeper, 1, 3, 2, step=1)) == expected


def test_what_it_started_from_stays_until_the_new_world_has_saved_and_then_goes(
    ranks: Ranks, keeper: KeeperGround, tmp_path: Path
) -> None:
    in_memory_and_storage(ranks, keeper, tmp_path, "first_half_sharded", 4)
    keeper.look_until(lambda found: (0, 3, (0, 1, 2, 3)) in found)
    ranks.values("look_at_sharded", 2, **loads_from_memory(keeper, 1, 2, 4))
    assert keeper.look()[0] == (0, 3, (0, 1, 2, 3)), "the next attempt may need it again"
    on = ranks.values("go_on_sharded", 2, **loads_from_memory(keeper, 2, 2, 4))
    keeper.look_until(lambda found: found[0] == (2, 5, (0, 1)))
    assert all(rank < 2 for _, _, held in keeper.look() for rank in held), "nobody has use for ranks that are no more"
    again = ranks.values("look_at_sharded", 4, **loads_from_memory(keeper, 3, 4, 2, step=5, of=2))
    assert [each[0] for each in again] == [5] * 4
    assert again[0][1]["model"] == on[0][1]["model"]


def test_a_part_that_is_missing_is_an_error_on_all_ranks(ranks: Ranks, keeper: KeeperGround, tmp_path: Path) -> None:
    in_memory_and_storage(ranks, keeper, tmp_path, "first_half_sharded", 2)
    keeper.look_until(lambda found: (0, 3, (0, 1)) in found)
    answers = ranks.do("look_at_sharded", 2, **loads_from_memory(keeper, 1, 2, 3))
    assert [answer["error"] for answer in answers] == ["CheckpointError"] * 2
    assert all("rank" in answer["text"] and "cannot be loaded from memory" in answer["text"] for answer in answers)


def test_names_and_addresses_say_how_many_saved_it() -> None:
    assert generation_of(generation_address(1, 6, 4)) == Generation(1, 6, 4)
    assert generation_of(generation_address(1, 6)) == Generation(1, 6)
    assert generation_of("rrck+memory://1/6?of=0") is None
    name = generation_name(1, 6, 4)
    assert (generation_of_name(name), saved_by_of_name(name)) == ((1, 6), 4)
    assert (generation_of_name("memory-1-6"), saved_by_of_name("memory-1-6")) == ((1, 6), 0)
    assert generation_of_name("memory-1-6-of-x") is None and saved_by_of_name("step-4") == 0
