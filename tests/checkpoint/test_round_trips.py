"""States saved and loaded by one process, by way of storage."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from saved_states import a_new_process, all_of, made, train
from torch import nn

from robust_run import checkpoint
from robust_run.checkpoint import loading, storage
from robust_run.ckpt_io import catalog, dcp
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.rules.boxes import BYTES_OF
from robust_run.errors import UserError


@pytest.fixture(autouse=True)
def new_process() -> None:
    a_new_process()


def back(state: dict[str, Any], into: dict[str, Any], folder: Path, step: int = 1) -> dict[str, Any]:
    """Save one, load into the other."""
    checkpoint.save(state, step=step, folder=str(folder))
    a_new_process()
    assert checkpoint.load(into, folder=str(folder)) == step
    return into


def test_a_training_that_was_interrupted_ends_like_one_that_was_not(tmp_path: Path) -> None:
    folder = str(tmp_path / "ckpt")
    straight = made()
    assert checkpoint.load(straight, folder=folder) is None
    train(straight, 4)
    checkpoint.save(straight, step=4, folder=folder)
    train(straight, 3)

    a_new_process()
    resumed = made(seed=2)
    assert checkpoint.load(resumed, folder=folder) == 4
    train(resumed, 3)

    assert all_of(resumed) == all_of(straight)


def test_generators_of_numpy_come_back_too(tmp_path: Path) -> None:
    checkpoint.save({}, step=0, folder=str(tmp_path))
    drawn = random.random(), numpy.random.rand(), torch.rand(3).tolist()
    assert checkpoint.load({}, folder=str(tmp_path)) == 0
    assert (random.random(), numpy.random.rand(), torch.rand(3).tolist()) == drawn


def test_what_resume_names_goes_before_what_is_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBUST_CKPT_DIR", str(tmp_path))
    monkeypatch.setenv("ROBUST_CKPT_EVERY", "2")
    for step in range(1, 7):
        checkpoint.save({"step": step}, step=step)
    assert sorted(os.listdir(tmp_path)) == ["step-2", "step-4", "step-6"]
    state = {"step": 0}
    assert (checkpoint.load(state), state) == (6, {"step": 6})
    monkeypatch.setenv("ROBUST_RESUME", str(tmp_path / "step-2"))
    assert (checkpoint.load(state), state) == (2, {"step": 2})


def test_a_damaged_one_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (1, 2):
        checkpoint.save({"weight": torch.full((4096,), step)}, step=step, folder=str(tmp_path))
    part = max((tmp_path / "step-2").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    data = bytearray(part.read_bytes())
    data[100:200] = bytes(100)
    part.write_bytes(data)
    state = {"weight": torch.zeros(4096)}
    assert checkpoint.load(state, folder=str(tmp_path)) == 1
    assert state["weight"].unique().tolist() == [1.0]
    assert "step-2 is passed over" in capsys.readouterr().err


def spoil(checkpoint_at: Path, how: str) -> None:
    """Do to a checkpoint what power losses, full disks and people do."""
    manifest, parts = checkpoint_at / "MANIFEST", [*checkpoint_at.glob("parts-*/*")]
    if how == "empty manifest":
        manifest.write_bytes(b"")
    elif how == "manifest of zeros":
        manifest.write_bytes(bytes(manifest.stat().st_size))
    elif how == "bit of the manifest":
        manifest.write_bytes(manifest.read_bytes()[:-1] + b"x")
    elif how == "cut part":
        os.truncate(parts[0], 10)
    elif how == "no parts":
        shutil.rmtree(parts[0].parent)
    else:
        parts[0].write_bytes(bytes(parts[0].stat().st_size))


SPOILED = ["empty manifest", "manifest of zeros", "bit of the manifest", "cut part", "no parts", "zeros in a part"]


@pytest.mark.parametrize("how", SPOILED)
def test_what_is_passed_over_is_said_and_where_none_is_good_nobody_begins_anew(
    tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that was told that there is nothing would save over what may still be mended."""
    for step in (1, 2):
        checkpoint.save({"weight": torch.full((4096,), step)}, step=step, folder=str(tmp_path))
    state = {"weight": torch.zeros(4096)}
    spoil(tmp_path / "step-2", how)
    assert checkpoint.load(state, folder=str(tmp_path)) == 1
    assert "step-2 is passed over: " in capsys.readouterr().err
    a_new_process()
    spoil(tmp_path / "step-1", how)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(state, folder=str(tmp_path))
    assert str(caught.value).startswith(f"none of the checkpoints in {tmp_path} can be loaded (step-2: ")
    assert "; step-1: " in str(caught.value)
    assert str(caught.value).endswith("mend one (robust ckpt repair), or move them away to begin anew")
    with pytest.raises(CheckpointError, match="none of the checkpoints"):
        checkpoint.MemoryReader(folder=str(tmp_path))


