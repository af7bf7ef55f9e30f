"""Orders handed over to a runner that stays, one after the other, through a socket: each with the descriptors that it names."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

import msgspec

from robust_run.health.checks.types import CheckProgramOrder, NodeOrder

#: Descriptors that come with an order, itself among them. Each group of a round that begins on a node has one there.
MOST_DESCRIPTORS = 32


def written(order: NodeOrder) -> int:
    """Return a file without a name that has the order in it, to be read from its start."""
    descriptor = os.memfd_create("checks")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(msgspec.json.encode(order))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def hand(control: socket.socket, order: NodeOrder, descriptors: Sequence[int]) -> None:
    """Hand an order over. Raises OSError where nobody is there."""
    said = written(order)
    try:
        socket.send_fds(control, [msgspec.json.encode(descriptors)], [said, *descriptors])
    finally:
        os.close(said)


def handed(control: socket.socket, most_bytes: int) -> tuple[bytes, dict[int, int]] | None:
    """Wait for an order; return it, as bytes, and its descriptors by the number that it names. None: there will be no more."""
    data, found, _, _ = socket.recv_fds(control, 4096, MOST_DESCRIPTORS)
    if not data:
        return None
    with open(found[0], "rb") as file:
        return file.read(most_bytes), dict(zip(msgspec.json.decode(data, type=list[int]), found[1:], strict=True))


def renumbered(order: NodeOrder, numbers: Mapping[int, int]) -> NodeOrder:
    """Return an order that names its descriptors by the numbers that they have here."""
    steps = tuple(tuple(_renumbered(each, numbers) for each in step) for step in order.steps)
    return msgspec.structs.replace(order, steps=steps)


def _renumbered(order: CheckProgramOrder, numbers: Mapping[int, int]) -> CheckProgramOrder:
    if order.meeting is None or order.meeting.listen_fd not in numbers:
        return order
    meeting = msgspec.structs.replace(order.meeting, listen_fd=numbers[order.meeting.listen_fd])
    return msgspec.structs.replace(order, meeting=meeting)
