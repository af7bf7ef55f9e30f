"""Checkpoints through fsspec and Python's file objects."""

from __future__ import annotations

import io
import os
from pathlib import Path

import fsspec
import pytest
import torch
from made_checkpoints import UNIT_BYTES, make_checkpoint

from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.rules.types import Chunk, Tensor
from robust_run.ckpt_io.views.filesystem import RrckFileSystem
from robust_run.errors import UserError


@pytest.fixture(autouse=True)
def registered() -> None:
    """As the entry point does in an installed package."""
    fsspec.register_implementation("rrck", RrckFileSystem, clobber=True)
    RrckFileSystem.clear_instance_cache()


def torch_bytes(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_what_torch_saved_is_loaded_through_fsspec(tmp_path: Path) -> None:
    state = {"weight": torch.randn(700_000), "step": 3}
    make_checkpoint([tmp_path / "a" / "one", tmp_path / "b" / "one"], {"model.pt": torch_bytes(state)})
    with fsspec.open(f"rrck://{tmp_path}/a/one/model.pt") as file:
        loaded = torch.load(file)
    assert torch.equal(loaded["weight"], state["weight"])
    assert loaded["step"] == 3


def test_a_checkpoint_is_listed_with_its_files_and_its_safetensors_view(tmp_path: Path) -> None:
    tensor = Tensor(
        name="w",
        dtype="float32",
        sizes=(4,),
        chunks=(Chunk(offsets=(0,), sizes=(4,), file=0, offset_bytes=0),),
    )
    make_checkpoint([tmp_path / "step-4"], {"rank0": torch.arange(4.0).numpy().tobytes()}, [tensor])
    files = fsspec.filesystem("rrck")
    assert files.ls(str(tmp_path), detail=False) == [f"{tmp_path}/step-4"]
    names = files.ls(f"rrck://{tmp_path}/step-4", detail=False)
    assert sorted(names) == [f"{tmp_path}/step-4/rank0", f"{tmp_path}/step-4/step-4.safetensors"]
    from safetensors.torch import load

    data = files.cat_file(f"{tmp_path}/step-4/step-4.safetensors")
    assert torch.equal(load(data)["w"], torch.arange(4.0))
    assert files.info(f"{tmp_path}/step-4/step-4.safetensors")["size"] == len(data)
    assert files.cat_file(f"{tmp_path}/step-4/rank0", 4, 8) == data[-12:-8]


def test_a_checkpoint_that_is_one_file_is_that_file(tmp_path: Path) -> None:
    make_checkpoint([tmp_path / "model.bin"], {"model.bin": b"hello"})
    files = fsspec.filesystem("rrck")
    assert files.isfile(f"{tmp_path}/model.bin")
    assert files.cat(f"{tmp_path}/model.bin") == b"hello"


def test_a_checkpoint_saved_anew_is_seen(tmp_path: Path) -> None:
    files = RrckFileSystem(refresh_s=0.0, skip_instance_cache=True)
    make_checkpoint([tmp_path / "x"], {"x": b"old"})
    assert files.cat(f"{tmp_path}/x") == b"old"
    make_checkpoint([tmp_path / "x"], {"x": b"newer"})
    assert files.cat(f"{tmp_path}/x") == b"newer"


def test_a_flipped_bit_is_an_error_and_no_byte_of_it_is_handed_on(tmp_path: Path) -> None:
    data = os.urandom(3 * UNIT_BYTES)
    make_checkpoint([tmp_path / "x"], {"x": data})
    part = next((tmp_path / "x").rglob("*.part"))
    with part.open("r+b") as file:
        file.seek(UNIT_BYTES + 77)
        file.write(bytes([data[UNIT_BYTES + 77] ^ 4]))
    files = RrckFileSystem(skip_instance_cache=True)
    with files.open(f"{tmp_path}/x") as file:
        assert file.read(1000) == data[:1000]
        file.seek(UNIT_BYTES + 500_000)
        with pytest.raises(CheckpointError, match="unit 1"):
            file.read(10)


def test_what_is_not_there_and_what_cannot_be(tmp_path: Path) -> None:
    make_checkpoint([tmp_path / "x"], {"rank0": b"", "rank1": b"1"})
    files = RrckFileSystem(skip_instance_cache=True)
    assert files.cat(f"{tmp_path}/x/rank0") == b""
    with pytest.raises(FileNotFoundError):
        files.open(f"{tmp_path}/x/rank2")
    with pytest.raises(FileNotFoundError):
        files.ls(f"{tmp_path}/y")
    with pytest.raises(UserError, match="read-only"):
        files.open(f"{tmp_path}/x/rank1", "wb")
