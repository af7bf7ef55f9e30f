"""What roles say to each other: requests and answers through queues, tokens and what experts made of them from member to member.

Msgpack: no code in it. Rows go as four bytes a number, of which the grid of `exact` needs fewer.
"""

from __future__ import annotations

import msgspec
import numpy as np
from decoder import WIDTH
from exact import Array


class Request(msgspec.Struct, frozen=True, array_like=True):
    """A prompt that is to be answered with so many tokens at most."""

    number: int
    prompt: str
    most: int


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What came of a request. `error`: why it cannot be answered, else empty."""

    number: int
    text: str = ""
    digest: str = ""
    """Of all logits on the way: equal where each bit of them is."""
    tokens: int = 0
    by: str = ""
    longest_wait_s: float = 0.0
    """For experts, in one layer."""
    asked_again: int = 0
    """How often experts were asked again on the way, because one was lost or late."""
    error: str = ""


class Greeting(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """First sealed word of both ends: which member speaks."""

    member: str


class Work(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """From an attention member: rows for experts of a layer."""

    ticket: int
    layer: int
    rows: dict[int, bytes]
    """By expert."""


class Made(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """From an expert member: what they made of it."""

    ticket: int
    rows: dict[int, bytes]


_encoder = msgspec.msgpack.Encoder()
_requests, _answers = msgspec.msgpack.Decoder(Request), msgspec.msgpack.Decoder(Answer)


def packed(what: Request | Answer) -> bytes:
    """Return it as bytes."""
    return _encoder.encode(what)


def request_of(data: bytes) -> Request:
    """Return what was packed. Raises msgspec.MsgspecError."""
    return _requests.decode(data)


def answer_of(data: bytes) -> Answer:
    """Return what was packed. Raises msgspec.MsgspecError."""
    return _answers.decode(data)


def bytes_of(rows: Array) -> bytes:
    """Return rows as bytes; nothing is lost."""
    return rows.astype("<f4").tobytes()


def rows_of(data: bytes) -> Array:
    """Return rows, each as wide as the model. Raises ValueError."""
    return np.frombuffer(data, "<f4").reshape(-1, WIDTH).astype(np.float64)
