"""A worker whose connection to the orchestrator cannot go on is told, and does not wait for ever."""

from __future__ import annotations

import array
import threading

import pytest

from robust_run.errors import PlatformError, UserError
from robust_run.roles.client import Client, Place
from robust_run.roles.queue_words import MOST_ITEM_BYTES, Put
from robust_run.roles.words import Answer, Me, QueueCall, ReadyCall
from robust_run.roles.work_queue import Queue


def test_who_asks_is_told_of_a_fault_of_the_connection_s_thread() -> None:
    """Whatever it is: here what says where the orchestrator is."""
    asked = threading.Event()

    def where() -> Place:
        asked.wait(60)
        raise ZeroDivisionError("a fault")

    client = Client(Me(role="a", index=0, rank=0, serial=1, attempt=0), where)
    asked.set()
    with pytest.raises(PlatformError, match=r"connection to the orchestrator failed.*a fault"):
        client.ask(ReadyCall(number=1, address=""))
    with pytest.raises(PlatformError, match="a fault") as told:
        client.ask(ReadyCall(number=2, address=""))
    assert isinstance(told.value.__cause__, ZeroDivisionError)


class Taken(Client):
    """A client whose orchestrator takes everything in."""

    def __init__(self) -> None:
        super().__init__(Me(role="a", index=0, rank=0, serial=1, attempt=0), lambda: None)  # type: ignore[arg-type,return-value]
        self.put: list[Put] = []

    def ask(self, call: object, *_: object, **__: object) -> Answer:  # type: ignore[override]
        assert isinstance(call, QueueCall) and isinstance(call.event, Put)
        self.put.append(call.event)
        return Answer(number=call.number, accepted=True)


@pytest.mark.parametrize("payload", [b"ab", bytearray(b"ab"), memoryview(b"ab"), memoryview(array.array("b", b"ab"))])
def test_bytes_are_put_as_they_are(payload: bytes) -> None:
    client = Taken()
    assert Queue(client, "q").put(payload)
    assert client.put[0].payload == b"ab"


@pytest.mark.parametrize("payload", [7, [1, 2], (1, 2), {1: 2}, {3}, "text", {"i": 1}, None, array.array("i", [7])])
def test_what_is_no_bytes_is_not_made_into_others(payload: object) -> None:
    """`bytes(7)` is seven zeros, and a tensor of one 7, too."""
    client = Taken()
    with pytest.raises(UserError, match=rf"queue q is of type {type(payload).__name__}, not bytes: encode it"):
        Queue(client, "q").put(payload)  # type: ignore[arg-type]
    assert client.put == []


@pytest.mark.parametrize(
    ("more", "said"),
    [({"generation": 2**70}, "64 bits are possible"), ({"key": "a\ud800"}, "half a character")],
)
def test_what_cannot_be_kept_is_refused_by_name(more: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Queue(Taken(), "q").put(b"", **more)  # type: ignore[arg-type]


def test_how_large_an_item_is_is_counted_in_bytes() -> None:
    rows = memoryview(array.array("d", bytes(8 * (MOST_ITEM_BYTES // 8 + 1))))
    with pytest.raises(UserError, match=rf"an item of {rows.nbytes} bytes is larger than {MOST_ITEM_BYTES}"):
        Queue(Taken(), "q").put(rows)
