"""Which buffers are given back: with them, nothing is lost that anybody needs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from robust_run.ckpt_io.memory.generations import HeldBuffer, Holdings, common, is_spare, large
from robust_run.ckpt_io.memory.types import BUFFERS


def superseded(
    holdings: Holdings,
    needed_bytes: Mapping[int, int],
    busy: Collection[int],
    *,
    may_forget: bool = True,
    with_fourth: Collection[int] = (),
) -> tuple[int, ...]:
    """Return the buffers to free, with which nothing is lost: too small by now, more than are used, or of ranks that have left.

    Args:
        holdings: What there is.
        needed_bytes: What each rank asked for in this attempt.
        busy: Buffers that are read or written.
        may_forget: Whether other nodes, too, need no parts of ranks that have left.
        with_fourth: Ranks that use four (`fourth`).
    """
    newest = common(holdings)
    has_own = may_forget and has_moved_on(holdings)
    used = {
        id_
        for rank, size_bytes in needed_bytes.items()
        for id_ in large(holdings, rank, size_bytes, BUFFERS + (rank in with_fourth))
    }

    def may_go(each: HeldBuffer) -> bool:
        if each.rank not in holdings.ranks:
            return has_own
        if each.rank not in needed_bytes or each.id in used:
            return False
        return each.part is None or is_spare(holdings, each.part, newest)

    return tuple(each.id for each in holdings.buffers if each.id not in busy and may_go(each))


def has_moved_on(holdings: Holdings) -> bool:
    """Whether the ranks of this node have saved something in common in this attempt."""
    newest = common(holdings)
    return newest is not None and newest[0] == holdings.attempt


def left_behind(holdings: Holdings, busy: Collection[int]) -> tuple[int, ...]:
    """Return the buffers of ranks that are not this node's any more: the first to go where there is too little memory."""
    return tuple(each.id for each in holdings.buffers if each.id not in busy and each.rank not in holdings.ranks)
