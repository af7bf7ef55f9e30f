"""Which bytes of a chunk a box is: held against what slicing an array says."""

from __future__ import annotations

from math import prod

import torch
from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.rules.ranges import Box, pieces, run_bytes, runs, widen, within

ITEM_BYTES = 4


@st.composite
def shapes_and_boxes(draw: st.DrawFn, most: int = 7) -> tuple[tuple[int, ...], Box]:
    shape = tuple(draw(st.lists(st.integers(1, most), max_size=4)))
    offsets = tuple(draw(st.integers(0, size - 1)) for size in shape)
    sizes = tuple(draw(st.integers(1, size - offset)) for size, offset in zip(shape, offsets, strict=True))
    return shape, Box(offsets, sizes)


def sliced(shape: tuple[int, ...], box: Box) -> list[int]:
    """Positions of the box's elements in the chunk, in the box's own order."""
    whole = torch.arange(prod(shape)).reshape(shape)
    return whole[within(box, Box((0,) * len(shape), shape))].reshape(-1).tolist()


def read(shape: tuple[int, ...], box: Box) -> list[int]:
    return [
        byte // ITEM_BYTES + item for byte, size in runs(shape, box, ITEM_BYTES) for item in range(size // ITEM_BYTES)
    ]


@given(shapes_and_boxes())
def test_the_runs_of_a_box_are_its_elements_in_order(case: tuple[tuple[int, ...], Box]) -> None:
    shape, box = case
    assert read(shape, box) == sliced(shape, box)
    assert {size for _, size in runs(shape, box, ITEM_BYTES)} == {run_bytes(shape, box, ITEM_BYTES)}


def test_rows_are_one_run_and_columns_one_per_row() -> None:
    assert list(runs((10, 8), Box((3, 0), (4, 8)), 2)) == [(3 * 16, 64)]
    assert list(runs((3, 8), Box((0, 2), (3, 2)), 2)) == [(4, 4), (20, 4), (36, 4)]
    assert list(runs((), Box((), ()), 8)) == [(0, 8)]


def test_an_empty_box_has_no_runs() -> None:
    assert list(runs((4, 0), Box((0, 0), (4, 0)), 4)) == []
    assert list(runs((4, 4), Box((1, 0), (0, 4)), 4)) == []


@given(shapes_and_boxes(), st.sampled_from([1, 16, 64, 10**6]))
def test_a_widened_box_holds_the_box_and_has_no_short_runs(case: tuple[tuple[int, ...], Box], short: int) -> None:
    shape, box = case
    wide = widen(shape, box, ITEM_BYTES, short)
    assert set(sliced(shape, box)) <= set(sliced(shape, wide))
    found = list(runs(shape, wide, ITEM_BYTES))
    assert len(found) == 1 or run_bytes(shape, wide, ITEM_BYTES) >= short


def test_a_box_of_one_run_is_not_widened() -> None:
    assert widen((100, 100), Box((5, 7), (1, 2)), 4) == Box((5, 7), (1, 2))
    assert widen((100, 100), Box((5, 7), (2, 2)), 4) == Box((5, 0), (2, 100))


@given(shapes_and_boxes(), st.sampled_from([4, 20, 100, 10**6]))
def test_pieces_are_the_box_and_what_is_read_for_them_holds_them(case: tuple[tuple[int, ...], Box], limit: int) -> None:
    shape, box = case
    cut = list(pieces(shape, box, ITEM_BYTES, limit))
    assert sorted(item for piece, _ in cut for item in sliced(shape, piece)) == sorted(sliced(shape, box))
    for piece, wide in cut:
        assert set(sliced(shape, piece)) <= set(sliced(shape, wide))
        assert wide.elements * ITEM_BYTES <= limit or piece.elements == 1
