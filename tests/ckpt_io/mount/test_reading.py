"""A mount shows checkpoints as files, and programs that know nothing of us read them."""

from __future__ import annotations

import errno
import io
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from made_checkpoints import UNIT_BYTES, make_checkpoint
from safetensors.torch import load_file

from robust_run.ckpt_io.rules.types import Chunk, Tensor

from .conftest import Mount

BOTH_WAYS = pytest.mark.parametrize("direct_io", [False, True], ids=["page cache", "direct I/O"])


def one_tensor(name: str, tensor: torch.Tensor, halves: bool) -> tuple[dict[str, bytes], Tensor]:
    """Save a tensor as one rank does, or cut along its second axis as two ranks do."""
    parts = tensor.chunk(2, dim=1) if halves else (tensor,)
    files = {f"rank{rank}": part.contiguous().numpy().tobytes() for rank, part in enumerate(parts)}
    width = parts[0].shape[1]
    chunks = tuple(
        Chunk(offsets=(0, width * rank), sizes=tuple(part.shape), file=rank, offset_bytes=0)
        for rank, part in enumerate(parts)
    )
    return files, Tensor(name=name, dtype="float32", sizes=tuple(tensor.shape), chunks=chunks)


@BOTH_WAYS
def test_files_are_what_was_saved_byte_by_byte(mounted: Mount, tmp_path: Path, direct_io: bool) -> None:
    data = os.urandom(5 * UNIT_BYTES + 12345)
    make_checkpoint([tmp_path / "run" / "step-1", tmp_path / "b" / "step-1"], {"sub/model.bin": data, "empty": b""})
    point = Path(mounted(tmp_path / "run", direct_io=direct_io).point)
    assert os.listdir(point) == ["step-1"]
    assert sorted(os.listdir(point / "step-1")) == ["empty", "sub"]
    assert (point / "step-1" / "sub" / "model.bin").stat().st_size == len(data)
    assert (point / "step-1" / "sub" / "model.bin").read_bytes() == data
    assert (point / "step-1" / "empty").read_bytes() == b""
    with (point / "step-1" / "sub" / "model.bin").open("rb") as file:
        file.seek(3 * UNIT_BYTES - 7)
        assert file.read(20) == data[3 * UNIT_BYTES - 7 :][:20]
    with pytest.raises(FileNotFoundError):
        (point / "step-1" / "other").stat()


@BOTH_WAYS
@pytest.mark.parametrize("mapped", [False, True], ids=["read", "mmap"])
def test_torch_load(mounted: Mount, tmp_path: Path, direct_io: bool, mapped: bool) -> None:
    state = {"weight": torch.randn(600, 1000), "bias": torch.zeros(3, dtype=torch.bfloat16), "step": 5}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    make_checkpoint([tmp_path / "run" / "model.pt"], {"model.pt": buffer.getvalue()})
    point = mounted(tmp_path / "run", direct_io=direct_io).point
    loaded = torch.load(f"{point}/model.pt", mmap=mapped, weights_only=True)
    assert loaded.keys() == state.keys()
    assert torch.equal(loaded["weight"], state["weight"])
    assert loaded["step"] == 5


@BOTH_WAYS
@pytest.mark.parametrize("halves", [False, True], ids=["one rank", "two ranks"])
def test_safetensors_of_what_ranks_saved(mounted: Mount, tmp_path: Path, direct_io: bool, halves: bool) -> None:
    weight = torch.randn(300, 2000)
    files, tensor = one_tensor("layer.weight", weight, halves)
    make_checkpoint([tmp_path / "run" / "step-9"], files, [tensor])
    point = mounted(tmp_path / "run" / "step-9", direct_io=direct_io).point
    assert torch.equal(load_file(f"{point}/step-9.safetensors")["layer.weight"], weight)


def test_several_read_at_once(mounted: Mount, tmp_path: Path) -> None:
    data = os.urandom(30 * UNIT_BYTES)
    make_checkpoint([tmp_path / "run" / "x.bin"], {"x.bin": data})
    path = Path(mounted(tmp_path / "run", direct_io=True, cache_bytes=8 * UNIT_BYTES).point) / "x.bin"
    with ThreadPoolExecutor(4) as pool:
        assert all(found == data for found in pool.map(lambda _: path.read_bytes(), range(4)))


def test_a_flipped_bit_is_an_input_output_error(mounted: Mount, tmp_path: Path) -> None:
    data = os.urandom(3 * UNIT_BYTES)
    make_checkpoint([tmp_path / "run" / "x.bin"], {"x.bin": data})
    part = next((tmp_path / "run").rglob("*.part"))
    with part.open("r+b") as file:
        file.seek(2 * UNIT_BYTES)
        file.write(bytes([data[2 * UNIT_BYTES] ^ 1]))
    path = Path(mounted(tmp_path / "run", direct_io=True).point) / "x.bin"
    with path.open("rb") as file:
        assert file.read(UNIT_BYTES) == data[:UNIT_BYTES]
        with pytest.raises(OSError, match="Input/output") as caught:
            file.read(3 * UNIT_BYTES)
    assert caught.value.errno == errno.EIO


def test_nothing_can_be_written(mounted: Mount, tmp_path: Path) -> None:
    make_checkpoint([tmp_path / "run" / "x.bin"], {"x.bin": b"1"})
    point = Path(mounted(tmp_path / "run").point)
    for attempt in (
        lambda: (point / "new").write_bytes(b""),
        lambda: (point / "x.bin").write_bytes(b""),
        lambda: (point / "x.bin").unlink(),
        lambda: (point / "folder").mkdir(),
        lambda: os.rename(point / "x.bin", point / "y.bin"),
    ):
        with pytest.raises(OSError, match="Read-only file system"):
            attempt()
    assert (point / "x.bin").read_bytes() == b"1"


def test_a_checkpoint_that_comes_later_is_seen(mounted: Mount, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    point = Path(mounted(tmp_path / "run", refresh_s=0.0).point)
    assert os.listdir(point) == []
    make_checkpoint([tmp_path / "run" / "x.bin"], {"x.bin": b"old"})
    assert (point / "x.bin").read_bytes() == b"old"
    make_checkpoint([tmp_path / "run" / "x.bin"], {"x.bin": b"newer"})
    assert (point / "x.bin").read_bytes() == b"newer"
