"""Several ranks, as real processes over gloo: sharded states saved by some number of them and loaded by another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from robust_run.ckpt_io.dcp import load, load_whole
from robust_run.ckpt_io.reading import open_checkpoint

WORKER = Path(__file__).with_name("ranks_at_work.py")
PACKAGE = Path(__file__).resolve().parents[3]


class Ranks:
    """Ranks on demand."""

    def __init__(self, folder: Path) -> None:
        self._errors = folder / "stderr"
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(WORKER)],
                env={**os.environ, "PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def run(self, scenario: str, ranks: int, folder: Path) -> list[Any]:
        """What each rank answered; None: it was gone before it did."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([scenario, ranks, str(folder)]) + "\n")
        self.process.stdin.flush()
        answers: list[Any] = json.loads(self.process.stdout.readline())
        assert any(answers), f"{scenario}: {answers}\n{self._errors.read_text()[-3000:]}"
        return answers

    def values(self, scenario: str, ranks: int, folder: Path) -> list[Any]:
        """What each rank returned; none may have failed."""
        answers = self.run(scenario, ranks, folder)
        assert all(answer and "value" in answer for answer in answers), f"{answers}\n{self._errors.read_text()[-3000:]}"
        return [answer["value"] for answer in answers]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(tmp_path_factory.mktemp("ranks"))
    try:
        yield ranks
    finally:
        ranks.process.kill()
        ranks.process.communicate()


def parts(folder: Path) -> set[Path]:
    return set(folder.rglob("*.part"))


def test_fsdp_of_two_ranks_goes_on_with_four_and_then_with_three(many: Ranks, tmp_path: Path) -> None:
    saved = many.values("fsdp_save", 2, tmp_path)
    assert saved[0] == saved[1]
    on_four = many.values("fsdp_load_and_save_again", 4, tmp_path)
    assert on_four == [saved[0]] * 4
    on_three = many.values("fsdp_load", 3, tmp_path)
    assert on_three == [saved[0]] * 3


def test_columns_are_loaded_as_rows_as_columns_and_whole(many: Ranks, tmp_path: Path) -> None:
    many.values("columns_save", 2, tmp_path)
    for scenario in ("load_as_rows", "load_as_columns", "load_whole"):
        assert many.values(scenario, 3, tmp_path) == [[True, True]] * 3
    whole = load_whole(tmp_path / "grid")
    assert whole["grid"][3, 5] == 3 * 517 + 5


def test_what_all_ranks_have_is_saved_once_and_by_all_of_them(many: Ranks, tmp_path: Path) -> None:
    many.values("replicated_save", 3, tmp_path)
    with open_checkpoint(str(tmp_path / "same")) as checkpoint:
        sizes = [file.size_bytes for file in checkpoint.manifest.files]
    assert 6 * 1_200_000 <= sum(sizes) < 6 * 1_200_000 + 100_000
    assert len(sizes) == 3 and min(sizes) >= 1_200_000


def test_a_group_reads_each_byte_once_and_each_rank_its_share(many: Ranks, tmp_path: Path) -> None:
    many.values("replicated_save", 2, tmp_path)
    answers = many.values("broadcast_load", 3, tmp_path)
    assert [answer["same"] for answer in answers] == [True] * 3
    read = [tuple(row) for answer in answers for row in answer["read"]]
    assert len(set(read)) == len(read)
    with open_checkpoint(str(tmp_path / "same")) as checkpoint:
        assert sum(size for _, _, size in read) == sum(file.size_bytes for file in checkpoint.manifest.files)
    loads = [sum(size for _, _, size in answer["read"]) for answer in answers]
    assert max(loads) - min(loads) <= 1 << 20


def test_groups_that_want_different_things_do_not_wait_for_each_other(many: Ranks, tmp_path: Path) -> None:
    many.values("replicated_save", 2, tmp_path)
    assert many.values("broadcast_two_groups", 4, tmp_path) == [True] * 4


def test_damage_that_one_rank_finds_is_everybodys_error(many: Ranks, tmp_path: Path) -> None:
    many.values("replicated_save", 2, tmp_path)
    part = max(parts(tmp_path))
    data = bytearray(part.read_bytes())
    data[-70_000] ^= 1
    part.write_bytes(data)
    for answer in many.run("broadcast_plain_load", 3, tmp_path):
        assert answer["error"] == "Damaged" and part.name in answer["text"]


def test_a_rank_that_cannot_take_part_is_everybodys_error(many: Ranks, tmp_path: Path) -> None:
    many.values("replicated_save", 2, tmp_path)
    for answer in many.run("broadcast_trouble", 3, tmp_path):
        assert answer["error"] == "UserError" and "shape (7,)" in answer["text"]


