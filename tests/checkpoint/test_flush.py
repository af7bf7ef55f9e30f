"""What the keepers write to storage by themselves is what the ranks would have written, or is not there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from keepers import LIMIT_S, KeeperGround
from made_ranks import Ranks

from robust_run.ckpt_io import catalog
from robust_run.ckpt_io.memory.agent_protocol import AttemptBegins, Flushed, FlushLast
from robust_run.ckpt_io.memory.flushing.words import flush_uuid

pytestmark = pytest.mark.timeout(600)


def ground(folder: Path, limit_bytes: int | None = None) -> KeeperGround:
    folder.mkdir(mode=0o700)
    return KeeperGround(str(folder), limit_bytes).ready()


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[KeeperGround]:
    made = ground(tmp_path / "memory")
    yield made
    made.end()


def in_attempt(keeper: KeeperGround, folder: Path, attempt: int = 0, ranks: int = 2) -> dict[str, str]:
    keeper.begin_attempt(attempt, tuple(range(ranks)))
    return env_of(keeper, folder, attempt)


def env_of(keeper: KeeperGround, folder: Path, attempt: int = 0) -> dict[str, str]:
    env = {"ROBUST_CKPT_MEMORY": keeper.folder, "TORCHELASTIC_RESTART_COUNT": str(attempt), "ROBUST_JOB": "job"}
    return env | {"ROBUST_CKPT_DIR": str(folder)}


def flush(*keepers: KeeperGround, limit_s: float = LIMIT_S) -> list[Flushed]:
    """What comes of the end of a job."""
    for keeper in keepers:
        keeper.tell(FlushLast(number=1, limit_s=limit_s))
    return [keeper.next_of(Flushed) for keeper in keepers]


def manifest(folder: Path) -> dict[str, Any]:
    content = (folder / "MANIFEST").read_bytes()
    return json.loads(content[content.index(b"{") : content.rindex(b"}") + 1])


@pytest.mark.parametrize("sharded", ["", "_sharded"])
def test_a_training_goes_on_from_it_as_from_what_ranks_have_written(
    ranks: Ranks, keeper: KeeperGround, tmp_path: Path, sharded: str
) -> None:
    straight = ranks.values(f"straight{sharded}")
    folder, by_ranks = tmp_path / "ckpt", tmp_path / "them"
    ranks.values(f"first_half{sharded}", **in_attempt(keeper, folder))
    (said,) = flush(keeper)
    assert said.is_stored, said.text
    assert said.text.startswith(f"step 3 was written from memory to {folder} (")
    assert ranks.values(f"second_half{sharded}", ROBUST_CKPT_DIR=str(folder)) == straight
    ranks.values(f"first_half{sharded}", ROBUST_CKPT_DIR=str(by_ranks))
    mine, theirs = manifest(folder / "step-3"), manifest(by_ranks / "step-3")
    for each in (mine, theirs):
        each[
            "tensors"
        ] = {  # values hold the random number generators, whose numbers take as many bytes as they happen to need
            tensor["name"]: (tensor["dtype"], tensor["sizes"] if "/values/" not in tensor["name"] else ())
            for tensor in each["tensors"]
        }
    for key in ("tensors", "paths", "step", "blobs", "facts"):
        assert mine.get(key) == theirs.get(key), key


def test_it_is_spread_anew_over_another_number_of_ranks(ranks: Ranks, keeper: KeeperGround, tmp_path: Path) -> None:
    ranks.values("first_half_sharded", **in_attempt(keeper, tmp_path / "ckpt"))
    (said,) = flush(keeper)
    assert said.is_stored, said.text
    where = {"ROBUST_CKPT_DIR": str(tmp_path / "ckpt")}
    saved = ranks.values("look_at_sharded", **where)
    assert ranks.values("load_alone", 1, **where) == [saved[0]]
    assert [each[0] for each in ranks.values("look_at_sharded", 3, **where)] == [3, 3, 3]


def test_what_is_not_the_same_on_all_ranks_is_kept_for_each(ranks: Ranks, keeper: KeeperGround, tmp_path: Path) -> None:
    ranks.values("save_own", **in_attempt(keeper, tmp_path / "ckpt"))
    (said,) = flush(keeper)
    assert said.is_stored, said.text
    assert ranks.values("load_own", ROBUST_CKPT_DIR=str(tmp_path / "ckpt")) == [
        [1, {"stage": [float(rank)] * 3, "same": [1.0, 1.0], "rank": str(rank)}] for rank in range(2)
    ]


@contextlib.contextmanager
def two_nodes(tmp_path: Path) -> Iterator[list[KeeperGround]]:
    """Keepers of two nodes, each with one of two ranks."""
    nodes = [ground(tmp_path / f"memory {number}") for number in range(2)]
    try:
        for number, node in enumerate(nodes):
            node.tell(AttemptBegins(attempt=0, ranks=(number,), world_size=2))
            node.look()
        yield nodes
    finally:
        for node in nodes:
            node.end()


@pytest.mark.parametrize("sharded", ["", "_sharded"])
def test_two_nodes_write_one_checkpoint_together(ranks: Ranks, tmp_path: Path, sharded: str) -> None:
    straight = ranks.values(f"straight{sharded}")
    folder = tmp_path / "ckpt"
    with two_nodes(tmp_path) as nodes:
        env = env_of(nodes[0], folder) | {"1:ROBUST_CKPT_MEMORY": nodes[1].folder}
        ranks.values(f"first_half{sharded}", **env)
        first, second = flush(*nodes)
        assert (first.is_stored, second.is_stored, second.text) == (True, True, ""), (first.text, second.text)
    assert ranks.values(f"second_half{sharded}", ROBUST_CKPT_DIR=str(folder)) == straight
    assert os.listdir(folder) == ["step-3"]
    assert sorted(name.split("-")[0] for name in os.listdir(folder / "step-3")) == ["MANIFEST", "parts"]
    assert len(list((folder / "step-3").glob("parts-*/*"))) == 2, "notes are left"


def test_where_a_node_says_nothing_nothing_is_written(ranks: Ranks, tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    with two_nodes(tmp_path) as nodes:
        ranks.values("first_half", **env_of(nodes[0], folder), **{"1:ROBUST_CKPT_MEMORY": nodes[1].folder})
        (said,) = flush(nodes[0], limit_s=2.0)
        assert not said.is_stored
        assert said.text
    assert not folder.exists() or os.listdir(folder) == []


@pytest.mark.parametrize("left", [0, 1])
def test_a_node_whose_step_is_older_than_what_storage_has_waits_for_nobody(
    ranks: Ranks, tmp_path: Path, left: int
) -> None:
    """It was evicted, or lost for a while: the attempt that it had a part in is long over, and so is the job by now."""
    folder = tmp_path / "ckpt"
    with two_nodes(tmp_path) as nodes:
        env = env_of(nodes[0], folder) | {"1:ROBUST_CKPT_MEMORY": nodes[1].folder}
        ranks.values("first_half", **env)
        nodes[1 - left].end()
        ranks.values("first_half", ROBUST_CKPT_DIR=str(folder), ROBUST_JOB="job")  # as the others went on
        (said,) = flush(nodes[left], limit_s=600.0)
        assert (said.text, said.is_stored) == ("", True)
    assert not [name for name in os.listdir(folder) if name.startswith(".")]


@pytest.mark.parametrize("every", ["2", ""])
@pytest.mark.parametrize("empty", [0, 1])
def test_a_node_with_nothing_in_memory_says_so_and_nobody_waits_for_it(
    ranks: Ranks, tmp_path: Path, empty: int, every: str
) -> None:
    folder = tmp_path / "ckpt"
    nodes = [ground(tmp_path / f"memory {number}", 1 if number == empty else None) for number in range(2)]
    try:
        for number, node in enumerate(nodes):
            node.tell(AttemptBegins(attempt=0, ranks=(number,), world_size=2))
            node.look()
        env = env_of(nodes[0], folder) | {"1:ROBUST_CKPT_MEMORY": nodes[1].folder, "ROBUST_CKPT_EVERY": every}
        ranks.values("first_half", **env)
        said = flush(*nodes)
        assert (said[empty].text, said[empty].is_stored) == ("", False)
        no_step = (
            ""
            if not every
            else f"step 3 could not be written from memory to {folder}: memory has no step that all nodes have"
        )
        assert (said[1 - empty].text, said[1 - empty].is_stored) == (no_step, not every)
    finally:
        for node in nodes:
            node.end()
    assert sorted(os.listdir(folder)) == (["step-2"] if every else ["step-1", "step-2", "step-3"])


def test_what_is_due_goes_to_storage_in_the_background(ranks: Ranks, keeper: KeeperGround, tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    ranks.values("first_half", **in_attempt(keeper, folder), ROBUST_CKPT_EVERY="2")
    deadline_s = time.monotonic() + LIMIT_S
    while not [each for each in catalog.list_checkpoints(str(folder)) if each.state == "valid"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    (found,) = catalog.list_checkpoints(str(folder))
    assert (found.step, found.uuid) in [(2, flush_uuid("", 0, 2)), (3, flush_uuid("", 0, 3))]


def test_a_step_that_is_there_is_not_written_again(ranks: Ranks, keeper: KeeperGround, tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    ranks.values("save_twice", **in_attempt(keeper, folder))
    before = manifest(folder / "step-2")["uuid"]
    (said,) = flush(keeper)
    assert (said.is_stored, said.text) == (True, "")
    assert manifest(folder / "step-2")["uuid"] == before


def test_storage_that_cannot_be_written_is_one_line(ranks: Ranks, keeper: KeeperGround, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    env = in_attempt(keeper, tmp_path / "file" / "ckpt")
    ranks.values("first_half", **env)
    (said,) = flush(keeper)
    assert not said.is_stored
    assert said.text.startswith(f"step 3 could not be written from memory to {tmp_path}/file/ckpt: ")
    assert "\n" not in said.text


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):
        found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def test_a_kill_at_any_point_leaves_storage_as_it_was_and_the_next_one_clears_up(
    ranks: Ranks, keeper: KeeperGround, tmp_path: Path
) -> None:
    folder = tmp_path / "ckpt"
    ranks.values("save_much", **in_attempt(keeper, folder))
    killed = 0
    for round_ in range(8):
        keeper.tell(FlushLast(number=round_, limit_s=LIMIT_S))
        while not (children := children_of(keeper.process.pid)):
            time.sleep(0.001)
        time.sleep(round_ * 0.06)
        if round_ < 7:
            with contextlib.suppress(ProcessLookupError):
                os.kill(children[0], signal.SIGKILL)
        said = keeper.next_of(Flushed)
        if said.is_stored:
            break
        killed += 1
        assert "was killed by signal 9" in said.text
        assert [each for each in catalog.list_checkpoints(str(folder)) if each.state == "valid"] == []
    assert said.is_stored, said.text
    assert killed, "none was hit"
    (found,) = catalog.list_checkpoints(str(folder))
    assert (found.state, found.step, found.leftovers) == ("valid", 1, ())
    assert ranks.values("load_much", ROBUST_CKPT_DIR=str(folder)) == [True, True]


def test_one_that_is_given_up_leaves_nothing(ranks: Ranks, keeper: KeeperGround, tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    ranks.values("save_much", **in_attempt(keeper, folder))
    keeper.tell(FlushLast(number=1, limit_s=LIMIT_S))
    while not folder.exists() or not os.listdir(folder):
        time.sleep(0.002)
    keeper.tell(FlushLast(number=2, limit_s=0.0))
    said = keeper.next_of(Flushed)
    if not said.is_stored:
        assert "there was no more time" in said.text
        assert [name for name in os.listdir(folder) if os.listdir(folder / name)] == []


@pytest.mark.parametrize("resumed_step", [None, 3])
def test_a_step_that_did_not_happen_after_all_is_not_written(
    ranks: Ranks, keeper: KeeperGround, tmp_path: Path, resumed_step: int | None
) -> None:
    """A later attempt that starts before it drops it; one that starts from it keeps it."""
    folder = tmp_path / "ckpt"
    ranks.values("first_half", **in_attempt(keeper, folder))
    keeper.look_until(lambda found: (0, 3, (0, 1)) in found)
    keeper.begin_attempt(1, (0, 1), resumed_step)
    (said,) = flush(keeper)
    assert said.is_stored == (resumed_step == 3)
    assert folder.exists() == (resumed_step == 3)
