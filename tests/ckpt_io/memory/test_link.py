"""Words between keepers: nobody without the key says one, none counts twice, and none that comes harms who reads it."""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.memory.copies.greeting import greet, proof
from robust_run.ckpt_io.memory.copies.link import MOST_WORD_BYTES, Link, LinkLost
from robust_run.ckpt_io.memory.copies.words import Asked, Go, Kept, Parcel, Pull, Push
from robust_run.store.digests import digest

KEY = b"k" * 32
WORD = Pull(rank=1, attempt=2, step=3)


@contextlib.contextmanager
def ends() -> Iterator[tuple[Link, Link, socket.socket, socket.socket]]:
    """Both ends of a proven connection, and their sockets."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Link(ours, KEY, is_client=True), Link(theirs, KEY, is_client=False), ours, theirs


def sealed(counter: int, body: bytes, direction: bytes = b"c") -> bytes:
    mac = hmac.digest(KEY, direction + counter.to_bytes(8, "big") + body, "sha256")
    return len(body).to_bytes(4, "big") + body + mac


def said_by(one: Callable[[Link], None]) -> bytes:
    with ends() as (client, _, _, theirs):
        one(client)
        return theirs.recv(1 << 20)


def test_words_arrive_in_both_directions() -> None:
    with ends() as (client, server, _, _):
        for step in range(3):
            client.send(Pull(rank=1, attempt=2, step=step))
            assert server.receive() == Pull(rank=1, attempt=2, step=step)
            server.send(Kept(stride=4))
            assert client.receive_one(Kept) == Kept(stride=4)


def test_a_word_that_is_said_again_is_refused() -> None:
    once = said_by(lambda client: client.send(WORD))
    with ends() as (_, server, ours, _):
        ours.sendall(once + once)
        assert server.receive() == WORD
        with pytest.raises(LinkLost, match="without the job's proof"):
            server.receive()


def test_a_word_of_the_other_direction_is_refused() -> None:
    with ends() as (_, server, ours, _):
        server.send(Go())
        ours.sendall(ours.recv(1 << 16))
        with pytest.raises(LinkLost, match="without the job's proof"):
            server.receive()


@given(at=st.integers(0, 1000), flip=st.integers(1, 255))
def test_a_word_that_was_changed_is_refused(at: int, flip: int) -> None:
    said = bytearray(said_by(lambda client: client.send(WORD)))
    said[4 + at % (len(said) - 4)] ^= flip
    with ends() as (_, server, ours, _):
        ours.sendall(bytes(said))
        with pytest.raises(LinkLost):
            server.receive()


@given(body=st.binary(max_size=300))
def test_a_proven_word_that_means_nothing_is_refused(body: bytes) -> None:
    with ends() as (_, server, ours, _):
        ours.sendall(sealed(0, body))
        with contextlib.suppress(LinkLost):
            assert isinstance(server.receive(), Asked), "nothing else comes through"


def test_an_oversized_word_is_refused_before_it_is_read() -> None:
    with ends() as (_, server, ours, _):
        ours.sendall((MOST_WORD_BYTES + 1).to_bytes(4, "big"))
        with pytest.raises(LinkLost, match="at most 65536 are read"):
            server.receive()


PUSHED: dict[str, Any] = {
    "rank": 0,
    "ranks": (0,),
    "attempt": 0,
    "step": 1,
    "world_size": 1,
    "used_bytes": 10,
    "room_bytes": 10,
    "digest": bytes(16),
    "created_s": 1.0,
    "during": 0,
    "stride": 1,
}


@pytest.mark.parametrize(
    "changed",
    [
        {"used_bytes": 0},
        {"used_bytes": 1 << 47},
        {"room_bytes": -1},
        {"room_bytes": 1 << 62},
        {"digest": b"short"},
        {"rank": -1},
        {"rank": 1 << 40},
        {"ranks": ()},
        {"ranks": tuple(range(5000))},
        {"step": -1},
        {"step": 1 << 63},
        {"attempt": -1},
        {"stride": 0},
        {"world_size": -1},
    ],
)
def test_numbers_beyond_all_limits_are_refused(changed: dict[str, Any]) -> None:
    with ends() as (client, server, _, _):
        client.send(Push(**PUSHED))
        assert isinstance(server.receive(), Push)
        client.send(Push(**{**PUSHED, **changed}))
        with pytest.raises(LinkLost, match="cannot be read"):
            server.receive()


def with_bytes(content: bytes, then: Callable[[Link, Link, socket.socket, int], None]) -> None:
    descriptor = os.memfd_create("test")
    try:
        os.write(descriptor, content)
        with ends() as (client, server, ours, _):
            then(client, server, ours, descriptor)
    finally:
        os.close(descriptor)


def parcel(content: bytes) -> Parcel:
    return Parcel(
        attempt=0,
        step=1,
        world_size=1,
        used_bytes=len(content),
        room_bytes=len(content),
        digest=digest(content),
        created_s=1.0,
    )


@pytest.mark.parametrize("size_bytes", [1, 4096, 3_000_001])
def test_the_bytes_of_a_part_arrive(size_bytes: int) -> None:
    content = os.urandom(size_bytes)

    def both(client: Link, server: Link, _: socket.socket, descriptor: int) -> None:
        into = os.memfd_create("into")
        sending = threading.Thread(target=client.send_part, args=(descriptor, size_bytes))
        sending.start()
        assert server.receive_part(into, parcel(content))
        sending.join()
        assert os.pread(into, size_bytes + 1, 0) == content
        os.close(into)

    with_bytes(content, both)


def test_bytes_that_were_changed_or_torn_do_not_count() -> None:
    content = os.urandom(1000)

    def changed(_: Link, server: Link, ours: socket.socket, into: int) -> None:
        ours.sendall(content[:-1] + bytes([content[-1] ^ 1]))
        assert not server.receive_part(into, parcel(content))

    def torn(_: Link, server: Link, ours: socket.socket, into: int) -> None:
        ours.sendall(content[:500])
        ours.close()
        with pytest.raises(LinkLost, match="in the middle of a part"):
            server.receive_part(into, parcel(content))

    with_bytes(bytes(1000), changed)
    with_bytes(bytes(1000), torn)


def test_one_who_does_not_know_the_key_is_not_believed() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(bytes(16) + proof(b"wrong" * 7, b"server", bytes(16), bytes(16)))
        with pytest.raises(LinkLost, match="does not know the job's key"):
            greet(ours, KEY)


@given(sent=st.binary(max_size=200))
def test_whatever_the_one_who_is_called_says_the_caller_comes_back(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(LinkLost):
            greet(ours, KEY)


def test_words_are_small() -> None:
    assert (
        len(msgspec.msgpack.encode(Push(**{**PUSHED, "ranks": tuple(range(1 << 30, (1 << 30) + 4096))})))
        < MOST_WORD_BYTES
    )
