"""Whose units are: those of a sharded state are read by the rank that saved them, all others by everybody. Pure.

A checkpoint of FSDP is cut into as many shards as there are ranks, and each rank loads its own again: a node that fetched all of
them would fetch most in vain. What lies in one piece (a state that all ranks have, as under DDP, or a pipeline's stage)
does not say who reads it, so every node fetches it. Nothing is known of a checkpoint that another number of ranks has saved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from robust_run.ckpt_io.ahead.area import UnitTable
from robust_run.ckpt_io.ahead.rules import EVERYBODYS
from robust_run.ckpt_io.rules.boxes import box_bytes
from robust_run.ckpt_io.rules.types import Manifest

SOMEBODYS = -2
"""It is read by a node that gives us nothing."""
Ranks = tuple[int, int]
"""The first rank of a node, and how many it has."""

_FILE_OF_RANK = re.compile(r"rank-(\d{5,9})\.bin")


def belonging(manifest: Manifest, table: UnitTable, nodes: Sequence[Ranks], world_size: int) -> list[int]:
    """Return the node that reads each unit, or `EVERYBODYS`, or `SOMEBODYS`. `nodes`: the ranks of each one that shares."""
    found = [EVERYBODYS] * table.units
    if manifest.facts.get("world_size") != str(world_size):
        return found
    owners = [_owner(file.name, nodes) for file in manifest.files]
    sharded = _sharded_bytes(manifest, table, world_size)
    for number in range(table.units):
        file, unit = table.unit(number)
        size = min(
            manifest.files[file].unit_bytes, manifest.files[file].size_bytes - unit * manifest.files[file].unit_bytes
        )
        owner = owners[file]
        if owner is not None and 2 * sharded[number] > size:
            found[number] = owner
    return found


def _owner(name: str, nodes: Sequence[Ranks]) -> int | None:
    """Return the node of the rank that saved a file; None: that is no file of a rank."""
    match = _FILE_OF_RANK.fullmatch(name)
    if match is None:
        return None
    rank = int(match[1])
    return next((node for node, (first, count) in enumerate(nodes) if first <= rank < first + count), SOMEBODYS)


def _sharded_bytes(manifest: Manifest, table: UnitTable, world_size: int) -> list[int]:
    """Return how many bytes of each unit are shards: chunks of a tensor of which each rank has one.

    A tensor of fewer chunks has replicas (HSDP), and who has saved a chunk is one of several who read it.
    """
    found = [0] * table.units
    for tensor in manifest.tensors:
        if world_size < 2 or len(tensor.chunks) < world_size:
            continue
        for chunk in tensor.chunks:
            unit_bytes, at = manifest.files[chunk.file].unit_bytes, chunk.offset_bytes
            end = at + box_bytes(chunk.sizes, tensor.dtype)
            while at < end:
                unit = at // unit_bytes
                until = min(end, (unit + 1) * unit_bytes)
                found[table.number(chunk.file, unit)] += until - at
                at = until
    return found
