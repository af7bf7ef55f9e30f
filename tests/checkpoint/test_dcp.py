"""`torch.distributed.checkpoint` with the writer, stager and reader of memory, in one process; `test_dcp_ranks` has several."""

from __future__ import annotations

import inspect
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from fake_keeper import FakeKeeper
from saved_states import a_new_process, all_of, made, train
from torch.distributed.checkpoint.api import CheckpointException

from robust_run import checkpoint
from robust_run.checkpoint.dcp_sources import _around
from robust_run.ckpt_io.dcp.writer import RobustWriter
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.memory.client import MemoryClient
from robust_run.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")
LIMIT_S = 120
SAVES = ["async", "sync"]


def save(how: str, state: dict[str, Any], **words: Any) -> None:
    writer = checkpoint.MemoryWriter(**words)
    if how == "sync":
        dcp.save(state, storage_writer=writer)
    else:
        dcp.async_save(state, storage_writer=writer).result(LIMIT_S)


def load(state: dict[str, Any], folder: str | None = None) -> int | None:
    reader = checkpoint.MemoryReader(folder)
    if reader.step is not None:
        dcp.load(state, storage_reader=reader)
    return reader.step


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> Iterator[None]:
    a_new_process()
    yield
    a_new_process()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeKeeper:
    found = FakeKeeper()
    monkeypatch.setattr(MemoryClient, "connect", lambda *_, **__: found)
    monkeypatch.setenv("ROBUST_CKPT_MEMORY", "/somewhere")
    return found


def steps_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(params=["memory", "storage"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], None]:
    """Where saves go; call it with a step, and another attempt begins there."""
    if request.param == "memory":
        request.getfixturevalue("fake")
    else:
        monkeypatch.setenv("ROBUST_CKPT_DIR", str(tmp_path / "ckpt"))

    def begin(step: int) -> None:
        a_new_process()
        if request.param == "memory":
            monkeypatch.setenv("ROBUST_RESUME", f"rrck+memory://0/{step}")

    return begin


@pytest.mark.parametrize("how", SAVES)
def test_a_training_goes_on_from_a_save_of_dcp(kept: Callable[[int], None], how: str) -> None:
    straight = made()
    train(straight, 3)
    save(how, straight, step=3)
    train(straight, 3)

    kept(3)
    resumed = made(seed=2)
    train(resumed, 1)  # dcp loads what there is: moments are there after a step
    resumed["seen"]["losses"] = ["before"]
    random.seed(9)
    assert load(resumed) == 3
    train(resumed, 3)
    assert all_of(resumed) == all_of(straight)


@pytest.mark.parametrize("how", SAVES)
def test_checkpoint_load_has_what_dcp_saved(kept: Callable[[int], None], how: str) -> None:
    straight = made()
    train(straight, 3)
    save(how, straight, step=3)
    train(straight, 3)

    kept(3)
    resumed = made(seed=2)
    assert checkpoint.load(resumed) == 3
    train(resumed, 3)
    assert all_of(resumed) == all_of(straight)


def test_dcp_loads_what_checkpoint_save_saved(kept: Callable[[int], None]) -> None:
    straight = made()
    train(straight, 3)
    checkpoint.save(straight, step=3)

    kept(3)
    resumed = made(seed=2)
    train(resumed, 1)
    assert load(resumed) == 3
    assert all_of(resumed) == all_of(straight)


