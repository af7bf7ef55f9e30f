"""The chunks of a tensor cover it, each element once."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.rules.boxes import check_cover, volume
from robust_run.ckpt_io.rules.types import Chunk, Tensor


def tensor(sizes: tuple[int, ...], boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> Tensor:
    chunks = tuple(Chunk(offsets=offsets, sizes=size, file=0, offset_bytes=0) for offsets, size in boxes)
    return Tensor(name="w", dtype="float32", sizes=sizes, chunks=chunks)


def covers_by_counting(tensor: Tensor) -> bool:
    seen = [
        point
        for chunk in tensor.chunks
        for point in itertools.product(
            *(range(begin, begin + size) for begin, size in zip(chunk.offsets, chunk.sizes, strict=True))
        )
    ]
    return sorted(seen) == sorted(itertools.product(*(range(size) for size in tensor.sizes)))


@given(st.data(), st.integers(1, 3))
def test_the_sweep_agrees_with_counting(data: st.DataObject, rank: int) -> None:
    numbers = st.lists(st.integers(0, 3), min_size=rank, max_size=rank).map(tuple)
    tried = tensor(data.draw(numbers), data.draw(st.lists(st.tuples(numbers, numbers), max_size=4)))
    try:
        check_cover(tried)
        accepted = True
    except ValueError:
        accepted = False
    inside = all(
        begin + size <= whole
        for chunk in tried.chunks
        for begin, size, whole in zip(chunk.offsets, chunk.sizes, tried.sizes, strict=True)
    )
    assert accepted == (inside and covers_by_counting(tried))


@given(st.data())
def test_any_cut_into_boxes_covers(data: st.DataObject) -> None:
    def cut(
        offsets: tuple[int, ...], sizes: tuple[int, ...], depth: int
    ) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        along = data.draw(st.integers(0, len(sizes) - 1))
        if not depth or sizes[along] < 2:
            return [(offsets, sizes)]
        at = data.draw(st.integers(1, sizes[along] - 1))
        low = (*sizes[:along], at, *sizes[along + 1 :])
        high = (*sizes[:along], sizes[along] - at, *sizes[along + 1 :])
        moved = (*offsets[:along], offsets[along] + at, *offsets[along + 1 :])
        return cut(offsets, low, depth - 1) + cut(moved, high, depth - 1)

    sizes = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=3).map(tuple))
    boxes = cut((0,) * len(sizes), sizes, 4)
    check_cover(tensor(sizes, boxes))
    if len(boxes) > 1:
        with pytest.raises(ValueError, match="elements"):
            check_cover(tensor(sizes, boxes[1:]))


def test_a_tensor_without_dimensions_is_one_chunk() -> None:
    check_cover(tensor((), [((), ())]))
    for boxes in ([], [((), ())] * 2):
        with pytest.raises(ValueError, match="elements"):
            check_cover(tensor((), boxes))


def test_a_grid_of_64_by_64_is_not_too_intricate() -> None:
    check_cover(tensor((64, 64), [((row, column), (1, 1)) for row in range(64) for column in range(64)]))


def test_sizes_beyond_counting_are_refused_without_being_multiplied_out() -> None:
    assert volume([1 << 60, 1 << 60, 0]) == 0
    with pytest.raises(ValueError, match=r"2\*\*60"):
        volume([1 << 40] * 64)
    with pytest.raises(ValueError, match=r"2\*\*60"):
        volume([10**5000, 1])
    assert volume([7, 3]) == math.prod([7, 3])
