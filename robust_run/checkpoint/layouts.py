"""Tensors that are spread over ranks (DTensor: FSDP2, tensor parallel): what this rank has, and how that is written down.

torch's module for them takes long to import; where nobody has imported it there are none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from robust_run.checkpoint.types import Layout, SavedTensor
from robust_run.ckpt_io.dcp.tensors import dtype_of
from robust_run.errors import UserError


def is_spread(tensor: torch.Tensor) -> bool:
    """Whether this rank has a share of it only."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank has of it, without a copy."""
    tensor = tensor.detach()
    return tensor.to_local() if is_spread(tensor) else tensor


def repeats(tensor: torch.Tensor) -> bool:
    """Whether several of its elements are one in memory, as after `expand`."""
    return not is_spread(tensor) and any(
        size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def layout_of(tensor: torch.Tensor) -> Layout | None:
    """Return how it is spread; None: it is not."""
    if not is_spread(tensor):
        return None
    mesh: Any = tensor.device_mesh
    placements = tuple(map(repr, tensor.placements))
    offsets = _offsets(tuple(tensor.shape), mesh, tuple(tensor.placements))
    return Layout(
        tuple(mesh.shape), tuple(mesh.mesh_dim_names or ()), placements, tuple(local_of(tensor).shape), offsets
    )


@lru_cache(maxsize=4096)
def _offsets(shape: tuple[int, ...], mesh: Any, placements: tuple[Any, ...]) -> tuple[int, ...]:
    """Return where this rank's share begins, as torch's own checkpoints say it. Asked anew at each step: so it is kept."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offsets = compute_local_shape_and_global_offset(shape, mesh, placements)
    return tuple(int(each) for each in offsets)


def alias_key(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return what two names of one tensor have in common: the memory and how it is read."""
    layout = layout_of(tensor)
    local = tensor if layout is None else local_of(tensor)
    read_as = (local.dtype, local.shape, local.stride(), local.is_conj(), local.is_neg(), layout)
    return (local.data_ptr(), local.device, *read_as)


def fresh(saved: SavedTensor, like: torch.Tensor | None, known: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return memory for a tensor that the program has not made yet, as an optimizer's before its first step.

    It is spread as `like` is, if that has its shape; else as one of the `known` that are spread over the same mesh.

    Raises:
        UserError: It was spread, and nothing says over what.
    """
    dtype = dtype_of(saved.dtype)
    if saved.layout is None:
        return torch.empty(saved.shape, dtype=dtype)
    if like is not None and tuple(like.shape) == saved.shape:
        return (
            torch.empty_like(like.detach(), dtype=dtype) if is_spread(like) else torch.empty(saved.shape, dtype=dtype)
        )
    for other in known:
        found = layout_of(other)
        if found is not None and (found.mesh, found.names) == (saved.layout.mesh, saved.layout.names):
            return _spread_as(saved, dtype, other)
    raise UserError(
        f"{saved.name} was spread over a mesh {saved.layout.mesh}, which nothing in the state is: shard it first"
    )


def _spread_as(saved: SavedTensor, dtype: torch.dtype, other: Any) -> torch.Tensor:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    assert saved.layout is not None
    known = [Replicate(), *(Shard(dimension) for dimension in range(len(saved.shape)))]
    by_name = {repr(placement): placement for placement in known}
    if missing := [each for each in saved.layout.placements if each not in by_name]:
        raise UserError(f"{saved.name} was placed as {missing[0]}: make it before it is loaded")
    local = torch.empty(saved.layout.local, dtype=dtype, device=local_of(other).device)
    whole = torch.empty(saved.shape, device="meta")
    placements = [by_name[each] for each in saved.layout.placements]
    return DTensor.from_local(
        local, other.device_mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )
