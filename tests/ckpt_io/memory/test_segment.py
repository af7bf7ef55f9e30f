"""The bytes of a part: what is written is read, and whatever became of it is refused or harmless."""

from __future__ import annotations

import contextlib
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robust_run.ckpt_io.errors import SegmentRefused
from robust_run.ckpt_io.memory import segment
from robust_run.ckpt_io.memory.types import PartIndex
from robust_run.ckpt_io.rules.boxes import BYTES_OF
from robust_run.store.digests import digest

Entry = tuple[str, str, tuple[int, ...], int]
SPARE_BYTES = 100


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    found: list[Entry] = []
    for name in draw(st.lists(st.text(max_size=8), max_size=5, unique=True)):
        dtype = draw(st.sampled_from(sorted(BYTES_OF)))
        shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
        found.append((name, dtype, shape, math.prod(shape) * BYTES_OF[dtype]))
    return found


def written(tensors: list[Entry], values: bytes) -> tuple[bytearray, segment.PartLayout]:
    layout = segment.layout(tensors, values)
    memory = bytearray(b"\xa5" * (layout.used_bytes + SPARE_BYTES))
    segment.write_head(memoryview(memory), layout, 1, 40, 2, 4)
    return memory, layout


def check_harmless(index: PartIndex, used_bytes: int) -> None:
    """Every tensor lies within the part, and no two share a byte."""
    taken = sorted((each.offset, each.offset + each.nbytes) for each in index.tensors if each.nbytes)
    assert all(segment.HEAD_BYTES < begin <= end <= used_bytes for begin, end in taken)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(taken))
    assert len({each.name for each in index.tensors}) == len(index.tensors)


@given(entries(), st.binary(max_size=40))
@settings(max_examples=60)
def test_what_is_written_is_read(tensors: list[Entry], values: bytes) -> None:
    memory, layout = written(tensors, values)
    view = memoryview(memory)
    index = segment.read(view, layout.used_bytes, digest(view[: layout.used_bytes]))
    assert [(each.name, each.dtype, each.shape, each.nbytes) for each in index.tensors] == tensors
    assert tuple(each.offset for each in index.tensors) == layout.offsets and index.values == values
    assert layout.payload_at % segment.HEAD_BYTES == 0
    check_harmless(index, layout.used_bytes)
    head = segment.read_head(view, layout.used_bytes)
    assert (head.attempt, head.step, head.rank, head.world_size) == (1, 40, 2, 4)


@given(entries(), st.data())
@settings(max_examples=200)
def test_whatever_became_of_head_or_index_is_refused_or_harmless(tensors: list[Entry], data: st.DataObject) -> None:
    memory, layout = written(tensors, b"values")
    end = segment.HEAD_BYTES + len(layout.index)
    for at in data.draw(st.lists(st.integers(0, 63) | st.integers(segment.HEAD_BYTES, end - 1), max_size=4)):
        memory[at] = data.draw(st.integers(0, 255))
    kept = data.draw(st.just(len(memory)) | st.integers(0, len(memory)))
    used_bytes = data.draw(st.just(layout.used_bytes) | st.integers(-1, len(memory) + 1))
    try:
        index = segment.read(memoryview(memory)[:kept], used_bytes)
    except SegmentRefused:
        return
    check_harmless(index, min(used_bytes, kept))


@given(st.binary(max_size=300))
@settings(max_examples=200)
def test_an_index_of_any_bytes_is_refused_or_harmless(content: bytes) -> None:
    memory, layout = written([("w", "uint8", (500,), 500)], b"")
    index = content[: len(layout.index)].ljust(len(layout.index), b"\0")
    memory[segment.HEAD_BYTES : segment.HEAD_BYTES + len(index)] = index
    with contextlib.suppress(SegmentRefused):
        check_harmless(segment.read(memoryview(memory), layout.used_bytes), layout.used_bytes)


@pytest.mark.parametrize(
    "index",
    [
        b"\x81\xa7tensors\xdd\xff\xff\xff\xff",  # an array of 2**32 - 1
        b"\x81\xa1x" + b"\x91" * 4000,  # far too deep
        b"\x81\xa7tensors\x91\x95\xa1\xff\xa5uint8\x90\x00\x01",  # a name that is no text
        b"\x82\xa7tensors\x90\xa6values\xc6\xff\xff\xff\xff",  # bytes without an end
    ],
)
def test_an_index_made_to_hurt_is_refused(index: bytes) -> None:
    layout = segment.PartLayout(index=index, payload_at=8192, offsets=(), used_bytes=9000)
    memory = bytearray(9000)
    segment.write_head(memoryview(memory), layout, 0, 1, 0, 1)
    with pytest.raises(SegmentRefused):
        segment.read(memoryview(memory), 9000)


@given(entries(), st.data())
@settings(max_examples=60)
def test_with_the_digest_no_changed_byte_passes(tensors: list[Entry], data: st.DataObject) -> None:
    memory, layout = written(tensors, b"values")
    taken = digest(memoryview(memory)[: layout.used_bytes])
    at = data.draw(st.integers(0, layout.used_bytes - 1))
    memory[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SegmentRefused):
        segment.read(memoryview(memory), layout.used_bytes, taken)


@pytest.mark.parametrize(
    "tensors",
    [
        [("w", "uint8", (1,), 1), ("w", "uint8", (1,), 1)],
        [("w", "uint8", (2,), 1)],
        [("w", "uint8", (-1,), -1)],
        [("w", "no dtype", (1,), 1)],
        [("w", "uint8", (1,) * 65, 1)],
        [("w", "uint8", (1 << 61,), 1 << 61)],
    ],
)
def test_what_cannot_be_is_not_laid_out(tensors: list[Entry]) -> None:
    with pytest.raises(SegmentRefused):
        segment.layout(tensors, b"")


def test_a_part_that_does_not_fit_or_cannot_be_is_not_written() -> None:
    layout = segment.layout([("w", "uint8", (5,), 5)], b"")
    with pytest.raises(SegmentRefused, match="does not fit"):
        segment.write_head(memoryview(bytearray(layout.used_bytes - 1)), layout, 0, 0, 0, 1)
    for attempt, step, rank, world_size in (
        (0, 0, 1, 1),
        (-1, 0, 0, 1),
        (0, -1, 0, 1),
        (0, 0, -1, 1),
        (0, 2**63, 0, 1),
    ):
        with pytest.raises(SegmentRefused, match="cannot be"):
            segment.write_head(memoryview(bytearray(layout.used_bytes)), layout, attempt, step, rank, world_size)


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(SegmentRefused, match="cannot be written"):
        segment.layout([("\ud800", "float32", (2,), 8)], b"")
