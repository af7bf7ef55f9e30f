"""Objects of a checkpoint run no code, unless somebody says that they may."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from robust_run.ckpt_io.dcp import ObjectRefused
from robust_run.ckpt_io.dcp.tensors import vouched


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("value", [7, "text", None, [1, {"a": 2.5}], {"t": torch.arange(3)}, (1, 2)])
def test_plain_values_come_through(value: object) -> None:
    loaded = torch.load(vouched(saved(value), "x", "/c", trusted=False), weights_only=False)
    assert str(loaded) == str(value)


def test_code_does_not_run_and_the_error_names_object_checkpoint_and_way_out(tmp_path: Path) -> None:
    with pytest.raises(ObjectRefused, match=r"object 'opt\.hook' of /c.*trust_objects=True") as caught:
        vouched(saved(Bomb(tmp_path / "ran")), "opt.hook", "/c", trusted=False)
    assert not (tmp_path / "ran").exists()
    assert "\n" not in str(caught.value)


def test_trusted_code_runs(tmp_path: Path) -> None:
    torch.load(vouched(saved(Bomb(tmp_path / "ran")), "x", "/c", trusted=True), weights_only=False)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("data", [b"", b"nonsense", saved(7)[:40]])
def test_what_torch_cannot_read_is_our_error(data: bytes) -> None:
    with pytest.raises(ObjectRefused):
        vouched(data, "x", "/c", trusted=False)
