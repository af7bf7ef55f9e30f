"""One process saves and loads without asking others, in the ways of all releases of torch that are supported."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from robust_run.ckpt_io.dcp.alone import load_alone, save_alone


def state(fill: float) -> dict[str, Any]:
    return {"model": {"w": torch.full((3, 2), fill), "list": [torch.full((2,), fill)]}, "step": int(fill)}


@pytest.fixture(params=["this torch", "torch 2.6"])
def release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of 2.6 says by itself whether there are others, and its older functions can be told."""
    if request.param == "this torch":
        return
    save, load = dcp.save, dcp.load

    def save_as_2_6(state_dict: Any, *, storage_writer: Any = None, planner: Any = None) -> Any:
        return save(state_dict, storage_writer=storage_writer, planner=planner)

    def load_as_2_6(state_dict: Any, *, storage_reader: Any = None, planner: Any = None) -> Any:
        return load(state_dict, storage_reader=storage_reader, planner=planner)

    monkeypatch.setattr(dcp, "save", save_as_2_6)
    monkeypatch.setattr(dcp, "load", load_as_2_6)


@pytest.mark.usefixtures("release")
def test_it_comes_back_in_place_and_nothing_is_said(tmp_path: Path) -> None:
    into = state(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        warnings.simplefilter("error", FutureWarning)
        save_alone(state(7), dcp.FileSystemWriter(tmp_path), DefaultSavePlanner())
        load_alone(into, dcp.FileSystemReader(tmp_path))
    assert torch.equal(into["model"]["w"], torch.full((3, 2), 7.0))
    assert torch.equal(into["model"]["list"][0], torch.full((2,), 7.0))
    assert into["step"] == 7
