"""`save`, `load` and their like: `torch.distributed.checkpoint` with our writer and reader, and errors as plain as they can be.

All of them work with a process group and without: without one, this process is the world.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlanner, SavePlanner

from robust_run.ckpt_io.dcp.agreement import OpenedByRank, disagreement
from robust_run.ckpt_io.dcp.alone import load_alone
from robust_run.ckpt_io.dcp.failures import plain_errors
from robust_run.ckpt_io.dcp.in_place import InPlacePlanner
from robust_run.ckpt_io.dcp.quiet import alone_is_fine
from robust_run.ckpt_io.dcp.reader import RobustReader, Verify
from robust_run.ckpt_io.dcp.whole import empty_state
from robust_run.ckpt_io.dcp.writer import RobustWriter
from robust_run.ckpt_io.errors import Mixed, PeerFailed
from robust_run.ckpt_io.rules.types import UNIT_BYTES, Codec
from robust_run.errors import RobustRunError

Where = str | os.PathLike[str]


def save(  # noqa: PLR0913 - options, all by name and with a default
    state: Mapping[str, Any],
    url: Where,
    *,
    also: Sequence[str] = (),
    step: int | None = None,
    facts: Mapping[str, str] | None = None,
    codec: Codec = "none",
    unit_bytes: int = UNIT_BYTES,
    durable: bool = True,
    threads: int | None = None,
    planner: SavePlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
    progress: Callable[[int], None] | None = None,
) -> Metadata:
    """Save a state dict; all ranks of the process group take part. When it returns, the checkpoint exists, whole and durable.

    Raises:
        CheckpointError, StoreError: A target failed. A checkpoint that had the name before is as it was.
        UserError: The address is none, or something cannot be saved.
        Exception: what the program's own objects raised, on some rank.
    """
    writer = RobustWriter(
        url,
        also=also,
        step=step,
        facts=facts,
        codec=codec,
        unit_bytes=unit_bytes,
        durable=durable,
        threads=threads,
        progress=progress,
    )
    try:
        with plain_errors(), alone_is_fine():
            return dcp.save(dict(state), storage_writer=writer, planner=planner, process_group=process_group)
    finally:
        writer.abandon()  # of a save that is over this does nothing


def load(  # noqa: PLR0913 - options, all by name and with a default
    state: dict[str, Any],
    url: Where,
    *,
    also: Sequence[str] = (),
    broadcast_group: dist.ProcessGroup | None = None,
    trust_objects: bool = False,
    verify: Verify = "touched",
    threads: int | None = None,
    planner: LoadPlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Load what `state` names into it, in place; all ranks of the process group take part, each with its own shards.

    For the options see `RobustReader`. When it raises, tensors of `state` may hold anything.

    Raises:
        CheckpointError, StoreError: The checkpoint cannot be opened or read, or is not what was saved; on all ranks alike.
        Mixed: Ranks opened different checkpoints: one that was saved anew meanwhile, or folders that differ between nodes.
        UserError: The address is none, or a tensor cannot be loaded into.
        RuntimeError, ValueError: torch's: the state dict and the checkpoint do not fit (keys, shapes).
    """
    reader = RobustReader(
        url,
        also=also,
        broadcast_group=broadcast_group,
        trust_objects=trust_objects,
        verify=verify,
        threads=threads,
        progress=progress,
    )
    load_by(reader, state, planner=planner, process_group=process_group)


def load_by(
    reader: RobustReader,
    state: dict[str, Any],
    *,
    planner: LoadPlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
) -> None:
    """Load with a reader that is made already, as `load` does; it is closed then."""
    try:
        _open_together(reader, process_group)
        with plain_errors(), alone_is_fine():
            by = InPlacePlanner() if planner is None else planner
            dcp.load(state, storage_reader=reader, planner=by, process_group=process_group)
    finally:
        reader.close()


def load_whole(
    url: Where,
    *,
    also: Sequence[str] = (),
    trust_objects: bool = False,
    verify: Verify = "touched",
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Return all of a checkpoint as a nested state dict on the CPU; for one process, in any group or none.

    Tuples of the state dict that was saved come back as lists, keys that were no text as text, and empty dicts not at all: DCP
    keeps no more.

    Raises:
        As `load`.
    """
    reader = RobustReader(
        url, also=also, trust_objects=trust_objects, verify=verify, threads=threads, progress=progress
    )
    try:
        state = empty_state(reader.opened().manifest)
        with plain_errors(), alone_is_fine():
            load_alone(state, reader)
    finally:
        reader.close()
    return state


def _open_together(reader: RobustReader, group: dist.ProcessGroup | None) -> None:
    """Open one checkpoint on every rank, or raise on every rank. torch would make an AssertionError of it."""
    error: RobustRunError | None = None
    mine: OpenedByRank | None = None
    try:
        mine = reader.opening()
    except RobustRunError as failed:
        error = failed
    if dist.is_available() and dist.is_initialized():
        said: list[tuple[str | None, OpenedByRank | None]] = [(None, None)] * dist.get_world_size(group)
        dist.all_gather_object(said, (None if error is None else str(error), mine), group=group)
        foreign = next(((rank, text) for rank, (text, _) in enumerate(said) if text is not None), None)
        if error is None and foreign is not None:
            raise PeerFailed(f"rank {foreign[0]}: {foreign[1]}")
        wrong = disagreement(opened for _, opened in said if opened is not None)
        if error is None and wrong:
            raise Mixed(wrong)
    if error is not None:
        raise error
