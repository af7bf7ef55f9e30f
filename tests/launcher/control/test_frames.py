"""Frames: whatever is sent arrives, however the network cuts it; whatever nobody sends is refused."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.launcher.control import frames
from robust_run.launcher.control.errors import ProtocolError
from robust_run.launcher.control.messages import ControlNotice, Heartbeat, HeartbeatReply, Hello, JoinRefused, Orders
from robust_run.launcher.model.actions import Dismiss, EndAttempt
from robust_run.launcher.model.job import NodeInfo


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def read_all(chunks: list[bytes], limit_bytes: int = frames.LARGEST_FRAME_BYTES) -> list[bytes]:
    reader = frames.FrameReader(limit_bytes)
    found = []
    for chunk in chunks:
        reader.feed(chunk)
        while (payload := reader.next()) is not None:
            found.append(payload)
    return found


@given(st.lists(st.binary(max_size=300), max_size=12), st.lists(st.integers(0, 1 << 20), max_size=30))
def test_payloads_arrive_whole_and_in_order_however_they_are_cut(payloads: list[bytes], places: list[int]) -> None:
    stream = b"".join(frames.framed(payload) for payload in payloads)
    assert read_all(cut(stream, places)) == payloads


@given(st.text(max_size=200), st.integers(0, 1 << 62), st.floats(allow_nan=False), st.lists(st.integers(0, 999)))
def test_messages_of_an_agent_survive_the_trip(text: str, number: int, now_s: float, places: list[int]) -> None:
    sent = [
        ControlNotice(text=text),
        Heartbeat(number=number, now_s=now_s),
        Hello(nonce=b"n", proof=b"p", node=NodeInfo(id="1", name=text, nproc=2)),
    ]
    stream = b"".join(frames.encode(message) for message in sent)
    assert [frames.decode_from_agent(payload) for payload in read_all(cut(stream, places))] == sent


def test_messages_of_a_controller_survive_the_trip() -> None:
    orders = (EndAttempt(attempt=3, signal=15, grace_s=3.0), Dismiss(node="1", exit_code=0, reason="done"))
    sent = [HeartbeatReply(number=1, term=2), Orders(term=2, orders=orders), JoinRefused(reason="no", final=False)]
    stream = b"".join(frames.encode(message) for message in sent)
    assert [frames.decode_from_controller(payload) for payload in read_all([stream])] == sent


def test_a_large_frame_arrives_in_small_pieces() -> None:
    payload = bytes(range(256)) * 4096
    stream = frames.framed(payload) + frames.framed(b"next")
    chunks = [stream[at : at + 1000] for at in range(0, len(stream), 1000)]
    assert read_all(chunks) == [payload, b"next"]


def test_half_a_frame_is_nothing_yet() -> None:
    reader = frames.FrameReader()
    reader.feed(frames.framed(b"abcd")[:-1])
    assert reader.next() is None
    reader.feed(b"d")
    assert reader.next() == b"abcd"


def test_a_length_over_the_limit_is_refused_before_its_bytes_arrive() -> None:
    reader = frames.FrameReader(100)
    reader.feed((101).to_bytes(4, "big"))
    with pytest.raises(ProtocolError, match="101 bytes, more than the 100"):
        reader.next()


def test_the_limit_may_be_raised_between_two_frames_that_came_together() -> None:
    reader = frames.FrameReader(10)
    reader.feed(frames.framed(b"small") + frames.framed(b"x" * 100))
    assert reader.next() == b"small"
    reader.limit_bytes = 100
    assert reader.next() == b"x" * 100


def test_a_message_too_large_to_be_read_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="larger than a frame can be"):
        frames.framed(bytes(frames.LARGEST_FRAME_BYTES + 1))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x91" * 60_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff\x00",
        msgspec.msgpack.encode({"type": "heartbeat", "number": "one"}),
        msgspec.msgpack.encode({"type": "nonsense"}),
        msgspec.msgpack.encode({"number": 1}),
        frames.encode(HeartbeatReply(number=1, term=1))[4:],
        b"\x82\xa4type\xa6notice\xa4text\xa2\xff\xfe",
    ],
    ids="empty unused nested array map type tag untagged other-way not-utf8".split(),
)
def test_what_is_no_message_of_an_agent_is_garbage(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="no message of this protocol"):
        frames.decode_from_agent(payload)


@given(st.binary(max_size=400))
def test_random_bytes_are_a_message_or_garbage_and_nothing_else(payload: bytes) -> None:
    for decode in (frames.decode_from_agent, frames.decode_from_controller):
        try:
            decode(payload)
        except ProtocolError as error:
            assert len(str(error)) < 400
