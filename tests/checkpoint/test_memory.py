"""A part in a buffer: what is copied, what is made once, what is found damaged. Without a keeper; `test_ranks` has a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fake_keeper import FakeKeeper
from saved_states import a_new_process, all_of, made, train

from robust_run import checkpoint
from robust_run.checkpoint import memory, session
from robust_run.checkpoint.gathering import gather
from robust_run.checkpoint.rules.settings import Generation
from robust_run.ckpt_io.errors import CheckpointError, MemoryUnavailable
from robust_run.ckpt_io.memory.client import MemoryClient
from robust_run.ckpt_io.rules.boxes import BYTES_OF
from robust_run.errors import UserError


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeKeeper:
    a_new_process()
    found = FakeKeeper()
    monkeypatch.setattr(MemoryClient, "connect", lambda *_, **__: found)
    monkeypatch.setenv("ROBUST_CKPT_MEMORY", "/somewhere")
    return found


def tensors_over(fake: FakeKeeper) -> list[int]:
    found = session._session
    assert found is not None and found.memory is not None
    return [id(each) for over in found.memory.places._over.values() for each in over.tensors]


def test_a_training_goes_on_from_memory(fake: FakeKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = made()
    for step in range(1, 5):
        train(straight, 1)
        checkpoint.save(straight, step=step)
    train(straight, 3)

    monkeypatch.setenv("ROBUST_RESUME", "rrck+memory://0/4")
    a_new_process()
    resumed = made(seed=2)
    assert checkpoint.load(resumed) == 4
    train(resumed, 3)
    assert all_of(resumed) == all_of(straight)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_dtype_and_shape_comes_back_bit_for_bit(fake: FakeKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes = {name: getattr(torch, name) for name in BYTES_OF if hasattr(torch, name) and name != "bool"}
    bits = torch.arange(3 * 5 * 16, dtype=torch.uint8)
    state: dict[str, Any] = {name: bits.clone().view(dtype).reshape(3, -1) for name, dtype in dtypes.items()}
    state |= {"bool": torch.tensor([True, False]), "number": torch.tensor(2.5), "empty": torch.empty(0, 4)}
    state |= {"turned": torch.arange(6.0).reshape(2, 3).t(), "conjugate": torch.tensor([1 + 2j]).conj()}
    state |= {"wide": torch.tensor([7.0]).expand(5)}
    checkpoint.save(state, step=9)
    into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    into["wide"] = torch.zeros(1).expand(5)
    monkeypatch.setenv("ROBUST_RESUME", "rrck+memory://0/9")
    assert checkpoint.load(into) == 9
    assert all_of(into) == all_of({**state, "conjugate": state["conjugate"].resolve_conj()})


def test_tensors_over_a_buffer_are_made_once_while_values_grow(fake: FakeKeeper) -> None:
    state: dict[str, Any] = {"weight": torch.zeros(1000), "losses": []}
    for step in range(3):
        checkpoint.save(state, step=step)
    before = tensors_over(fake)
    state["losses"] += [0.5] * 100
    for step in range(3, 6):
        checkpoint.save(state, step=step)
    assert tensors_over(fake) == before
    state["losses"] += [0.5] * 1000  # the index has no room in front of the tensors any more
    checkpoint.save(state, step=6)
    assert tensors_over(fake) != before and len(fake.reserved) == 1
    state["more"] = torch.zeros(1 << 20)
    checkpoint.save(state, step=7)
    assert len(fake.reserved) == 2
    values = memory.load(fake, Generation(0, 7), {"losses": state["losses"], "more": torch.ones(1 << 20)})  # type: ignore[arg-type]
    assert values.step == 7


def test_a_step_without_a_buffer_is_left_out(fake: FakeKeeper, capsys: pytest.CaptureFixture[str]) -> None:
    fake.is_skipping = True
    checkpoint.save({"weight": torch.zeros(3)}, step=1)
    assert fake.parts == {} and "keeps no checkpoints" not in capsys.readouterr().err


def test_that_memory_is_all_there_is_is_said_once(fake: FakeKeeper, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (1, 2):
        checkpoint.save({"weight": torch.zeros(3)}, step=step)
    assert capsys.readouterr().err.count("kept in memory alone") == 1


@pytest.mark.parametrize(("is_planned", "stored"), [(True, ["step-4"]), (False, ["step-2", "step-4"])])
def test_storage_that_is_due_at_a_step_that_no_node_keeps_gets_one_that_follows(
    fake: FakeKeeper, tmp_path: Path, is_planned: bool, stored: list[str]
) -> None:
    """A step that was skipped for another reason is written by the ranks: nobody knows when the next one is kept."""
    fake.is_planned = is_planned
    for step in range(1, 5):
        fake.is_skipping = step in (2, 3)
        checkpoint.save({"weight": torch.full((3,), float(step))}, step=step, folder=str(tmp_path / "ckpt"), every=2)
    assert sorted(path.name for path in (tmp_path / "ckpt").iterdir()) == stored


def test_a_warning_that_the_job_will_be_ended_brings_one_step_to_storage(
    fake: FakeKeeper, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROBUST_WARNING_FILE", str(tmp_path / "warning.json"))
    for step in range(1, 7):
        if step == 4:
            (tmp_path / "warning.json").write_text("{}")
        checkpoint.save({"weight": torch.full((3,), float(step))}, step=step, folder=str(tmp_path / "ckpt"))
    assert [path.name for path in (tmp_path / "ckpt").iterdir()] == ["step-4"]
    assert "alone" not in capsys.readouterr().err


@pytest.mark.parametrize("byte", [0, 30, 4100, -8])
def test_a_part_that_was_damaged_is_refused_and_nothing_is_touched(
    fake: FakeKeeper, monkeypatch: pytest.MonkeyPatch, byte: int
) -> None:
    checkpoint.save({"weight": torch.ones(3000)}, step=1)
    part = fake.parts[1]
    part.view[byte % part.used_bytes] ^= 1
    monkeypatch.setenv("ROBUST_RESUME", "rrck+memory://0/1")
    into = {"weight": torch.zeros(3000)}
    with pytest.raises(CheckpointError, match="step 1 cannot be loaded from memory"):
        checkpoint.load(into)
    assert not into["weight"].any()


@pytest.mark.parametrize("error", [MemoryUnavailable("it is gone"), OSError(28, "no space"), RuntimeError("whatever")])
def test_memory_that_fails_is_said_once_and_ends_nothing(
    fake: FakeKeeper, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(fake, "begin", fail)
    for step in range(3):
        checkpoint.save({"weight": torch.zeros(3)}, step=step)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert (
        f"rank 0 keeps no checkpoints in memory from step 0 on, they go nowhere: give robust-run --ckpt-dir: {error}"
        in said
    )


def test_an_error_of_use_is_raised_with_memory_too(fake: FakeKeeper) -> None:
    with pytest.raises(checkpoint.StateRefused):
        checkpoint.save({"hook": object()}, step=1)


def test_what_is_gathered_shares_the_memory_of_the_program() -> None:
    weight = torch.zeros(3, requires_grad=True)
    assert gather({"weight": weight}).tensors[0].data_ptr() == weight.data_ptr()


def test_steps_count_up(fake: FakeKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"weight": torch.zeros(3)}
    checkpoint.save(state, step=7)
    checkpoint.save(state, step=7)
    with pytest.raises(UserError, match="step 3 comes after step 7"):
        checkpoint.save(state, step=3)
    a_new_process()
    monkeypatch.setenv("ROBUST_RESUME", "rrck+memory://0/7")
    assert checkpoint.load(state) == 7
    with pytest.raises(UserError, match="step 1 comes after step 7"):
        checkpoint.save(state, step=1)


def test_memory_and_the_resume_point_belong_to_one_folder_of_several(
    fake: FakeKeeper, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, mean = str(tmp_path / "raw"), str(tmp_path / "mean")
    for step in (1, 2):
        checkpoint.save({"weight": torch.full((3,), float(step))}, step=step, folder=raw)
        checkpoint.save({"weight": torch.full((3,), step / 10)}, step=step, folder=mean)
    assert capsys.readouterr().err.count("goes to storage") == 1
    assert sorted(path.name for path in (tmp_path / "mean").iterdir()) == ["step-1", "step-2"], "at every call"
    assert not (tmp_path / "raw").exists(), "memory has it, so storage is seldom"

    monkeypatch.setenv("ROBUST_RESUME", "rrck+memory://0/2")
    a_new_process()
    for folder, wanted in ((mean, 0.2), (raw, 2.0)):
        into = {"weight": torch.zeros(3)}
        assert checkpoint.load(into, folder=folder) == 2
        assert into["weight"].tolist() == torch.full((3,), wanted).tolist()


def test_what_the_launcher_names_in_storage_is_of_its_own_folder_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("raw", "mean"):
        a_new_process()
        checkpoint.save({"weight": torch.tensor([float(len(name))])}, step=5, folder=str(tmp_path / name))
    monkeypatch.setenv("ROBUST_RESUME", str(tmp_path / "raw" / "step-5"))
    a_new_process()
    into = {"weight": torch.zeros(1)}
    assert checkpoint.load(into, folder=str(tmp_path / "mean")) == 5 and into["weight"].item() == 4.0
    assert checkpoint.load(into) == 5 and into["weight"].item() == 3.0


def test_storages_clock_goes_on_over_restarts(
    fake: FakeKeeper, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def one_save(step: int) -> list[str]:
        a_new_process()
        checkpoint.save({"weight": torch.zeros(3)}, step=step, folder=str(tmp_path))
        return sorted(path.name for path in tmp_path.iterdir())

    assert one_save(1) == [], "ten minutes begin"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert one_save(2) == ["step-2"], "a job that failed and has nothing in storage"
    assert one_save(3) == ["step-2"], "that is new"


def test_where_memory_is_refused_storage_is_as_often_as_without(fake: FakeKeeper, tmp_path: Path) -> None:
    def refuses(step: int, size_bytes: int) -> Any:
        raise MemoryUnavailable("too little memory")

    fake.begin = refuses  # type: ignore[method-assign]
    for step in (1, 2):
        checkpoint.save({"weight": torch.zeros(3)}, step=step, folder=str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-2"]


def test_what_a_programs_own_handler_raises_is_no_fault_of_the_tier(fake: FakeKeeper) -> None:
    class Preempted(Exception):  # noqa: N818
        pass

    def interrupted(*_: object) -> Any:
        raise Preempted

    fake.begin = interrupted  # type: ignore[method-assign]
    with pytest.raises(Preempted):
        checkpoint.save({"weight": torch.zeros(3)}, step=1)


def test_other_folders_are_loaded_no_newer_than_what_the_launcher_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else they would be ahead of the rest of the training, and their next save would be of an earlier step."""
    for step in (1, 2, 3):
        checkpoint.save({"weight": torch.tensor([float(step)])}, step=step, folder=str(tmp_path / "mean"))
    checkpoint.save({"weight": torch.zeros(1)}, step=2, folder=str(tmp_path / "raw"))
    monkeypatch.setenv("ROBUST_RESUME", str(tmp_path / "raw" / "step-2"))
    monkeypatch.setenv("ROBUST_RESUME_STEP", "2")
    a_new_process()
    into = {"weight": torch.zeros(1)}
    assert checkpoint.load(into, folder=str(tmp_path / "mean")) == 2 and into["weight"].item() == 2.0
    checkpoint.save(into, step=3, folder=str(tmp_path / "mean"))
