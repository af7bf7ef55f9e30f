"""The words of a saved state: what is kept beside the bytes of its tensors."""

from __future__ import annotations

from typing import Any

import msgspec

from robust_run.ckpt_io.rules.keeping import KeepNewest
from robust_run.ckpt_io.rules.manifest import TEXT_BYTES

SCHEMA = 1
RESERVED = "robust-run/"
"""Tensors of a checkpoint whose names begin with this are none of the state's."""
NAME_CHARACTERS = TEXT_BYTES - 96
"""Of a tensor's name: storage may put the rank before it."""


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """How a tensor is spread over ranks."""

    mesh: tuple[int, ...]
    """Sizes of the device mesh."""
    names: tuple[str, ...]
    """Of its dimensions; empty: they have none."""
    placements: tuple[str, ...]
    """One a dimension of the mesh, as torch writes them."""
    local: tuple[int, ...]
    """The shape of this rank's share."""
    offsets: tuple[int, ...] | None = None
    """Where that begins in the whole tensor; None: it was not said."""


class SavedTensor(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of a state."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    """Of the whole tensor, whoever has its shares."""
    layout: Layout | None = None
    """None: this rank has all of it."""

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Of what this rank has."""
        return self.shape if self.layout is None else self.layout.local


class Values(msgspec.Struct, frozen=True, kw_only=True):
    """All of one rank's state but the bytes of its tensors."""

    schema: int = SCHEMA
    step: int
    rank: int
    world_size: int
    tensors: tuple[SavedTensor, ...]
    tree: Any
    """The state as nodes of `tree`, which name tensors by their position."""
    random: Any
    """The same, of the states of random number generators."""
    stream: str = ""
    """The folder that it belongs to; empty: none was named."""
    written_by: str = ""
    """Which version of which job's code (see `ckpt_io.newest.written_by`); empty: it is not known."""
    own: tuple[int, ...] = ()
    """Tensors that other ranks have under the same name with other content; in storage, each rank's are kept."""
    keeping: KeepNewest | None = None
    """In memory: what becomes of older checkpoints once storage has this; None: they stay."""


def values_name(rank: int) -> str:
    """Return the name under which storage has a rank's `Values`, as bytes."""
    return f"{RESERVED}values/{rank}"


def stored_name(values: Values, number: int) -> str:
    """Return the name under which storage has a tensor."""
    name = values.tensors[number].name
    return f"{RESERVED}rank-{values.rank}/{name}" if number in values.own else name
