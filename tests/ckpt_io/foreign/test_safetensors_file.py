"""Headers of safetensors files are checked before they are believed."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.foreign.safetensors_file import read_tensors
from robust_run.ckpt_io.rules.types import Tensor

GOOD = save({"a": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16), "c": torch.tensor(1)})


def tensors_of(data: bytes) -> tuple[Tensor, ...]:
    return read_tensors(lambda at, size: data[at : at + size], len(data), 0)


def with_header(header: object, data: bytes = bytes(24)) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_each_tensor_is_a_range_of_the_file() -> None:
    found = {tensor.name: tensor for tensor in tensors_of(GOOD)}
    at = found["a"].chunks[0].offset_bytes
    assert GOOD[at : at + 24] == torch.arange(6.0).numpy().tobytes()
    assert (found["b"].dtype, found["b"].sizes) == ("bfloat16", (4,))
    assert found["c"].sizes == ()


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [6], "data_offsets": [0, 20]}},
        {"a": {"dtype": "F32", "shape": [7], "data_offsets": [0, 28]}},
        {"a": {"dtype": "F32", "shape": [-6], "data_offsets": [0, 24]}},
        {"a": {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 24]}},
        {"a": {"dtype": "X", "shape": [6], "data_offsets": [0, 24]}},
        {"a": {"dtype": "F32", "shape": [6], "data_offsets": [-4, 20]}},
        {
            "a": {"dtype": "U8", "shape": [6], "data_offsets": [0, 6]},
            "b": {"dtype": "U8", "shape": [6], "data_offsets": [5, 11]},
        },
        {"a": 5},
        [],
    ],
)
def test_a_header_that_cannot_be_is_refused(header: object) -> None:
    with pytest.raises(CheckpointError):
        tensors_of(with_header(header))


@given(st.integers(0, len(GOOD)))
def test_a_file_that_is_cut_off_is_refused(length: int) -> None:
    if length < len(GOOD):
        with pytest.raises(CheckpointError):
            tensors_of(GOOD[:length])


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_damage_is_our_error_or_harmless(changes: list[tuple[int, int]]) -> None:
    data = bytearray(GOOD)
    for at, byte in changes:
        data[at] = byte
    try:
        found = tensors_of(bytes(data))
    except CheckpointError:
        return
    assert all(0 <= tensor.chunks[0].offset_bytes <= len(data) for tensor in found)
