"""Lists of buffers, and digests over them."""

from __future__ import annotations

import itertools

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from robust_run.store.buffers import byte_views, scatter, total_bytes, without
from robust_run.store.digests import DIGEST_BYTES, digest, digest_of

LENGTHS = st.lists(st.integers(0, 9), max_size=8)


def buffers_of(lengths: list[int]) -> list[memoryview]:
    return [memoryview(bytearray(length)) for length in lengths]


@given(LENGTHS, st.integers(0, 80))
def test_what_is_left_is_the_end_of_the_whole(lengths: list[int], count: int) -> None:
    views = [memoryview(bytes(range(number * 10, number * 10 + length))) for number, length in enumerate(lengths)]
    assert b"".join(without(views, count)) == b"".join(views)[count:]


@given(LENGTHS, st.data())
def test_scattered_pieces_come_together(lengths: list[int], data: st.DataObject) -> None:
    views = byte_views(buffers_of(lengths), to_fill=True)
    content = bytes(range(1, 1 + total_bytes(views)))
    cuts = sorted({0, len(content), *data.draw(st.lists(st.integers(0, len(content)), max_size=4))})
    for first, end in itertools.pairwise(cuts):
        scatter(content[first:end], views, first)
    assert b"".join(views) == content


def test_too_much_is_refused_and_so_are_buffers_that_cannot_be_filled() -> None:
    with pytest.raises(ValueError, match="more data"):
        scatter(b"1234", buffers_of([3]), 0)
    with pytest.raises(ValueError, match="read-only"):
        byte_views([memoryview(b"x")], to_fill=True)
    with pytest.raises(TypeError):
        byte_views([memoryview(bytearray(10))[::2]], to_fill=True)


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_a_digest_does_not_depend_on_how_bytes_are_split(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    assert digest(whole) == digest(*pieces) == digest_of(iter(pieces)) == xxhash.xxh3_128(whole).digest()
    assert len(digest(whole)) == DIGEST_BYTES


def test_the_digest_is_the_published_one() -> None:
    """Of no bytes, as the reference implementation prints it: it is part of a format."""
    assert digest(b"").hex() == "99aa06d3014798d86001c324468d497f"
