"""Frames between attention and expert members: what another sent, changed, repeated or made too large is none."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "serving"))

from wire import HEADER_BYTES, MOST_BYTES, MOST_FIRST_BYTES, SEAL_BYTES, Frames, WireError
from words import Greeting, Made, Work

KEY, NONCES = bytes(range(32)), bytes(64)
WORKS = st.builds(
    Work,
    st.integers(0, 1 << 40),
    st.integers(0, 7),
    st.dictionaries(st.integers(0, 7), st.binary(max_size=64), max_size=4),
)


def pair(key: bytes = KEY, nonces: bytes = NONCES) -> tuple[Frames, Frames]:
    """Return both ends of a connection: the attention member's, which may be another's, and the expert's."""
    return Frames(key, nonces, is_expert=False), Frames(KEY, NONCES, is_expert=True)


def greeted() -> tuple[Frames, Frames]:
    attention, expert = pair()
    assert list(expert.feed(attention.frame(Greeting("attention/0")))) == [Greeting("attention/0")]
    assert list(attention.feed(expert.frame(Greeting("expert/1")))) == [Greeting("expert/1")]
    return attention, expert


@given(st.lists(WORKS, max_size=5), st.integers(1, 60))
def test_messages_come_out_as_they_went_in_however_they_are_cut(works: list[Work], step: int) -> None:
    attention, expert = greeted()
    data = b"".join(map(attention.frame, works))
    found = [message for at in range(0, len(data), step) for message in expert.feed(data[at : at + step])]
    assert found == works
    assert list(attention.feed(expert.frame(Made(1, {2: b"x"})))) == [Made(1, {2: b"x"})]


@given(st.lists(WORKS, min_size=2, max_size=4), st.data())
def test_a_frame_that_was_changed_repeated_or_left_out_ends_the_connection(
    works: list[Work], data: st.DataObject
) -> None:
    attention, expert = greeted()
    frames = [attention.frame(work) for work in works]
    at = data.draw(st.integers(0, len(frames) - 2))
    what = data.draw(st.sampled_from(("change", "repeat", "leave out", "swap")))
    if what == "change":
        place = data.draw(st.integers(HEADER_BYTES, len(frames[at]) - 1))
        bit = 1 << data.draw(st.integers(0, 7))
        frames[at] = frames[at][:place] + bytes([frames[at][place] ^ bit]) + frames[at][place + 1 :]
    elif what == "repeat":
        frames.insert(at, frames[at])
    elif what == "leave out":
        del frames[at]
    else:
        frames[at], frames[at + 1] = frames[at + 1], frames[at]
    found = []
    with pytest.raises(WireError, match="did not send here and now"):
        for frame in frames:
            found += expert.feed(frame)
    assert found == works[: len(found)], "what came before is whole; nothing after it is heard"


@pytest.mark.parametrize("stranger", [pair(key=bytes(32)), pair(nonces=b"\1" + bytes(63))], ids=["key", "nonces"])
def test_who_has_another_key_or_speaks_on_another_connection_is_not_heard(stranger: tuple[Frames, Frames]) -> None:
    other, expert = stranger
    with pytest.raises(WireError, match="one of another job"):
        list(expert.feed(other.frame(Greeting("attention/0"))))


def test_what_an_end_said_cannot_be_sent_back_to_it() -> None:
    attention, _ = pair()
    with pytest.raises(WireError):
        list(attention.feed(attention.frame(Greeting("attention/0"))))


def test_a_frame_is_no_larger_than_allowed_before_and_after_the_greeting() -> None:
    _, expert = pair()
    with pytest.raises(WireError, match=f"more than the {MOST_FIRST_BYTES} allowed"):
        list(expert.feed((MOST_FIRST_BYTES + 1).to_bytes(4, "big")))
    attention, expert = greeted()
    with pytest.raises(WireError, match=f"more than the {MOST_BYTES} allowed"):
        list(expert.feed((MOST_BYTES + 1).to_bytes(4, "big")))
    with pytest.raises(WireError, match="larger than a frame can be"):
        attention.frame(Work(1, 0, {0: bytes(MOST_BYTES)}))


def test_the_first_word_is_a_greeting_and_no_later_one_is() -> None:
    attention, expert = pair()
    with pytest.raises(WireError, match="frame 1 is a Work"):
        list(expert.feed(attention.frame(Work(1, 0, {}))))
    attention, expert = greeted()
    with pytest.raises(WireError, match="frame 2 is a Greeting"):
        list(expert.feed(attention.frame(Greeting("attention/0"))))


@given(st.binary(max_size=300), st.integers(1, 40))
def test_garbage_is_an_error_of_the_wire_and_of_nothing_else(data: bytes, step: int) -> None:
    for expert in (pair()[1], greeted()[1]):
        try:
            for at in range(0, len(data), step):
                assert list(expert.feed(data[at : at + step])) == []
        except WireError:
            pass


WORDS = st.sampled_from(["Work", "Made", "Greeting", "Other"]) | st.none() | st.integers() | st.binary(max_size=3)


@given(st.lists(WORDS | st.dictionaries(st.integers(0, 9) | st.text(max_size=2), WORDS, max_size=2), max_size=5))
def test_so_is_nonsense_of_one_who_has_the_key(content: list[object]) -> None:
    attention, expert = greeted()
    try:
        payload = msgspec.msgpack.encode(content)
    except OverflowError:
        return
    frame = attention.frame(Work(1, 0, {0: bytes(len(payload))}))
    assert len(frame) > HEADER_BYTES + len(payload) + SEAL_BYTES
    from wire import _seal

    frame = len(payload).to_bytes(4, "big") + payload
    sealed = frame + _seal(attention._key_out, 2, frame)
    try:
        assert all(isinstance(message, Work | Made) for message in expert.feed(sealed))
    except WireError as error:
        assert "no message" in str(error) or "is a Greeting" in str(error)
