"""What an agent tells its controller of NCCL in its ranks, window by window. No behaviour."""

from __future__ import annotations

from typing import Annotated

import msgspec

from robust_run.tracer.nccl.work import RankWork


class NcclWindow(msgspec.Struct, frozen=True, tag="nccl_window", kw_only=True):
    """What ranks of a node did inside NCCL in one window; for the controller alone, as `Paces` is."""

    attempt: int
    number: int
    """Of the window: windows of all nodes begin at multiples of their length, by the node's calendar."""
    works: tuple[RankWork, ...]
    past: tuple[RankWork, ...] = ()
    """What ranks did in the minutes before, where they are looked at anew."""
    nics: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=300)], ...], msgspec.Meta(max_length=32)] = ()
    """What NICs of the node are unlike their peers, a line each; where they were looked at."""
