"""How ranks of a check find each other, with the stores of all releases of torch that are supported."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

from robust_run.health.checks.types import CheckProgramOrder, Meeting, Result
from robust_run.health.diagnostics.faults import Faults
from robust_run.health.diagnostics.meeting import Moved, Pass, Ranks, measure
from robust_run.health.diagnostics.program import carry_out
from robust_run.health.diagnostics.torch_store import listening

PATIENCE = timedelta(seconds=20)


class OfTorch26:
    """Its libuv takes no socket that listens already: no job had a store, and a healthy node was suspected."""

    def __init__(self, address: str, port: int, *, use_libuv: bool = True, **options: Any) -> None:
        if use_libuv and "master_listen_fd" in options:
            raise NotImplementedError("The libuv TCPStore backend does not support initialization with an listen fd.")
        self.made = (address, port, use_libuv, options)


def test_a_store_of_torch_2_6_takes_a_socket_that_listens_without_libuv() -> None:
    made = listening(OfTorch26, "10.0.0.1", 9, 7, timeout=PATIENCE).made
    options = {"is_master": True, "wait_for_workers": False, "master_listen_fd": 7, "timeout": PATIENCE}
    assert made == ("10.0.0.1", 9, False, options)


def test_a_store_of_this_torch_takes_it() -> None:
    from torch.distributed import TCPStore

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    store = listening(TCPStore, "127.0.0.1", port, listener.detach(), timeout=PATIENCE)
    store.set("key", "value")
    assert TCPStore("127.0.0.1", port, is_master=False, timeout=PATIENCE).get("key") == b"value"


def order_of(rank: int, device: str = "cpu", listen_fd: int = -1) -> CheckProgramOrder:
    meeting = Meeting(rank=rank, nodes=("a", "b"), port=1, listen_fd=listen_fd)
    return CheckProgramOrder(check="exchange", node="ab"[rank], device=device, limit_s=8, seconds=0.1, meeting=meeting)


def carried_out(order: CheckProgramOrder) -> Result:
    return carry_out(order, lambda given, faults: measure(given, faults, no_turn), Faults)


def no_turn(ranks: Ranks, made: Pass) -> Moved:
    raise AssertionError((ranks, made))


def test_one_that_cannot_begin_says_that_it_met_nobody() -> None:
    first = carried_out(order_of(0, listen_fd=1 << 19))
    assert (first.outcome, first.unmet) == ("failed", True), first.problem
    lacks = carried_out(order_of(1, device="cuda:7"))
    assert (lacks.outcome, lacks.unmet) == ("failed", True), lacks.problem


def test_one_that_cannot_connect_says_that_it_lost_the_others() -> None:
    lost = carried_out(order_of(1))
    assert (lost.outcome, lost.unmet) == ("failed", False), lost.problem