def test_a_save_that_one_rank_cannot_do_fails_everywhere_and_leaves_nothing(many: Ranks, tmp_path: Path) -> None:
    many.values("columns_save", 2, tmp_path)
    before = parts(tmp_path)
    for answer in many.run("save_with_one_bad_rank", 2, tmp_path):
        assert answer["error"] == "UserError" and "'bad'" in answer["text"]
    assert parts(tmp_path) == before
    assert many.values("load_whole", 1, tmp_path) == [[True, True]]


def test_a_rank_that_is_killed_while_it_saves_leaves_the_old_checkpoint(many: Ranks, tmp_path: Path) -> None:
    many.values("columns_save", 2, tmp_path)
    survivor, dead = many.run("save_and_die", 2, tmp_path)
    assert dead is None and "error" in survivor
    assert many.values("load_whole", 1, tmp_path) == [[True, True]]
    assert set(load_whole(tmp_path / "grid")) == {"grid", "cube"}


def test_what_is_no_checkpoint_is_everybodys_error(many: Ranks, tmp_path: Path) -> None:
    for answer in many.run("load_nothing", 2, tmp_path):
        assert answer["error"] == "NotACheckpoint"
    many.values("replicated_save", 2, tmp_path)
    one, other = many.run("load_where_one_rank_sees_nothing", 2, tmp_path)
    assert one["error"] == "PeerFailed" and "rank 1" in one["text"]
    assert other["error"] == "NotACheckpoint"


@pytest.mark.parametrize("scenario", ["load_as_seen", "load_as_seen_by_torch"])
def test_ranks_that_opened_different_checkpoints_load_none(many: Ranks, tmp_path: Path, scenario: str) -> None:
    many.values("save_twice", 2, tmp_path)
    for answer in many.run(scenario, 3, tmp_path):
        assert answer["error"] == "Mixed", answer
        assert f"rank 0: step 3 in {tmp_path}/new/last" in answer["text"]
        assert f"ranks 1, 2: step 2 in {tmp_path}/old/last" in answer["text"]


def test_nodes_load_their_own_where_the_launcher_chose_it_for_each(many: Ranks, tmp_path: Path) -> None:
    many.values("own_save", 2, tmp_path)
    assert many.values("load_own", 2, tmp_path) == [[0, True], [1, True]]


@pytest.mark.parametrize(
    ("scenario", "rule"),
    [
        ("load_own_untold", "All of them must load the same"),
        ("load_own_told_one", "All of them must load the same"),
        ("load_own_elsewhere", "All of them must load the same"),
        ("load_own_of_other_steps", "of the same step"),
        ("load_own_of_one_node", "all ranks of a node the same"),
        ("load_own_shared", "reads cannot be shared between nodes"),
    ],
)
def test_any_other_mixture_is_refused(many: Ranks, tmp_path: Path, scenario: str, rule: str) -> None:
    many.values("own_save", 2, tmp_path)
    for answer in many.run(scenario, 2, tmp_path):
        assert answer["error"] == "Mixed" and rule in answer["text"], answer


def test_a_rank_alone_loads_what_it_likes(many: Ranks, tmp_path: Path) -> None:
    many.values("save_twice", 2, tmp_path)
    assert many.values("load_alone_among_others", 2, tmp_path) == [3, 2]
    assert many.values("load_as_seen", 1, tmp_path) == many.values("load_as_seen_by_torch", 1, tmp_path) == [3]
    state: dict[str, Any] = {"step": 0}
    load(state, tmp_path / "old" / "last")  # no process group at all
    assert state["step"] == 2


@pytest.mark.parametrize("scenario", ["save_in_a_thread", "save_in_a_process"])
def test_a_save_in_the_background_is_the_same_and_tells_its_error(many: Ranks, tmp_path: Path, scenario: str) -> None:
    for same, error, text in many.values(scenario, 2, tmp_path):
        assert same
        assert error == "TargetLost" and "/proc/nothing" in text


def test_saves_in_the_background_do_not_mix_with_what_training_says_over_the_same_group(
    many: Ranks, tmp_path: Path
) -> None:
    for sums, found in many.values("save_as_training_goes_on", 2, tmp_path):
        assert sums == [3.0, 5.0, 7.0, 9.0]
        assert found == [True] * 4


@pytest.mark.parametrize("backends", ["gloo", "cpu:gloo", "cpu:gloo,cuda:gloo"])
def test_a_save_in_the_background_has_a_group_of_its_own_whatever_backends_there_are(
    many: Ranks, tmp_path: Path, backends: str
) -> None:
    answers = many.values(f"save_and_train_in_another_order@{backends}", 2, tmp_path)
    assert answers == [[3.0, True]] * 2
