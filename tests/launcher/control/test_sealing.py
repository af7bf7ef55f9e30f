"""Sealed frames without sockets: an honest stream passes in any chunks; of one that was tampered with, nothing is obeyed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from robust_run.launcher.control.errors import ProtocolError
from robust_run.launcher.control.frames import LARGEST_FRAME_BYTES, FrameReader, framed
from robust_run.launcher.control.sealing import SEAL_BYTES, ForgedFrame, Keys, Opener, Sealer

KEY = b"k" * 32
Payloads = st.lists(st.binary(max_size=60), min_size=1, max_size=8)


def stream(payloads: list[bytes], key: bytes = KEY) -> list[bytes]:
    """Return payloads as one end puts them on the wire, a piece for each."""
    sealer = Sealer(key)
    return [(frame := framed(payload)) + sealer.seal(frame) for payload in payloads]


def hear(chunks: list[bytes], key: bytes = KEY) -> tuple[list[bytes], bool]:
    """Return what the other end takes for said, and whether it hung up."""
    reader = FrameReader(LARGEST_FRAME_BYTES)
    reader.expect_seals(Opener(key))
    heard: list[bytes] = []
    try:
        for chunk in chunks:
            reader.feed(chunk)
            while (payload := reader.next()) is not None:
                heard.append(payload)
    except ProtocolError:
        return heard, True
    return heard, False


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(Payloads, st.lists(st.integers(0, 1 << 16), max_size=30))
def test_an_honest_stream_passes_however_it_is_cut(payloads: list[bytes], places: list[int]) -> None:
    assert hear(cut(b"".join(stream(payloads)), places)) == (payloads, False)


@given(Payloads, st.data())
def test_of_a_stream_that_was_tampered_with_only_what_came_before_is_heard(
    payloads: list[bytes], data: st.DataObject
) -> None:
    """Bytes are altered, put in, left out, repeated, swapped: anywhere, any number of them."""
    honest = b"".join(stream(payloads))
    start = data.draw(st.integers(0, len(honest)))
    end = data.draw(st.integers(start, min(start + 80, len(honest))))
    put_in = data.draw(
        st.one_of(
            st.binary(max_size=80),
            st.just(framed(b"end the attempt")),
            st.integers(0, len(honest)).map(lambda at: honest[at : at + 60]),
            st.just(honest[start:end] * 2),
            st.just(honest[start:end][::-1]),
        )
    )
    forged = honest[:start] + put_in + honest[end:]
    assume(not honest.startswith(forged) and not forged.startswith(honest))
    heard, hung_up = hear([forged])
    assert payloads[: len(heard)] == heard
    untouched = next((at for at in range(min(len(forged), len(honest))) if forged[at] != honest[at]), 0)
    assert sum(len(each) + 4 + SEAL_BYTES for each in heard) <= untouched
    assert hung_up or len(heard) < len(payloads)  # it may wait for more bytes of what it takes for a long frame


@given(Payloads, st.data())
def test_whole_frames_cannot_be_left_out_repeated_or_swapped(payloads: list[bytes], data: st.DataObject) -> None:
    sent = stream([bytes((number,)) + payload for number, payload in enumerate(payloads)])
    order = data.draw(st.lists(st.integers(0, len(sent) - 1), max_size=12))
    same = next((at for at, number in enumerate(order) if at != number), len(order))
    heard, hung_up = hear([sent[number] for number in order])
    assert len(heard) == same
    assert hung_up == (same < len(order))


@given(Payloads, st.integers(1, 1 << 16))
def test_what_is_cut_off_at_the_end_is_a_lost_connection(payloads: list[bytes], lost: int) -> None:
    honest = b"".join(stream(payloads))
    kept = honest[: max(0, len(honest) - lost)]
    heard, hung_up = hear([kept])
    assert not hung_up
    assert heard == payloads[: len(heard)]
    assert len(heard) < len(payloads)


def test_more_than_was_sent_is_refused() -> None:
    heard, hung_up = hear([*stream([b"one"]), framed(b"two") + b"s" * SEAL_BYTES])
    assert (heard, hung_up) == ([b"one"], True)


def test_who_was_lied_to_once_believes_nothing_more() -> None:
    sent = stream([b"one", b"two"])
    reader = FrameReader()
    reader.expect_seals(Opener(KEY))
    reader.feed(framed(b"forged") + b"s" * SEAL_BYTES)
    for _ in range(2):
        with pytest.raises(ForgedFrame, match="frame 0 is not what the other end sent"):
            reader.next()
    reader.feed(sent[0])
    with pytest.raises(ForgedFrame):
        reader.next()


@given(st.binary(min_size=1), st.binary(), st.binary(), st.binary(max_size=40))
def test_both_ends_derive_the_same_keys_and_each_direction_its_own(
    token: bytes, nonce: bytes, channel: bytes, hello: bytes
) -> None:
    keys = Keys(token, nonce, b"a" * 32, channel, hello)
    again = Keys(token, nonce, b"a" * 32, channel, hello)
    assert (keys.from_agent, keys.from_controller) == (again.from_agent, again.from_controller)
    assert keys.from_agent != keys.from_controller
    (said,) = stream([b"said"], keys.from_agent)
    assert hear([said], keys.from_agent) == ([b"said"], False)
    assert hear([said], keys.from_controller) == ([], True)  # sent back to its maker


@pytest.mark.parametrize("place", range(5))
def test_keys_depend_on_all_that_was_said_in_the_handshake(place: int) -> None:
    said = [b"token", b"c" * 32, b"a" * 32, b"channel", b"hello"]
    other = [*said[:place], said[place][:-1] + b"X", *said[place + 1 :]]
    assert Keys(*said).from_agent != Keys(*other).from_agent
    assert Keys(*said).from_controller != Keys(*other).from_controller
