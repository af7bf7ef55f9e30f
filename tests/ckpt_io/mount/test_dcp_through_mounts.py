"""torch.distributed.checkpoint and mounts: what one saves the other shows, and torch's own reader and writer work on a mount."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from robust_run.ckpt_io import dcp as ours

from .conftest import Mount

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore::FutureWarning")


def state() -> dict:
    return {
        "model": {"weight": torch.randn(400, 300), "bias": torch.randn(7).to(torch.bfloat16)},
        "steps": [torch.arange(9)],
        "epoch": 3,
    }


def empty(like: dict) -> dict:
    return {
        "model": {key: torch.zeros_like(value) for key, value in like["model"].items()},
        "steps": [torch.zeros_like(value) for value in like["steps"]],
        "epoch": None,
    }


def assert_same(one: dict, other: dict) -> None:
    for key, value in one["model"].items():
        assert torch.equal(other["model"][key], value)
    assert torch.equal(other["steps"][0], one["steps"][0])
    assert other["epoch"] == one["epoch"]


@pytest.mark.parametrize("direct_io", [False, True], ids=["page cache", "direct I/O"])
def test_what_dcp_saved_is_a_safetensors_file(mounted: Mount, tmp_path: Path, direct_io: bool) -> None:
    saved = state()
    ours.save(saved, tmp_path / "run" / "step-3")
    point = Path(mounted(tmp_path / "run", direct_io=direct_io).point)
    loaded = load_file(point / "step-3" / "step-3.safetensors")
    assert loaded.keys() == {"model.weight", "model.bias", "steps.0"}
    assert torch.equal(loaded["model.weight"], saved["model"]["weight"])
    assert torch.equal(loaded["model.bias"], saved["model"]["bias"])


def test_torchs_own_writer_and_reader_work_on_a_mount(mounted: Mount, tmp_path: Path) -> None:
    saved = state()
    (tmp_path / "a").mkdir()
    options = {"also": (str(tmp_path / "b"),), "writable": True, "unit_bytes": 1 << 20}
    step = Path(mounted(tmp_path / "a", **options).point) / "step-3"
    dcp.save(saved, storage_writer=dcp.FileSystemWriter(step), no_dist=True)
    assert sorted(path.name for path in step.iterdir()) == [".metadata", "__0_0.distcp"]
    loaded = empty(saved)
    dcp.load(loaded, storage_reader=dcp.FileSystemReader(step), no_dist=True)
    assert_same(saved, loaded)
    assert list((tmp_path / "a").rglob("*.part"))
