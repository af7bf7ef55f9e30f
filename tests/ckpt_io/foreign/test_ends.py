"""A file of torch.save or safetensors that is cut off anywhere is never taken for whole, and a whole one never for cut off."""

from __future__ import annotations

import io
import zipfile
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from robust_run.ckpt_io.foreign.ends import Ends, end_of, whole_zip_ends_in


@cache
def made(kind: str) -> bytes:
    buffer = io.BytesIO()
    if kind == "torch":
        torch.save({"a": torch.arange(9000.0), "b": torch.ones(3), "c": "text"}, buffer)
    elif kind == "numpy":
        np.savez(buffer, a=np.arange(3000), b=np.zeros(3))
    elif kind.startswith("npy "):
        np.save(buffer, ARRAYS[kind])
    elif kind == "safetensors":
        return save({"a": torch.arange(9000.0), "b": torch.ones(3)}, {"format": "pt"})
    elif kind == "safetensors, many":
        return save({f"layer.{number}.weight": torch.ones(2) for number in range(500)})
    elif kind == "zip64":
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("x", bytes(1000))
            archive.filelist += archive.filelist * 66_000  # more than the short record counts
    return buffer.getvalue()


ARRAYS = {
    "npy numbers": np.arange(3000),
    "npy matrix": np.ones((30, 7), dtype=">c16", order="F"),
    "npy scalar": np.float16(3),
    "npy text": np.array(["a", "some words"]),
    "npy bytes": np.array([b"a", b"some words"]),
    "npy days": np.array(["2026-01-01"], dtype="M8[D]"),
    "npy void": np.zeros(5, dtype="V7"),
    "npy flags": np.ones(3, dtype=bool),
}
WITH_AN_END = ("torch", "numpy", "safetensors", "safetensors, many", *ARRAYS)


def end(data: bytes) -> str:
    return end_of(lambda offset, size: data[offset : offset + size], len(data))[0]


@pytest.mark.parametrize("kind", [*WITH_AN_END, "zip64"])
def test_whole_ones_are_whole(kind: str) -> None:
    assert end(made(kind)) == "whole"
    assert end(made(kind) + b"x") != "whole"


@given(st.sampled_from(WITH_AN_END), st.floats(0, 1, exclude_max=True))
def test_cut_off_ones_are_not(kind: str, share: float) -> None:
    data = made(kind)
    cut = data[: int(share * len(data))]
    assert end(cut) == "cut off" if len(cut) >= 9 else end(cut) != "whole"


@given(st.sampled_from(WITH_AN_END), st.lists(st.integers(1, 60_000), max_size=30), st.floats(0, 1))
def test_who_writes_it_knows_the_same(kind: str, lengths: list[int], share: float) -> None:
    data = made(kind)
    data = data if share > 0.5 else data[: int(share * len(data))]
    ends, at = Ends(), 0
    for length in [*lengths, len(data)]:
        ends.add(memoryview(data)[at : at + length])
        at += length
    assert ends.end == end(data)


@given(st.binary(max_size=200))
def test_nothing_is_said_of_anything_else(data: bytes) -> None:
    assert data[:4] == b"PK\x03\x04" or data[8:9] == b"{" or data[:6] == b"\x93NUMPY" or end(data) == "unknown"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK",
        b"12345678{ and so on",
        b"callback({'a': 1})",
        made("torch") + made("torch"),  # as torch.distributed.checkpoint lays them one behind the other
        made("torch") + b"\0" * 1000,
    ],
)
def test_what_is_no_damage(data: bytes) -> None:
    assert end(data) == "unknown"


def test_a_zip_archive_with_a_comment_is_not_cut_off() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("x", b"y")
        archive.comment = b"c" * 65535
    assert end(buffer.getvalue()) == "unknown"


@pytest.mark.parametrize(
    "array",
    [
        np.array([{}, "x"], dtype=object),
        np.zeros(5, dtype=[("a", "<f4"), ("b", "<i8", (3,))]),
        np.zeros(2, dtype=[("o", object)]),
    ],
)
def test_arrays_whose_length_their_header_does_not_say_are_believed(array: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    assert end(buffer.getvalue()) == end(buffer.getvalue()[:-1]) == "unknown"


def test_arrays_one_behind_the_other_are_believed() -> None:
    assert end(made("npy numbers") + made("npy text")) == "unknown"


@given(st.binary(max_size=200))
def test_any_header_of_numpy_is_no_crash(data: bytes) -> None:
    end(b"\x93NUMPY\x01\x00" + data)
    end(b"\x93NUMPY\x01\x00" + (len(data) - 2).to_bytes(2, "little", signed=True) + data[2:])


@pytest.mark.parametrize("kind", ["torch", "numpy", "zip64"])
def test_an_archive_that_ends_somewhere_in_the_file_is_found(kind: str) -> None:
    data = made(kind)
    assert whole_zip_ends_in(data + bytes(100), 0)
    assert whole_zip_ends_in((data + bytes(100))[100:], 100)
    assert not whole_zip_ends_in(data[:-1], 0)
    assert not whole_zip_ends_in(bytes(5) + data, 0), "an archive within a file is not the file"
