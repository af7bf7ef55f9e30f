"""Metadata of torch.distributed.checkpoint is read without torch and without trust."""

from __future__ import annotations

import enum
import io
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.foreign.dcp_folder import describe, read_dcp_folder
from robust_run.ckpt_io.foreign.unpickling import read_metadata
from robust_run.store.opening import open_store


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dcp")
    state = {"a": {"w": torch.zeros(3, 4), "list": [torch.zeros(2), 5]}}
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, storage_writer=dcp.FileSystemWriter(path), no_dist=True)
    return path


def test_tensors_objects_and_paths_are_what_was_saved(folder: Path) -> None:
    found = read_dcp_folder(open_store(str(folder)))
    assert {tensor.name: (tensor.dtype, tensor.sizes) for tensor in found.tensors} == {
        "a.w": ("float32", (3, 4)),
        "a.list.0": ("float32", (2,)),
    }
    assert [blob.name for blob in found.blobs] == ["a.list.1"]
    assert found.paths["a.list.0"] == ("a", "list", 0)
    assert all(item.path.endswith(".distcp") for item in found.items)


class OfPython3112(pickle.Pickler):
    """Writes members of enumerations as Python 3.11.0 to 3.11.3 do (Debian 12 has 3.11.2)."""

    def reducer_override(self, found: object) -> object:
        return (getattr, (type(found), found.name)) if isinstance(found, enum.Enum) else NotImplemented


@pytest.mark.parametrize("protocol", [2, 4])
def test_what_python_3_11_2_wrote_says_the_same(folder: Path, protocol: int) -> None:
    written = io.BytesIO()
    with open(folder / ".metadata", "rb") as file:
        OfPython3112(written, protocol).dump(pickle.load(file))
    assert b"getattr" in written.getvalue()
    assert describe(read_metadata(written.getvalue())) == read_dcp_folder(open_store(str(folder)))


class Asks:
    """Becomes a call of `getattr` in a pickle."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __reduce__(self) -> object:
        return getattr, self.arguments


@pytest.mark.parametrize(
    "arguments", [(torch.Size, "count"), ({}, "get"), (torch.float32, "to_complex"), ("x", "join"), (), (getattr, "x")]
)
def test_parts_of_anything_but_an_enumeration_are_refused(arguments: tuple[object, ...]) -> None:
    with pytest.raises(CheckpointError):
        read_metadata(pickle.dumps({"x": Asks(*arguments)}))


@given(st.data())
def test_a_damaged_pickle_is_our_error_and_nothing_else(folder: Path, data: st.DataObject) -> None:
    metadata = bytearray((folder / ".metadata").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(metadata) - 1))
        metadata[at] = data.draw(st.integers(0, 255))
    try:
        describe(read_metadata(bytes(metadata[: data.draw(st.integers(0, len(metadata)))])))
    except CheckpointError as error:
        assert "\n" not in str(error)[:50]


@given(st.binary(max_size=200))
def test_any_bytes_are_our_error(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        read_metadata(data)


@pytest.mark.parametrize(
    "found",
    [print, ValueError("x"), pickle.Unpickler, torch.zeros(1), range(3), {"x": 1}],
    ids=["function", "exception", "class", "tensor", "range", "no metadata"],
)
def test_other_things_in_a_pickle_are_refused(found: object) -> None:
    with pytest.raises(CheckpointError):
        read_metadata(pickle.dumps(found))


def test_a_path_out_of_the_folder_is_refused(folder: Path) -> None:
    data = (folder / ".metadata").read_bytes()
    name = b"__0_0.distcp"
    assert name in data
    with pytest.raises(CheckpointError, match="no path within the folder"):
        describe(read_metadata(data.replace(name, b"../../passwd")))
