"""From the objects of a program to tensors and nodes: what is saved."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch

from robust_run.checkpoint.errors import StateRefused
from robust_run.checkpoint.layouts import alias_key, layout_of, local_of
from robust_run.checkpoint.rules.tree import OBJECT, TENSOR, Node, Packer, Path, shown
from robust_run.checkpoint.types import NAME_CHARACTERS, RESERVED, SavedTensor
from robust_run.ckpt_io.dcp.tensors import dtype_name
from robust_run.ckpt_io.rules.boxes import BYTES_OF
from robust_run.errors import UserError

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_DTYPES = frozenset(filter(None, (getattr(torch, name, None) for name in BYTES_OF)))


@dataclass(frozen=True)
class Gathered:
    """A state, taken apart. Nothing is copied yet."""

    tensors: tuple[torch.Tensor, ...]
    saved: tuple[SavedTensor, ...]
    """In the same order."""
    tree: Node


def gather(state: dict[str, object]) -> Gathered:
    """Take a state apart. Raises StateRefused: something in it cannot be kept."""
    if not isinstance(state, dict):
        raise UserError(f"the state is a {type(state).__name__}: give a dict of what is to be saved")
    gathering = _Gathering()
    with torch.no_grad():
        tree = gathering.packer.pack(state, ())
    if gathering.packer.refused:
        raise StateRefused(gathering.packer.refused)
    return Gathered(tuple(gathering.tensors), tuple(gathering.saved), tree)


def has_state(value: object) -> bool:
    """Whether an object can be asked for its state, and be given it again."""
    if isinstance(value, (type, dict, torch.Tensor)):
        return False
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


class _Gathering:
    def __init__(self) -> None:
        self.packer = Packer(self._leaf)
        self.tensors: list[torch.Tensor] = []
        self.saved: list[SavedTensor] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        self._names: set[str] = set()

    def _leaf(self, value: object, path: Path) -> Node | None:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if has_state(value):
            return [OBJECT, self.packer.pack(value.state_dict(), path)]  # type: ignore[attr-defined]
        return None

    def _tensor(self, tensor: torch.Tensor, path: Path) -> Node:
        """Memory that has two names is kept once, so that it is loaded into one place."""
        reason = _why_not(tensor)
        if reason:
            self.packer.refuse(path, reason)
            return [TENSOR, 0]
        number = self._numbers.setdefault(alias_key(tensor), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(tensor.detach())
            name = self._name(path)
            if len(name) > NAME_CHARACTERS:
                self.packer.refuse(
                    path, f"has a name of {len(name)} characters, at most {NAME_CHARACTERS} are possible"
                )
            dtype = dtype_name(tensor.dtype, name)
            self.saved.append(SavedTensor(name, dtype, tuple(tensor.shape), layout_of(tensor)))
        return [TENSOR, number]

    def _name(self, path: Path) -> str:
        """Return a name of its own: `a.b` may be one key, or two."""
        plain = shown(path)
        name, count = plain, 1
        while name in self._names or name.startswith(RESERVED):
            count += 1
            name = f"{'' if not plain.startswith(RESERVED) else '.'}{plain}#{count}"
        self._names.add(name)
        return name


def _why_not(tensor: torch.Tensor) -> str:
    """Return why the bytes of a tensor cannot be kept; empty: they can."""
    if type(tensor) in _PLAIN and tensor.dtype in _DTYPES and tensor.layout is torch.strided and not tensor.is_meta:
        return ""
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        return "has no shape yet: run the model once before it is saved"
    if type(tensor).__name__ == "ShardedTensor":  # it cannot be asked for anything that a tensor can
        return (
            "is a ShardedTensor, of FSDP1: use FSDP2 (fully_shard), or give FSDP1 a device_mesh=, which makes DTensors"
        )
    local = local_of(tensor)
    if local.is_meta:
        return "is on the meta device and has no elements: give it memory before it is saved"
    if local.layout != torch.strided:
        return f"has layout {local.layout}, only dense ones are saved: save its parts, or to_dense()"
    try:
        dtype_name(local.dtype, "")
    except UserError as error:
        return str(error).removeprefix("tensor '' ")
    module = sys.modules.get("torch.utils._python_dispatch")
    if module is not None and module.is_traceable_wrapper_subclass(local):
        return f"is a {type(local).__name__}, made of other tensors: save those"
    return ""
