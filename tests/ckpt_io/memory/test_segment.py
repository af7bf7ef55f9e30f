"""The bytes of a part: what is written is read, and whatever else lies there is refused before a byte of it is used."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.errors import SegmentRefused
from robust_run.ckpt_io.memory import segment
from robust_run.ckpt_io.rules.boxes import BYTES_OF
from robust_run.store.digests import digest

Entry = tuple[str, str, tuple[int, ...], int]


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    names = draw(st.lists(st.text(max_size=8), unique=True, max_size=6))
    found: list[Entry] = []
    for name in names:
        dtype = draw(st.sampled_from(sorted(BYTES_OF)))
        shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
        count = 1
        for each in shape:
            count *= each
        found.append((name, dtype, shape, count * BYTES_OF[dtype]))
    return found


def written(tensors: list[Entry], values: bytes) -> tuple[bytearray, segment.PartLayout]:
    layout = segment.layout(tensors, values)
    room = bytearray(layout.used_bytes + 100)
    segment.write_head(memoryview(room), layout, 3, 7, 1, 2)
    for number, ((*_, size), offset) in enumerate(zip(tensors, layout.offsets, strict=True)):
        room[offset : offset + size] = bytes([number + 1]) * size
    return room, layout


@given(entries(), st.binary(max_size=200))
def test_what_is_written_is_read(tensors: list[Entry], values: bytes) -> None:
    room, layout = written(tensors, values)
    view = memoryview(room)
    index = segment.read(view, layout.used_bytes, digest(view[: layout.used_bytes]))
    assert index.values == values
    assert [(each.name, each.dtype, tuple(each.shape), each.nbytes) for each in index.tensors] == tensors
    for number, each in enumerate(index.tensors):
        assert set(room[each.offset : each.offset + each.nbytes]) <= {number + 1}
    head = segment.read_head(view, layout.used_bytes)
    assert (head.attempt, head.step, head.rank, head.world_size) == (3, 7, 1, 2)


@given(entries(), st.data())
def test_bytes_that_changed_are_refused_or_lie_within(tensors: list[Entry], data: Any) -> None:
    room, layout = written(tensors, b"values")
    right = digest(bytes(room[: layout.used_bytes]))
    end = segment.HEAD_BYTES + len(layout.index)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.one_of(st.integers(0, 63), st.integers(segment.HEAD_BYTES, end - 1)))
        room[at] = data.draw(st.integers(0, 255))
    used_bytes = data.draw(st.one_of(st.just(layout.used_bytes), st.integers(-5, len(room) + 5)))
    try:
        index = segment.read(memoryview(room), used_bytes)
    except SegmentRefused:
        return
    last = 0
    for each in sorted(index.tensors, key=lambda one: (one.offset, one.nbytes)):
        assert last <= each.offset and each.offset + each.nbytes <= used_bytes
        last = each.offset + each.nbytes
    if digest(bytes(room[: layout.used_bytes])) != right and used_bytes == layout.used_bytes:
        with pytest.raises(SegmentRefused):
            segment.read(memoryview(room), used_bytes, right)


@given(st.binary(max_size=9000), st.integers(-1, 9000))
def test_no_bytes_crash_it(content: bytes, used_bytes: int) -> None:
    with pytest.raises(SegmentRefused):
        segment.read(memoryview(content), used_bytes)


def test_a_flipped_bit_of_a_tensor_is_found() -> None:
    room, layout = written([("w", "float32", (64,), 256)], b"")
    right = digest(bytes(room[: layout.used_bytes]))
    room[layout.offsets[0] + 100] ^= 1
    with pytest.raises(SegmentRefused, match="digest"):
        segment.read(memoryview(room), layout.used_bytes, right)


@pytest.mark.parametrize(
    "tensors",
    [
        [("w", "float32", (2,), 8), ("w", "float32", (2,), 8)],
        [("w", "float32", (2,), 9)],
        [("w", "object", (2,), 8)],
        [("w", "float32", (-2,), 8)],
    ],
)
def test_what_cannot_be_is_not_laid_out(tensors: list[Entry]) -> None:
    with pytest.raises(SegmentRefused):
        segment.layout(tensors, b"")


def test_a_part_that_does_not_fit_is_not_begun() -> None:
    layout = segment.layout([("w", "float32", (2,), 8)], b"")
    with pytest.raises(SegmentRefused, match="does not fit"):
        segment.write_head(memoryview(bytearray(layout.used_bytes - 1)), layout, 0, 0, 0, 1)
