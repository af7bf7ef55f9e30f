"""From rows of the plugin's file to communicators, flows and operations. Pure; a row may hold anything."""

from __future__ import annotations

from robust_run.tracer.nccl.accounts import FlowAccount, FlowPlace
from robust_run.tracer.nccl.rates import Move
from robust_run.tracer.nccl.types import Algorithm, Communicator, Flow, NcclGlance, NcclOp
from robust_run.tracer.plugin import layout

Row = tuple[int, ...]
#: By the number that the plugin writes.
ALGORITHMS: tuple[Algorithm, ...] = ("", "ring", "tree", "other")


def glance_of(cells: Row) -> NcclGlance:
    """Return what a header says."""
    return NcclGlance(
        pid=cells[layout.PID_CELL],
        api=cells[layout.API_CELL],
        communicators=cells[layout.COMMS_CELL],
        ops=cells[layout.OPS_CELL],
        event_s=_seconds(cells[layout.EVENT_CELL]),
        dropped=cells[layout.DROPPED_CELL],
        foreign=cells[layout.FOREIGN_CELL],
        unknown=cells[layout.UNKNOWN_CELL],
        stale=cells[layout.STALE_CELL],
    )


def communicator_of(row: Row, thread: int = 0) -> Communicator:
    """Return what a row of a communicator says, and which thread works for it."""
    return Communicator(
        serial=row[layout.SERIAL],
        hash=row[layout.HASH],
        name=_text(row[layout.NAME]),
        rank=_known(row[layout.RANK]),
        ranks=_known(row[layout.RANKS]),
        nodes=_known(row[layout.NODES]),
        opened_s=row[layout.COMM_OPENED] / 1e9,
        closed_s=_seconds(row[layout.COMM_CLOSED]),
        thread=thread,
    )


def flow_of(row: Row) -> Flow:
    """Return what a row of a flow says."""
    key, levels = row[layout.KEY], list(row[layout.LEVELS])
    for rung in (
        2,
        1,
        0,
    ):  # a step counts on the lower rungs first: what is missing there was added while this was read
        levels[rung] = max(levels[rung], levels[rung + 1])
    at = [_seconds(value) for value in row[layout.LEVEL_TIMES]]
    place = layout.flow_key(key)
    return Flow(
        comm=place.comm,
        foreign=place.foreign,
        rank=_signed(row[layout.ORIGIN] >> 32, 32),
        channel=place.channel,
        peer=place.peer,
        direction="send" if place.sends else "recv",
        op=_known(row[layout.FLOW_OP]),
        op_seq=row[layout.FLOW_SEQ],
        op_started_s=_seconds(row[layout.OP_AT]),
        op_base=row[layout.OP_BASE],
        op_steps=row[layout.OP_STEPS],
        steps=row[layout.STEPS],
        posted=levels[0],
        gpu_ready=levels[1],
        transmitted=levels[2],
        done=levels[3],
        posted_s=at[0],
        gpu_ready_s=at[1],
        transmitted_s=at[2],
        done_s=at[3],
        bytes=row[layout.FLOW_BYTES_MOVED],
        open_ops=max(0, row[layout.FLOW_OPENED] - row[layout.FLOW_CLOSED]),
    )


def op_of(row: Row) -> NcclOp:
    """Return what a row of an operation says."""
    return NcclOp(
        number=row[layout.NUMBER] - 1,
        comm=row[layout.OP_COMM],
        kind="collective" if row[layout.KIND] & layout.KIND_MASK == layout.COLLECTIVE_KIND else "p2p",
        func=_text(row[layout.FUNC]),
        seq=row[layout.SEQ],
        count=row[layout.COUNT],
        dtype=_text(row[layout.TYPE]).removeprefix("nccl").lower(),
        peer=row[layout.PEER],
        started_s=row[layout.STARTED] / 1e9,
        stopped_s=_seconds(row[layout.STOPPED]),
        proxy_first_s=_seconds(row[layout.PROXY_FIRST]),
        proxy_last_s=_seconds(row[layout.PROXY_LAST]),
        opened=row[layout.OPENED],
        closed=row[layout.CLOSED],
        sent_bytes=row[layout.SENT],
        received_bytes=row[layout.RECEIVED],
        kernel_first_s=_seconds(row[layout.KERNEL_FIRST]),
        kernel_last_s=_seconds(row[layout.KERNEL_LAST]),
        algorithm=_algorithm(row[layout.KIND]),
    )


def _algorithm(kind: int) -> Algorithm:
    code = kind >> layout.ALGORITHM_SHIFT & 0xFF
    return ALGORITHMS[code] if code < len(ALGORITHMS) else ""


def move_of(row: Row) -> Move:
    """Return what a row of an operation says it moved."""
    first, last = row[layout.PROXY_FIRST], row[layout.PROXY_LAST]
    return Move(
        row[layout.NUMBER] - 1,
        row[layout.OP_COMM],
        _seconds(row[layout.STOPPED]),
        row[layout.OPENED],
        row[layout.CLOSED],
        row[layout.SENT],
        row[layout.RECEIVED],
        (last - first) / 1e9 if last > first > 0 else 0.0,
    )


def account_of(row: Row) -> tuple[FlowPlace, FlowAccount] | None:
    """Return what a row of a flow has added up; None: it is done for another process."""
    place = layout.flow_key(row[layout.KEY])
    if place.foreign:
        return None
    posted, ready, transmitted, done = row[layout.LEVELS]
    first, second, third = (spent / 1e9 for spent in row[layout.SPENT])
    account = FlowAccount(
        member=_signed(row[layout.ORIGIN] >> 32, 32),
        done=done,
        bytes=row[layout.FLOW_BYTES_MOVED],
        closed=row[layout.FLOW_CLOSED],
        spent_s=(first, second, third),
        working_s=row[layout.FLOW_WORKING] / 1e9,
        weighed_s=row[layout.FLOW_WEIGHED] / 1e9,
        gaps=(max(0, posted - ready), max(0, ready - transmitted), max(0, transmitted - done)),
    )
    return (place.comm, place.channel, place.peer, "send" if place.sends else "recv"), account


def _seconds(value: int) -> float | None:
    """Return a time in seconds; None for never."""
    return value / 1e9 if value else None


def _known(value: int) -> int | None:
    """Return a number that was written plus one; None where nothing was written."""
    return value - 1 if value else None


def _signed(value: int, bits: int) -> int:
    """Return a number of so many bits with its sign."""
    return value - (1 << bits) if value >> (bits - 1) else value


def _text(content: object) -> str:
    """Return text that ends at its first zero byte, fit to be shown: a program chooses it."""
    assert isinstance(content, bytes)
    text = content.partition(b"\0")[0].decode("utf-8", errors="replace")
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
