"""The copy of a state dict that is saved while training goes on: into memory that is mapped and touched already.

Fresh memory takes several times as long as warm: so the buffers of one save are those of the next. Small things (objects,
tensors that are not dense) are copied as they are, into fresh memory.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint.stateful import Stateful

from robust_run.ckpt_io.dcp.pinning import Library, Pinned, cudart
from robust_run.ckpt_io.dcp.to_host import copy_to_host

_ALIGNMENT_BYTES = 64
#: What a buffer is longer than what it was made for, so that a state may grow a little.
_SLACK = 64
Shapes = tuple[tuple[torch.dtype, torch.Size], ...]


class Room:
    """One buffer, and the tensors over it as they were laid out last."""

    def __init__(self, size_bytes: int, *, is_shared: bool = False, library: Library = cudart) -> None:
        """`is_shared`: other processes can map it. `library`: see `Pinned`."""
        self.size_bytes, self.is_shared, self._library = size_bytes, is_shared, library
        self._memory = torch.empty(size_bytes, dtype=torch.uint8)
        if is_shared:
            self._memory.share_memory_()
        self._pinned: Pinned | None = None
        self._shapes: Shapes = ()
        self._places: list[torch.Tensor] = []

    def places(self, shapes: Shapes, *, pin: bool) -> list[torch.Tensor]:
        """Return a tensor over the buffer for each shape; it has room for them. `pin`: a GPU will copy into them."""
        if pin and self._pinned is None:
            self._pinned = Pinned(self._memory.data_ptr(), self.size_bytes, self._library())
        if shapes != self._shapes:
            self._places, at_bytes = [], 0
            for dtype, shape in shapes:
                end_bytes = at_bytes + shape.numel() * dtype.itemsize
                self._places.append(self._memory[at_bytes:end_bytes].view(dtype).view(shape))
                at_bytes = _up(end_bytes)
            self._shapes = shapes
        return self._places

    def close(self) -> None:
        """Let it go. What still looks at its tensors keeps the memory."""
        if self._pinned is not None:
            self._pinned.close()


def bytes_for(shapes: Shapes) -> int:
    """Return what a room for these shapes must have."""
    return sum(_up(shape.numel() * dtype.itemsize) for dtype, shape in shapes)


def with_slack(size_bytes: int) -> int:
    """Return how long a room for so many bytes is made."""
    return size_bytes + size_bytes // _SLACK


@dataclass
class Taken:
    """A state dict, taken apart. Nothing is copied yet."""

    outline: Any
    """The state dict with a number, as `_At`, for each tensor that is copied."""
    tensors: list[torch.Tensor] = field(default_factory=list)
    """What is in memory under several names is in here once."""

    @property
    def shapes(self) -> Shapes:
        """What a room must have places for."""
        return tuple((tensor.dtype, tensor.shape) for tensor in self.tensors)

    def copied_into(self, room: Room) -> Any:
        """Copy the tensors, and return the state dict of copies. When it returns, the state may change."""
        places = room.places(self.shapes, pin=any(tensor.device.type == "cuda" for tensor in self.tensors))
        with torch.no_grad():
            copy_to_host(places, self.tensors)
        return _filled(self.outline, places)


@dataclass(frozen=True)
class _At:
    """Where the copy of a tensor is to stand; `shard_of`: it is this rank's share of that DTensor."""

    number: int
    shard_of: Any = None


def take(state: Mapping[str, Any]) -> Taken:
    """Take a state dict apart: objects with a state of their own are asked for it, as torch does, and plain values are copied."""
    taken = Taken(outline=None)
    seen: dict[tuple[object, ...], int] = {}

    def at(tensor: torch.Tensor) -> int:
        key = (
            tensor.data_ptr(),
            tensor.device,
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
            tensor.is_conj(),
            tensor.is_neg(),
        )
        number = seen.setdefault(key, len(taken.tensors)) if tensor.numel() else len(taken.tensors)
        if number == len(taken.tensors):
            taken.tensors.append(tensor)
        return number

    def outline(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            local = _dense(value)
            if local is None:
                return _as_torch_does(value)
            return _At(at(local), None if type(value) in _PLAIN else value)
        if isinstance(value, Mapping):
            return {key: outline(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return (list if isinstance(value, list) else tuple)([outline(inner) for inner in value])
        return copy.deepcopy(value)

    with torch.no_grad():
        taken.outline = {
            key: outline(value.state_dict() if isinstance(value, Stateful) else value) for key, value in state.items()
        }
    return taken


def copy_of(state: Mapping[str, Any]) -> Any:
    """Return a copy of a state dict in CPU memory of its own. When it returns, the state may change."""
    taken = take(state)
    # Not page-locked: nobody would say when its memory is given back.
    return taken.copied_into(Room(bytes_for(taken.shapes), library=lambda: None))


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _dense(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the elements that this rank has; None: they are not in C order in any memory (sparse, meta, a subclass)."""
    local = tensor
    if type(tensor) not in _PLAIN:
        from torch.distributed.tensor import DTensor

        if type(tensor) is not DTensor:
            return None
        local = tensor.detach()._local_tensor
    local = local.detach()
    is_dense = type(local) in _PLAIN and local.layout is torch.strided and not local.is_meta and not local.is_quantized
    return local if is_dense else None


def _as_torch_does(tensor: Any) -> Any:
    """Return a copy, on the CPU, of what is no plain memory; what cannot be saved is refused by the writer."""
    if type(tensor) in _PLAIN:
        return tensor.detach().clone()
    from torch.distributed._state_dict_utils import _copy_state_dict, _create_cpu_state_dict

    of_one = {"tensor": tensor}
    fresh = _create_cpu_state_dict(of_one)
    return _copy_state_dict(of_one, fresh)["tensor"]


def _filled(outline: Any, places: list[torch.Tensor]) -> Any:
    if isinstance(outline, _At):
        place = places[outline.number]
        if outline.shard_of is None:
            return place
        shard = type(outline.shard_of)(torch.empty_like(place), outline.shard_of._spec, requires_grad=False)
        shard._local_tensor = place  # made of it, it had its offset too, and torch would look for memory of its own
        return shard
    if isinstance(outline, dict):
        return {key: _filled(inner, places) for key, inner in outline.items()}
    if type(outline) in (list, tuple):
        return type(outline)([_filled(inner, places) for inner in outline])
    return outline


def _up(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
