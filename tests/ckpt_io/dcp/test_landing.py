"""How bytes get into tensors: straight where that is possible, through bounded scratch where it is not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.dcp import landing as module
from robust_run.ckpt_io.dcp.landing import Landing, LandingMemory, aligned, batches, landings
from robust_run.ckpt_io.dcp.tensors import byte_view
from robust_run.ckpt_io.rules.ranges import Box, within
from robust_run.ckpt_io.rules.segments import Segment
from robust_run.errors import UserError

WHOLE = torch.arange(60 * 70 * 8, dtype=torch.float32).reshape(60, 70, 8)
SEGMENT = Segment(0, 4096, WHOLE.numel() * 4, "float32", tuple(WHOLE.shape))
FILE = bytes(4096) + bytes(byte_view(WHOLE))


def land(all_landings: list[Landing], scratch_bytes: int = 1 << 20) -> int:
    """Read from FILE; the most scratch that was used at once."""
    scratch, most = LandingMemory(pinned=False), 0
    for batch in batches(all_landings, scratch_bytes):
        used = sum(aligned(one.size_bytes) for one in batch if not one.direct)
        most = max(most, used)
        scratch.begin(used)
        for one in batch:
            memory = one.own_memory() if one.direct else scratch.take(one.size_bytes)
            view = byte_view(memory)
            for run in one.runs():
                view[run.at_bytes : run.at_bytes + run.size_bytes] = FILE[
                    run.offset_bytes : run.offset_bytes + run.size_bytes
                ]
            if not one.direct:
                one.settle(memory)
    return most


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    offsets = [draw(st.integers(0, size - 1)) for size in WHOLE.shape]
    sizes = [draw(st.integers(1, size - offset)) for size, offset in zip(WHOLE.shape, offsets, strict=True)]
    return Box(tuple(offsets), tuple(sizes))


@given(boxes(), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]), st.booleans())
def test_any_box_gets_into_any_tensor(box: Box, dtype: torch.dtype, strided: bool) -> None:
    expected = WHOLE[within(box, Box((0, 0, 0), tuple(WHOLE.shape)))].to(dtype)
    target = (
        torch.zeros(box.sizes[::-1], dtype=dtype).permute(2, 1, 0) if strided else torch.zeros(box.sizes, dtype=dtype)
    )
    land(list(landings(SEGMENT, box, target, "t")))
    assert torch.equal(target, expected)


def test_rows_go_straight_into_a_tensor_and_columns_do_not() -> None:
    rows = list(landings(SEGMENT, Box((3, 0, 0), (5, 70, 8)), torch.zeros(5, 70, 8), "t"))
    assert [one.direct for one in rows] == [True]
    columns = list(landings(SEGMENT, Box((0, 3, 0), (60, 1, 8)), torch.zeros(60, 1, 8), "t"))
    assert [one.direct for one in columns] == [False]


def test_scratch_is_bounded_however_much_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 10_000)
    target = torch.zeros(WHOLE.shape, dtype=torch.float64)
    found = list(landings(SEGMENT, Box((0, 0, 0), tuple(WHOLE.shape)), target, "t"))
    assert len(found) > 10
    assert land(found, 30_000) <= 30_000
    assert torch.equal(target, WHOLE.double())


def test_a_tensor_of_another_shape_or_without_memory_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"'w'.*\(2, 2\)"):
        list(landings(SEGMENT, Box((0, 0, 0), (1, 1, 8)), torch.zeros(2, 2), "w"))
    with pytest.raises(UserError, match="'w' is on the meta device"):
        list(landings(SEGMENT, Box((0, 0, 0), (1, 1, 8)), torch.zeros(1, 1, 8, device="meta"), "w"))