def test_saves_of_both_kinds_are_steps_of_one_training(fake: FakeKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    state = made()
    train(state, 1)
    checkpoint.save(state, step=1)
    save("async", state, step=2)
    checkpoint.save(state, step=3)
    assert sorted(fake.parts) == [1, 2, 3]
    with pytest.raises(UserError, match="step 2 comes after step 3"):
        save("async", state, step=2)
    with pytest.raises(CheckpointException, match="step 2 comes after step 3"):
        save("sync", state, step=2)


def test_what_is_in_memory_is_not_written_to_storage_until_it_is_due(fake: FakeKeeper, tmp_path: Path) -> None:
    folder = str(tmp_path / "ckpt")
    saving = dcp.async_save({"weight": torch.ones(3)}, storage_writer=checkpoint.MemoryWriter(step=1, folder=folder))
    assert 1 in fake.parts, "when it returns it is there"
    assert saving.result(LIMIT_S).state_dict_metadata == {}
    assert not (tmp_path / "ckpt").exists()
    saving = dcp.async_save(
        {"weight": torch.ones(3)}, storage_writer=checkpoint.MemoryWriter(step=2, folder=folder, every=1)
    )
    assert "weight" in saving.result(LIMIT_S).state_dict_metadata
    assert sorted(fake.parts) == [1, 2] and steps_in(tmp_path / "ckpt") == ["step-2"]


def test_the_state_may_change_while_storage_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, write_data = threading.Event(), RobustWriter.write_data

    def waits(self: RobustWriter, *args: Any) -> Any:
        assert go.wait(LIMIT_S)
        return write_data(self, *args)

    monkeypatch.setattr(RobustWriter, "write_data", waits)
    state = {"weight": torch.ones(1000), "list": [1]}
    saving = dcp.async_save(state, storage_writer=checkpoint.MemoryWriter(step=1, folder=str(tmp_path)))
    state["weight"].fill_(-1)
    state["list"].append(2)  # type: ignore[attr-defined]
    assert not saving.done()
    go.set()
    saving.result(LIMIT_S)
    into = {"weight": torch.zeros(1000), "list": []}
    assert load(into, str(tmp_path)) == 1
    assert into["weight"].eq(1).all() and into["list"] == [1]  # type: ignore[attr-defined]


def test_what_fails_in_storage_comes_out_of_the_future_and_the_next_save_is_well(tmp_path: Path) -> None:
    state = {"weight": torch.ones(3)}
    bad = dcp.async_save(state, storage_writer=checkpoint.MemoryWriter(step=1, folder="/proc/nothing/can/be"))
    with pytest.raises((CheckpointException, CheckpointError), match="/proc/nothing"):
        bad.result(LIMIT_S)
    with pytest.raises(CheckpointException, match="/proc/nothing"):
        save("sync", state, step=1, folder="/proc/nothing/can/be")
    save("async", state, step=2, folder=str(tmp_path))
    assert steps_in(tmp_path) == ["step-2"]


def test_what_is_refused_is_refused_at_once(tmp_path: Path) -> None:
    words = {"step": 1, "folder": str(tmp_path)}
    with pytest.raises(checkpoint.StateRefused, match="hook"):
        save("async", {"hook": object()}, **words)
    with pytest.raises(CheckpointException, match="hook"):
        save("sync", {"hook": object()}, **words)
    with pytest.raises(UserError, match="nowhere to save to"):
        checkpoint.MemoryWriter(step=1)
    with pytest.raises(UserError, match="give an integer"):
        checkpoint.MemoryWriter(step=1.0)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"checkpoint_id='here'.*leave it out"):
        dcp.save({}, checkpoint_id="here", storage_writer=checkpoint.MemoryWriter(**words))
    assert steps_in(tmp_path) == []


def test_an_integer_that_torch_made_text_of_is_refused_or_known_to_be_one(tmp_path: Path) -> None:
    plain = {"epochs": {0: "a"}}
    with pytest.raises(CheckpointException, match=r"the key epochs\.0"):
        save("sync", plain, step=1, folder=str(tmp_path))
    save("async", plain, step=1, folder=str(tmp_path))
    into: dict[str, Any] = {"epochs": {}}
    assert checkpoint.load(into, folder=str(tmp_path)) == 1 and into == plain

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())  # without state
    save("sync", {"optimizer": optimizer}, step=2, folder=str(tmp_path))
    assert checkpoint.load({"optimizer": optimizer}, folder=str(tmp_path)) == 2


@pytest.mark.parametrize("first", SAVES)
@pytest.mark.parametrize("then", SAVES)
@pytest.mark.parametrize("memory", ["fake", ""])
def test_a_writer_is_for_one_save(
    request: pytest.FixtureRequest, tmp_path: Path, first: str, then: str, memory: str
) -> None:
    """Else the second would save nothing, and not say so."""
    if memory:
        request.getfixturevalue(memory)
    writer = checkpoint.MemoryWriter(step=1, folder=str(tmp_path))

    def save_with_it(how: str) -> None:
        if how == "sync":
            dcp.save({"weight": torch.ones(3)}, storage_writer=writer)
        else:
            dcp.async_save({"weight": torch.ones(3)}, storage_writer=writer).result(LIMIT_S)

    save_with_it(first)
    with pytest.raises((UserError, CheckpointException), match="was used for step 1: make one for each save"):
        save_with_it(then)


def test_a_planner_that_does_not_tell_is_refused_where_nothing_was_copied(tmp_path: Path) -> None:
    class Own(dcp.DefaultSavePlanner):
        def finish_plan(self, plan: Any) -> Any:
            found = super().finish_plan(plan)
            del self.state_dict
            return found

    with pytest.raises(CheckpointException, match="Own does not tell MemoryWriter of the state"):
        writer = checkpoint.MemoryWriter(step=1, folder=str(tmp_path))
        dcp.save({"weight": torch.ones(3)}, storage_writer=writer, planner=Own())


def test_where_there_is_nothing_to_load_the_reader_says_so(tmp_path: Path) -> None:
    reader = checkpoint.MemoryReader(str(tmp_path))
    assert reader.step is None
    with pytest.raises(CheckpointException, match="there is nothing to load"):
        dcp.load({"weight": torch.ones(3)}, storage_reader=reader)