def test_where_another_job_removes_what_was_seen_the_one_that_it_saved_is_loaded(tmp_path: Path) -> None:
    checkpoint.save({"step": 1}, step=1, folder=str(tmp_path))
    asked: list[str] = []

    def from_storage(url: str) -> Any:
        asked.append(Path(url).name)
        if len(asked) == 1:  # keep=1, say
            checkpoint.save({"step": 2}, step=2, folder=str(tmp_path))
            shutil.rmtree(tmp_path / "step-1")
        return storage.load(url, state)

    state: dict[str, Any] = {"step": 0}
    found = loading.first_good(str(tmp_path), lambda *_: None, from_storage)
    assert found is not None
    assert (found.step, state, asked) == (2, {"step": 2}, ["step-1", "step-2"])


def test_what_is_no_checkpoint_is_no_reason_not_to_begin(tmp_path: Path) -> None:
    """A save that was under way when its program died, and folders of others."""
    checkpoint.save({"weight": torch.zeros(8)}, step=3, folder=str(tmp_path))
    (tmp_path / "step-3" / "MANIFEST").unlink()
    for name, said in (("package", b"include *.py\n"), ("empty", b"")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "MANIFEST").write_bytes(said)
    assert checkpoint.load({"weight": torch.zeros(8)}, folder=str(tmp_path)) is None


def test_one_that_was_saved_otherwise_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dcp.save({"weight": torch.zeros(3)}, tmp_path / "step-1", step=1)
    monkeypatch.setenv("ROBUST_RESUME", str(tmp_path / "step-1"))
    with pytest.raises(CheckpointError, match="was not saved by robust_run"):
        checkpoint.load({"weight": torch.zeros(3)})


def test_a_replay_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBUST_REPLAY", "1")
    checkpoint.save({}, step=1, folder=str(tmp_path / "ckpt"))
    assert not (tmp_path / "ckpt").exists()


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path: Path) -> None:
    dtypes = {name: getattr(torch, name) for name in BYTES_OF if hasattr(torch, name) and name != "bool"}
    bits = torch.arange(3 * 5 * 16, dtype=torch.uint8)
    state: dict[str, Any] = {name: bits.clone().view(dtype).reshape(3, -1) for name, dtype in dtypes.items()}
    state |= {"bool": torch.tensor([True, False]), "number": torch.tensor(2.5), "empty": torch.empty(0, 4)}
    fresh = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    assert all_of(back(state, fresh, tmp_path)) == all_of(state)


def test_tensors_that_are_not_contiguous_come_back(tmp_path: Path) -> None:
    grid = torch.arange(24.0).reshape(4, 6)
    state = {"turned": grid.t(), "stepped": grid[::2, ::3], "all": grid, "wide": torch.tensor([7.0]).expand(5)}
    whole = torch.zeros(4, 6)
    into = {
        "turned": torch.zeros(4, 6).t(),
        "stepped": torch.zeros(8, 6)[::4, ::3],
        "all": whole,
        "wide": torch.zeros(5),
    }
    assert all_of(back(state, into, tmp_path)) == all_of(state)
    assert into["all"] is whole


