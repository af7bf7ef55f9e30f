"""What is in a file of torch.save, which may come from anybody."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.foreign.torch_file import NotLookedInto, leaves, torch_tensors


def test_tensors_with_the_keys_that_lead_to_them(tmp_path: Path) -> None:
    weight = torch.zeros(3, 4)
    state = {"model": {"weight": weight}, "list": [torch.zeros(2, dtype=torch.int8), 5], 7: torch.zeros(())}
    torch.save(state, tmp_path / "x.pt")
    found = [(each.name, each.dtype, each.sizes, each.size_bytes) for each in torch_tensors(str(tmp_path / "x.pt"))]
    assert found == [("model.weight", "float32", (3, 4), 48), ("list.0", "int8", (2,), 2), ("7", "float32", (), 4)]


def test_lists_that_share_lists_are_walked_once(tmp_path: Path) -> None:
    state: list[object] = [1]
    for _ in range(30):
        state = [state] * 10
    torch.save(state, tmp_path / "x.pt")
    assert (tmp_path / "x.pt").stat().st_size < 10_000
    assert torch_tensors(str(tmp_path / "x.pt")) == ()


def test_a_list_in_itself() -> None:
    state: list[object] = [1]
    state.append(state)
    assert list(leaves(state)) == [("0", 1)]


def test_too_many_things_and_too_long_names() -> None:
    with pytest.raises(CheckpointError, match="more than 1000000 things"):
        list(leaves([0] * 1_000_001))
    with pytest.raises(CheckpointError, match="more than 4096 characters"):
        list(leaves({"a" * 5000: 1}))


def test_a_key_that_would_be_longer_than_memory_as_text() -> None:
    assert list(leaves({(1, 2): 5, 1 << 100_000: 6})) == [("<tuple>", 5), ("<int>", 6)]


def test_a_pickle_that_inflates_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("x/data.pkl", "w") as record:
            for _ in range(257):
                record.write(bytes(1 << 20))
        archive.writestr("x/version", "3\n")
    assert path.stat().st_size < 4 << 20
    with pytest.raises(CheckpointError, match=r"data.pkl' has 269484032 bytes .* 268435456 is the limit"):
        torch_tensors(str(path))


@pytest.mark.parametrize("keep", [0, 10, 200])
def test_a_file_that_is_cut_off_is_damaged(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "x.pt"
    torch.save({"a": torch.zeros(1000)}, path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError) as caught:
        torch_tensors(str(path))
    assert not isinstance(caught.value, NotLookedInto)


def test_a_zip_archive_that_torch_cannot_read_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", b"no pickle")
    with pytest.raises(CheckpointError):
        torch_tensors(str(path))


def test_an_old_format_is_said_to_be_one(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(3)}, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(NotLookedInto, match="an old or foreign format"):
        torch_tensors(str(tmp_path / "x.pt"))


def test_more_than_weights_is_not_looked_into(tmp_path: Path) -> None:
    torch.save({"a": pickle.Pickler}, tmp_path / "x.pt")
    with pytest.raises(NotLookedInto, match="weights_only"):
        torch_tensors(str(tmp_path / "x.pt"))