def test_a_reader_is_for_one_load(tmp_path: Path) -> None:
    save("async", {"weight": torch.ones(3)}, step=4, folder=str(tmp_path))
    reader = checkpoint.MemoryReader(str(tmp_path))
    with pytest.raises(UserError, match="leave it out"):
        dcp.load({"weight": torch.zeros(3)}, checkpoint_id="there", storage_reader=reader)
    dcp.load({"weight": torch.zeros(3)}, storage_reader=reader)
    with pytest.raises(CheckpointException, match="step 4 was loaded or closed"):
        dcp.load({"weight": torch.zeros(3)}, storage_reader=reader)
    with pytest.raises(UserError, match="step 3 comes after step 4"):
        save("async", {"weight": torch.ones(3)}, step=3, folder=str(tmp_path))


def test_a_part_of_memory_that_is_damaged_is_refused_as_the_reader_is_made(
    fake: FakeKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    save("async", {"weight": torch.ones(3000)}, step=1)
    fake.parts[1].view[fake.parts[1].used_bytes - 8] ^= 1
    monkeypatch.setenv("ROBUST_RESUME", "rrck+memory://0/1")
    with pytest.raises(CheckpointError, match="step 1 cannot be loaded from memory"):
        checkpoint.MemoryReader()


def test_every_kind_of_tensor_and_value_comes_back(kept: Callable[[int], None]) -> None:
    tied = torch.arange(6.0)
    state: dict[str, Any] = {
        "tied": tied,
        "again": {"it": tied},
        "turned": torch.arange(6.0).reshape(2, 3).t(),
        "number": torch.tensor(2.5),
        "none": torch.empty(0, 4),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "list": [1, torch.ones(2), ("a", None)],
        "plain": {"a": 1, "b": {"c": b"bytes", "d": [1.5, "x"]}},
    }
    save("async", state, step=1)
    kept(1)
    into = {
        **{name: torch.zeros_like(state[name]) for name in ("tied", "turned", "number", "none", "half")},
        "again": {"it": torch.zeros(6)},
        "list": [0, torch.zeros(2), ()],
        "plain": {"a": 0, "b": {"c": b"", "d": []}},
    }
    assert load(into) == 1
    assert all_of(into) == all_of(state)


def test_a_part_of_a_state_can_be_loaded_and_a_key_that_is_not_there_is_an_error(kept: Callable[[int], None]) -> None:
    save("async", {"model": {"a": torch.ones(3), "b": torch.ones(3)}, "epoch": 3}, step=1)
    kept(1)
    into = {"model": {"b": torch.zeros(3)}}
    assert load(into) == 1 and into["model"]["b"].eq(1).all()
    with pytest.raises(CheckpointException, match=r"Missing key in checkpoint state_dict: model\.c"):
        load({"model": {"c": torch.zeros(3)}})
    with pytest.raises(CheckpointException, match="Size mismatch"):
        load({"model": {"b": torch.zeros(4)}})


def test_in_a_replay_nothing_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBUST_REPLAY", "1")
    for how in SAVES:
        save(how, {"weight": torch.ones(3)}, step=1, folder=str(tmp_path / "ckpt"))
    assert not (tmp_path / "ckpt").exists()


@pytest.mark.skipif(
    "async_stager" not in inspect.signature(dcp.async_save).parameters, reason="torch has no async_stager= yet"
)
@pytest.mark.parametrize("has_memory", [True, False])
def test_a_stager_keeps_each_step_in_memory_and_the_writer_has_storage(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_memory: bool
) -> None:
    fake = request.getfixturevalue("fake") if has_memory else FakeKeeper()
    state = {"weight": torch.ones(1000), "epoch": 3}
    saving = dcp.async_save(
        state,
        storage_writer=dcp.FileSystemWriter(tmp_path / "theirs"),
        async_stager=checkpoint.MemoryStager(step=5),
    )
    state["weight"].fill_(-1)
    saving.result(LIMIT_S)
    into = {"weight": torch.zeros(1000), "epoch": 0}
    dcp.load(into, storage_reader=dcp.FileSystemReader(tmp_path / "theirs"))
    assert into["weight"].eq(1).all() and into["epoch"] == 3  # type: ignore[attr-defined]
    assert list(fake.parts) == ([5] if has_memory else [])
    if has_memory:
        a_new_process()
        monkeypatch.setenv("ROBUST_RESUME", "rrck+memory://0/5")
        into = {"weight": torch.zeros(1000), "epoch": 0}
        assert load(into) == 5 and into["weight"].eq(1).all()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("shape", "offsets", "sizes"),
    [
        ((4, 5, 6), (1, 2, 3), (2, 2, 2)),
        ((4, 5, 6), (0, 0, 0), (4, 5, 6)),
        ((4, 5), (2, 0), (2, 5)),
        ((7,), (3,), (1,)),
        ((4, 5), (4, 0), (0, 5)),
        ((), (), ()),
        ((0, 3), (0, 0), (0, 3)),
    ],
)
def test_what_others_have_covers_a_tensor_together_with_what_this_rank_has(
    shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    covered = torch.zeros(shape)
    for begin, lengths in [(offsets, sizes), *_around(shape, offsets, sizes)]:
        covered[tuple(slice(at, at + length) for at, length in zip(begin, lengths, strict=True))] += 1
    assert covered.eq(1).all()
