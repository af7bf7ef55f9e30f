"""A unit comes back as it was, and whatever a decoder is given, it allocates no more than the unit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.rules.types import Codec
from robust_run.ckpt_io.units import decode, encode, shuffled, unshuffled
from robust_run.store.digests import digest

CODECS = ("lz4", "zstd_shuffle")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("item_bytes", [1, 2, 4, 8])
def test_what_compresses_comes_back(codec: Codec, item_bytes: int) -> None:
    unit = b"weights " * 9999 + b"123"
    stored = encode(codec, item_bytes, [unit[:7], unit[7:]])
    assert not stored.raw and stored.stored_bytes < len(unit) // 10
    assert stored.digest == digest(*stored.buffers)
    assert decode(codec, item_bytes, stored.buffers[0], len(unit)) == unit


@pytest.mark.parametrize("codec", ["none", *CODECS])
def test_what_does_not_get_smaller_is_stored_as_it_is_and_not_copied(codec: Codec) -> None:
    unit = random.Random(1).randbytes(10_000)
    stored = encode(codec, 4, [unit])
    assert stored.raw and stored.buffers[0] is unit and stored.digest == digest(unit)


@given(st.binary(max_size=300), st.sampled_from([1, 2, 4, 8, 16]))
def test_shuffling_is_undone(data: bytes, item_bytes: int) -> None:
    assert unshuffled(shuffled(data, item_bytes), item_bytes) == data


def test_shuffling_groups_bytes_by_their_place() -> None:
    assert shuffled(b"aBaBaBx", 2) == b"aaaBBBx"


@given(st.sampled_from(CODECS), st.binary(max_size=200), st.integers(0, 1 << 20))
def test_garbage_is_a_value_error(codec: Codec, stored: bytes, size_bytes: int) -> None:
    try:
        plain = decode(codec, 4, stored, size_bytes)
    except ValueError:
        return
    assert len(plain) == size_bytes


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_not_unpacked(codec: Codec) -> None:
    bomb = encode(codec, 1, [bytes(64 << 20)]).buffers[0]
    with pytest.raises(ValueError, match=r"expected|lz4"):
        decode(codec, 1, bomb, 1 << 20)
