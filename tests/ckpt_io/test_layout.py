"""Each byte of a logical file lies in exactly one unit, each unit at one place of one part, and parts have no holes."""

from __future__ import annotations

import base64
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.rules.layout import FileLayout, pack_bits, pack_lengths, unit_count
from robust_run.ckpt_io.rules.types import LogicalFile

MIB = 1 << 20
UUID = "0" * 32


def described(size_bytes: int, first_target: int = 0, **more: object) -> LogicalFile:
    digests = base64.b64encode(bytes(16 * unit_count(size_bytes, MIB))).decode()
    return LogicalFile(
        name="f", size_bytes=size_bytes, unit_bytes=MIB, first_target=first_target, digests=digests, **more
    )


def layout(size_bytes: int, targets: int, first_target: int = 0, **more: object) -> FileLayout:
    return FileLayout(UUID, 3, described(size_bytes, first_target, **more), targets)


@given(st.integers(0, 40 * MIB), st.integers(1, 9), st.data())
def test_parts_have_no_holes_and_no_overlaps(size_bytes: int, targets: int, data: st.DataObject) -> None:
    lay = layout(size_bytes, targets, data.draw(st.integers(0, targets - 1)))
    ends: dict[int, int] = defaultdict(int)
    for unit in range(lay.units):
        place = lay.place(unit)
        assert place.offset_bytes == ends[place.target]
        assert place.path == f"parts-{UUID}/00003-{place.target}.part"
        ends[place.target] += place.stored_bytes
    assert sum(ends.values()) == size_bytes
    assert all(lay.part_bytes(target) == ends[target] for target in range(targets))
    assert sorted(unit for target in range(targets) for unit in lay.units_on(target)) == list(range(lay.units))


@given(st.integers(1, 20), st.integers(1, 5), st.data())
def test_encoded_units_lie_back_to_back(units: int, targets: int, data: st.DataObject) -> None:
    raw = data.draw(st.lists(st.booleans(), min_size=units, max_size=units))
    size = units * MIB - data.draw(st.integers(0, MIB - 2))
    lengths = [
        min(MIB, size - unit * MIB) if raw[unit] else data.draw(st.integers(1, min(MIB, size - unit * MIB) - 1 or 1))
        for unit in range(units)
    ]
    first = data.draw(st.integers(0, targets - 1))
    lay = layout(size, targets, first, codec="lz4", stored=pack_lengths(lengths), raw_units=pack_bits(raw))
    ends: dict[int, int] = defaultdict(int)
    for unit in range(units):
        place = lay.place(unit)
        assert (place.offset_bytes, place.stored_bytes) == (ends[(unit + first) % targets], lengths[unit])
        assert lay.is_raw(unit) == raw[unit]
        ends[place.target] += place.stored_bytes
    assert all(lay.part_bytes(target) == ends[target] for target in range(targets))


@given(st.integers(0, 10 * MIB), st.integers(0, 10 * MIB))
def test_spans_are_the_range(one: int, other: int) -> None:
    begin, end = sorted((one, other))
    at = begin
    for span in layout(10 * MIB, 2).spans(begin, end - begin):
        assert span.unit * MIB + span.begin_bytes == at and 0 < span.size_bytes <= MIB - span.begin_bytes
        at += span.size_bytes
    assert at == end


@pytest.mark.parametrize(("begin", "size"), [(-1, 2), (0, MIB + 1), (MIB, 1), (5, -1)])
def test_ranges_outside_the_file_are_refused(begin: int, size: int) -> None:
    with pytest.raises(ValueError, match="logical file f"):
        list(layout(MIB, 1).spans(begin, size))


@pytest.mark.parametrize(
    "more",
    [
        {"stored": pack_lengths([1])},
        {"codec": "lz4", "stored": pack_lengths([0, 5])},
        {"codec": "lz4", "stored": pack_lengths([MIB, 5])},
        {"codec": "lz4", "stored": pack_lengths([5])},
        {"codec": "lz4", "stored": pack_lengths([5, 5]), "raw_units": pack_bits([True, False])},
        {"codec": "lz4", "stored": "*" * 12},
        {"raw_units": "AA=="},
    ],
)
def test_lengths_that_cannot_be_are_refused(more: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"stored|raw_units"):
        layout(MIB + 100, 1, **more)