def test_a_tensor_that_repeats_its_elements_comes_back_into_one_that_does(tmp_path: Path) -> None:
    """As a buffer that was made by `expand`: torch refuses to write its one element five times."""

    def made(value: float) -> dict[str, Any]:
        one = torch.tensor([[value], [2 * value]])
        return {
            "wide": one.expand(2, 5),
            "again": one.expand(2, 5),
            "other": one,
            "nothing": torch.tensor([value]).expand(0, 1),
        }

    state, into = made(float("nan")), made(1.0)
    wide = into["wide"]
    assert all_of(back(state, into, tmp_path)) == all_of(state)
    assert into["wide"] is wide and wide.stride() == (1, 0)


def test_a_tensor_that_repeats_its_elements_does_not_take_others(tmp_path: Path) -> None:
    into = {"wide": torch.zeros(1).expand(5)}
    with pytest.raises(UserError, match=r"wide repeats its elements in this program \(expand\)"):
        back({"wide": torch.arange(5.0)}, into, tmp_path)


def test_names_that_are_written_alike_stay_apart(tmp_path: Path) -> None:
    state = {
        "a": {"b": torch.tensor(1), 0: torch.tensor(2), "0": torch.tensor(3)},
        "a.b": torch.tensor(4),
        "robust-run/values/0": torch.tensor(5),
    }
    into: dict[str, Any] = {
        "a": {"b": torch.tensor(0), 0: torch.tensor(0), "0": torch.tensor(0)},
        "a.b": torch.tensor(0),
        "robust-run/values/0": torch.tensor(0),
    }
    assert all_of(back(state, into, tmp_path)) == all_of(state)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.words.weight


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    state, into = {"model": Tied()}, {"model": Tied()}
    back(state, into, tmp_path)
    assert into["model"].head.weight is into["model"].words.weight
    assert torch.equal(into["model"].head.weight, state["model"].words.weight)
    (found,) = catalog.list_checkpoints(str(tmp_path))
    assert found.size_bytes is not None and found.size_bytes < 2 * 50 * 8 * 4 + 12000


def test_one_that_was_tied_is_loaded_into_two_and_two_never_into_one(tmp_path: Path) -> None:
    one = torch.arange(3.0)
    into = {"a": torch.zeros(3), "b": torch.zeros(3)}
    back({"a": one, "b": one}, into, tmp_path)
    assert torch.equal(into["a"], one) and torch.equal(into["b"], one)
    checkpoint.save({"a": one, "b": one + 1}, step=2, folder=str(tmp_path))
    with pytest.raises(UserError, match="a and b are one tensor, and were two"):
        checkpoint.load({"a": one, "b": one}, folder=str(tmp_path))


def test_plain_values_are_put_in_place(tmp_path: Path) -> None:
    inner: dict[Any, Any] = {"grown": []}
    into = {"inner": inner, "kept": "here", "pair": (0, torch.zeros(2))}
    state = {"inner": {"grown": [1, (2, b"x")], 5: "new"}, "pair": (3, torch.ones(2))}
    back(state, into, tmp_path)
    assert into["inner"] is inner
    assert inner == {"grown": [1, (2, b"x")], 5: "new"} and into["kept"] == "here"
    assert into["pair"][0] == 3 and into["pair"][1].tolist() == [1.0, 1.0]


def test_a_part_of_a_state_can_be_loaded(tmp_path: Path) -> None:
    state = made()
    train(state, 1)
    into = {"model": made(seed=3)["model"]}
    back(state, into, tmp_path)
    assert all_of(into) == all_of({"model": state["model"]})


