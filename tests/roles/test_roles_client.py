"""A worker whose connection to the orchestrator cannot go on is told, and does not wait for ever."""

from __future__ import annotations

import threading

import pytest

from robust_run.errors import PlatformError
from robust_run.roles.client import Client, Place
from robust_run.roles.words import Me, ReadyCall


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
