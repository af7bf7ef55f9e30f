"""Ranks of one check that talk to each other: joining, passes in step, data that tells who sent it. For check programs only."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Any

import msgspec

from robust_run.health.checks.types import CheckProgramOrder, Meeting, Result
from robust_run.health.diagnostics.devices import Device, open_device
from robust_run.health.diagnostics.faults import Faults
from robust_run.health.diagnostics.program import (
    PassCounter,
    Rate,
    RefusedError,
    SkippedError,
    UnmetError,
    one_line,
    running_s,
)
from robust_run.health.diagnostics.torch_store import listening

#: Each rank sends so much at a time.
CPU_BYTES, CUDA_BYTES = 4 << 20, 256 << 20
#: A rank that waits for a peer gives up and says so at this part of the limit, before it is itself taken for the one that hangs:
#: on a busy node that takes seconds.
GIVE_UP_AT = 0.75
#: Sentences about wrong data that are kept.
MOST_WRONG = 4


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass did."""

    bus_bytes: float
    """What went over the slowest link, were all equal: comparable between numbers of ranks."""
    wrong: tuple[str, ...] = ()
    """What arrived that should not have, a sentence each, the same in every pass."""


class Ranks:
    """This rank among the others."""

    def __init__(self, order: CheckProgramOrder, meeting: Meeting, device: Device, dist: Any) -> None:
        self.device, self.dist, self.meeting = device, dist, meeting
        self.rank, self.size = meeting.rank, len(meeting.nodes)
        self.torch = device.torch
        usual = CUDA_BYTES if device.is_cuda else CPU_BYTES
        per_peer = max((order.size_bytes or usual) // 4 // self.size, 1)
        self.count = per_peer * self.size
        """Elements (4 bytes) that this rank has, a multiple of the number of ranks."""

    def pattern(self, sender: int, turn: int, count: int) -> Any:
        """Return what a rank sends in a pass: no other rank and no other pass has the same."""
        torch = self.device.torch
        base = torch.arange(count, dtype=torch.int32, device=self.device.name)
        return (base * 31 + (sender * 7919 + turn * 104729 + 1)) & 0x7FFFFFFF

    def distrust(self, sender: int) -> str:
        """Return the sentence about a rank whose data arrived wrong."""
        return f"what came from rank {sender} on {self.meeting.nodes[sender]} was not what it sent"

    def agree(self, go_on: bool) -> bool:
        """Return what rank 0 thinks of making another pass."""
        torch = self.device.torch
        flag = torch.tensor([int(go_on)], dtype=torch.int32, device=self.device.name)
        self.dist.broadcast(flag, 0)
        return bool(flag.item())

    def part(self) -> None:
        """Leave together: gloo drops what has arrived but was not looked at yet when the one who sent it hangs up.

        All passes are made: what fails now is no finding.
        """
        with suppress(RuntimeError):
            self.dist.barrier()
            self.device.sync()


class Pass:
    """One pass: its number, and a timer for the communication alone, without making and checking the data."""

    def __init__(self, number: int, device: Device, faults: Faults) -> None:
        self.number = number
        self.corrupt = faults.corrupt
        self.took_s = 0.0
        self._device, self._faults = device, faults
        self._started_at_s = 0.0

    def __enter__(self) -> None:
        self._device.sync()
        self._started_at_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._device.sync()
        self._faults.slow_down()
        self.took_s = max(time.perf_counter() - self._started_at_s, 1e-9)


Turn = Callable[[Ranks, Pass], Moved]
"""Makes the data of a pass, communicates inside `with` the pass, checks what arrived."""


def measure(order: CheckProgramOrder, faults: Faults, turn: Turn) -> Result:
    """Join the others, make passes until rank 0 has had enough, and return how fast they were and what arrived wrong."""
    meeting = order.meeting
    if meeting is None:
        raise RefusedError(f"the check {order.check} needs a meeting: who takes part, and where they meet")
    if len(meeting.nodes) < 2:
        raise SkippedError("there is one device alone: nothing to exchange with")
    with by_itself():
        device = open_device(order.device)
    ranks = _join(order, meeting, device)
    pace, rate, wrong = PassCounter(order), Rate(device.others(meeting.nodes.count(order.node))), dict[str, int]()
    passes = 0
    while ranks.agree(pace.more()):
        passes += 1  # not `pace.made`: on other ranks than 0 time may be up, and all must count alike
        made = Pass(passes, device, faults)
        moved = turn(ranks, made)
        rate.add(moved.bus_bytes, made.took_s)
        for sentence in moved.wrong:
            wrong.setdefault(sentence, made.number)
    figures = rate.figures("bus_bytes_per_s")
    ranks.part()
    backend = "nccl" if device.is_cuda else "gloo"
    nodes = len(set(meeting.nodes))
    return Result(
        check=order.check,
        node=order.node,
        device=order.device,
        outcome="done",
        kind=f"{backend}, {ranks.size} ranks on {nodes} nodes, {ranks.count * 4} bytes, {device.kind}",
        figures=figures,
        others_by_figure=rate.others_cpus,
        passes=passes,
        wrong=tuple(f"{said} (pass {at})" for said, at in list(wrong.items())[:MOST_WRONG]),
    )


@contextmanager
def by_itself() -> Iterator[None]:
    """What fails within has nothing to do with other ranks. Raises UnmetError for it."""
    try:
        yield
    except (UnmetError, SkippedError):
        raise
    except RefusedError as error:
        raise UnmetError(str(error)) from error
    except Exception as error:
        raise UnmetError(one_line(f"{type(error).__name__}: {error}")) from error


def _store(store_class: Any, meeting: Meeting, patience: timedelta) -> Any:
    where = meeting.address, meeting.port
    if meeting.listen_fd >= 0:
        return listening(store_class, *where, meeting.listen_fd, timeout=patience)
    return store_class(*where, is_master=meeting.rank == 0, wait_for_workers=False, timeout=patience)


def _join(order: CheckProgramOrder, meeting: Meeting, device: Device) -> Ranks:
    if meeting.interface:
        os.environ["GLOO_SOCKET_IFNAME"] = meeting.interface
        os.environ["NCCL_SOCKET_IFNAME"] = meeting.interface
    with by_itself():
        import torch.distributed as dist

    left_s = order.limit_s * GIVE_UP_AT - running_s() - order.seconds
    patience = timedelta(seconds=max(left_s, 1.0))
    with by_itself() if meeting.rank == 0 else nullcontext():  # others connect to it
        store = _store(dist.TCPStore, meeting, patience)
    dist.init_process_group(
        "nccl" if device.is_cuda else "gloo",
        store=store,
        rank=meeting.rank,
        world_size=len(meeting.nodes),
        timeout=patience,
    )
    return Ranks(order, meeting, device, dist)