@pytest.mark.parametrize(
    ("into", "said"),
    [
        ({"model": nn.Linear(3, 2)}, "model.weight has shape .2, 3., and was saved with .2, 2."),
        ({"model": nn.Sequential(nn.Linear(2, 2))}, "model.0.weight is not in the checkpoint"),
        ({"model": torch.zeros(2)}, "model is a Tensor, and was saved as an object's state"),
        ({"model": {"weight": 1}}, "model is a dict, and was saved as an object's state"),
        ({"epoch": nn.Linear(1, 1)}, "epoch is a Linear, and was saved as a plain value"),
        ({"more": {"ema": torch.zeros(2)}}, "more.ema is not in the checkpoint"),
    ],
)
def test_what_does_not_fit_is_named(into: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        back({"model": nn.Linear(2, 2), "epoch": 3}, into, tmp_path)


class DataLoader:
    """As torch's: it has no state."""


def test_all_that_cannot_be_kept_is_refused_in_one_error(tmp_path: Path) -> None:
    state = {
        "loader": DataLoader(),
        "hook": lambda: None,
        "meta": torch.empty(2, device="meta"),
        "sparse": torch.eye(2).to_sparse(),
        "model": nn.LazyLinear(2),
    }
    with pytest.raises(checkpoint.StateRefused) as caught:
        checkpoint.save(state, step=1, folder=str(tmp_path / "ckpt"))
    assert caught.value.keys[:4] == ("loader", "hook", "meta", "sparse")
    assert "StatefulDataLoader" in str(caught.value) and "model.weight: has no shape yet" in str(caught.value)
    assert not (tmp_path / "ckpt").exists()


def test_ranks_that_have_not_met_are_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="call init_process_group first"):
        checkpoint.save({}, step=1, folder=str(tmp_path))


def test_two_states_in_one_folder_are_told_apart_by_their_objects(tmp_path: Path) -> None:
    """The second would take the place of the first, and be loaded into it."""
    one, other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    checkpoint.save({"model": one}, step=1, folder=str(tmp_path))
    with pytest.raises(UserError, match="step 1 was saved already, and of other objects: give each state a folder"):
        checkpoint.save({"model": other}, step=1, folder=str(tmp_path))
    checkpoint.save({"model": one, "more": 1}, step=1, folder=str(tmp_path))  # the last step again, at the end
    checkpoint.save({"model": other}, step=2, folder=str(tmp_path))  # made anew in between


def test_who_forgets_to_load_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = {"model": torch.nn.Linear(3, 3)}
    checkpoint.save(state, step=60, folder=str(tmp_path))
    assert capsys.readouterr().err == ""
    a_new_process()
    for step in (1, 2):
        checkpoint.save(state, step=step, folder=str(tmp_path))
    said = capsys.readouterr().err
    assert said.count("which has step 60 already, and nothing was loaded: checkpoint.load(state)") == 1


def test_who_loads_or_goes_on_from_elsewhere_at_a_later_step_is_told_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {"model": torch.nn.Linear(3, 3)}
    checkpoint.save(state, step=60, folder=str(tmp_path))
    a_new_process()
    assert checkpoint.load(state, folder=str(tmp_path)) == 60
    checkpoint.save(state, step=61, folder=str(tmp_path))
    a_new_process()
    checkpoint.save(state, step=100, folder=str(tmp_path))
    assert capsys.readouterr().err == ""


def test_a_job_whose_script_does_not_mention_it_is_told_how_to_have_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROBUST_JOB", "job")
    monkeypatch.delenv("ROBUST_CKPT_MEMORY", raising=False)
    for step in (1, 2):
        checkpoint.save({"w": torch.zeros(2)}, step=step, folder=str(tmp_path))
    assert capsys.readouterr().err.count("checkpoints go to storage alone: with --ckpt-memory auto") == 1
    a_new_process()
    monkeypatch.setenv("ROBUST_CKPT_MEMORY", "off")
    checkpoint.save({"w": torch.zeros(2)}, step=3, folder=str(tmp_path))
    assert "storage alone" not in capsys.readouterr().err, "it was asked for"
