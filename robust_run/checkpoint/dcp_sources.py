"""A saved state as torch's planners see it: which keys it has, which boxes of its tensors there are, and where they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem

from robust_run.checkpoint import storage, together
from robust_run.checkpoint.memory import OpenPart
from robust_run.checkpoint.rules.tree import unpack
from robust_run.checkpoint.spreading import Spread
from robust_run.checkpoint.types import SavedTensor, Values, stored_name
from robust_run.ckpt_io.dcp.reader import RobustReader
from robust_run.ckpt_io.dcp.tensors import dtype_of
from robust_run.ckpt_io.errors import CheckpointError


@dataclass(frozen=True)
class Contents:
    """A saved state by the keys that torch's planners make of it: it is flattened by torch, as the one to be loaded is."""

    tensors: Mapping[str, int]
    """Their numbers; one in memory may have several keys."""
    plain: Mapping[str, Any]
    paths: Mapping[str, Any]

    @classmethod
    def of(cls, values: Values) -> Contents:
        """Return what is in a state."""
        stand_ins = [torch.empty(0) for _ in values.tensors]
        numbers = {id(each): number for number, each in enumerate(stand_ins)}
        flat, paths = flatten_state_dict(unpack(values.tree, stand_ins.__getitem__))
        tensors = {key: numbers[id(value)] for key, value in flat.items() if id(value) in numbers}
        return cls(tensors, {key: value for key, value in flat.items() if key not in tensors}, paths)


class Source(Protocol):
    """Where tensors come from. Items are named by keys of `Contents`, whose numbers come along."""

    @property
    def values(self) -> Values:
        """All else."""

    @property
    def stream(self) -> str:
        """The folder that it belongs to."""

    def entry(self, number: int) -> TensorStorageMetadata:
        """Return which boxes of a tensor there are. Together they cover it, or torch would leave a rest as it is."""

    def check(self, items: Sequence[ReadItem], numbers: Mapping[str, int]) -> None:
        """Raise CheckpointError: one of these cannot be had here."""

    def local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return a rank's plan with what the ranks must agree on."""

    def global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans. Raises Mixed: ranks do not agree."""

    def read(self, items: Sequence[ReadItem], numbers: Mapping[str, int], planner: LoadPlanner) -> None:
        """Fill the tensors of a planner. Raises CheckpointError."""

    def close(self) -> None:
        """Let go of it."""


@dataclass(frozen=True)
class FromMemory:
    """This rank's part of a generation. What other ranks have of a tensor is named, so that it is refused and not left out."""

    part: OpenPart

    @property
    def values(self) -> Values:
        """All but the tensors."""
        return self.part.values

    @property
    def stream(self) -> str:
        """The folder that it belongs to."""
        return self.part.stream

    def entry(self, number: int) -> TensorStorageMetadata:
        """Return the box that this rank has, and boxes around it."""
        saved = self.values.tensors[number]
        own = _own_box(saved)
        boxes = [own] if all(own[1]) else []
        return _entry(saved, [*boxes, *_around(saved.shape, *own)])

    def check(self, items: Sequence[ReadItem], numbers: Mapping[str, int]) -> None:
        """Raise CheckpointError: one of them asks for what another rank has."""
        for item in items:
            saved = self.values.tensors[numbers[item.storage_index.fqn]]
            offsets, sizes = _own_box(saved)
            if all(item.lengths) and not (all(sizes) and tuple(item.storage_index.offset or ()) == offsets):
                raise CheckpointError(
                    f"{item.storage_index.fqn} is not spread as it was when it was saved ({saved.layout}): memory holds it in "
                    "that layout only; start from storage, which can be spread anew"
                )

    def local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan as it is: that ranks have the same step was seen to when it was opened."""
        return plan

    def global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are."""
        return plans

    def read(self, items: Sequence[ReadItem], numbers: Mapping[str, int], planner: LoadPlanner) -> None:
        """Copy out of the buffer."""
        for item in items:
            target = planner.resolve_tensor(item).detach()
            source = self.part.tensor(numbers[item.storage_index.fqn])
            for dimension, (begin, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                source = source.narrow(dimension, begin, length)
            target.copy_(source)
            planner.commit_tensor(item, target)

    def close(self) -> None:
        """Let the buffer be used again."""
        self.part.close()


class FromStorage:
    """A checkpoint of `checkpoint.save`, whose tensors have names of their own; or parts in memory that are read as one is."""

    def __init__(self, reader: RobustReader, values: Values, close: Callable[[], None] | None = None) -> None:
        self.values = values
        self._reader, self._close = reader, close or reader.close
        self._metadata: Metadata = self._reader.read_metadata()
        self._reader.set_up_storage_reader(self._metadata, is_coordinator=False)

    @classmethod
    def opened(cls, url: str) -> FromStorage:
        """Open a checkpoint; all ranks take part. Raises CheckpointError."""
        values = storage.load_values(url)
        return together.all_or_none(lambda: cls(RobustReader(url), values))

    @classmethod
    def of_memory(cls, spread: Spread) -> FromStorage:
        """Read a generation of more or fewer ranks; all ranks take part. Raises CheckpointError."""
        return together.all_or_none(lambda: cls(spread.reader, spread.values, spread.close))

    @property
    def stream(self) -> str:
        """The folder that it belongs to."""
        return self.values.stream

    def entry(self, number: int) -> TensorStorageMetadata:
        """Return the boxes of all ranks. Raises CheckpointError: there is no such tensor."""
        name = stored_name(self.values, number)
        found = self._metadata.state_dict_metadata.get(name)
        if not isinstance(found, TensorStorageMetadata):
            raise CheckpointError(f"{self._reader.checkpoint_id} contradicts itself: it has no tensor {name!r:.200}")
        return found

    def check(self, items: Sequence[ReadItem], numbers: Mapping[str, int]) -> None:
        """All ranks' are here."""

    def local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan with what this rank has opened."""
        return self._reader.prepare_local_plan(plan)

    def global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans. Raises Mixed: ranks opened different checkpoints."""
        return self._reader.prepare_global_plan(plans)

    def read(self, items: Sequence[ReadItem], numbers: Mapping[str, int], planner: LoadPlanner) -> None:
        """Read them, verified."""
        named = [replace(item, storage_index=self._named(item.storage_index, numbers)) for item in items]
        self._reader.read_data(LoadPlan(named), planner)

    def close(self) -> None:
        """Let go of what is read."""
        self._close()

    def _named(self, index: MetadataIndex, numbers: Mapping[str, int]) -> MetadataIndex:
        return MetadataIndex(stored_name(self.values, numbers[index.fqn]), index.offset)


Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Where it begins, and its sizes."""


def _own_box(saved: SavedTensor) -> Box:
    """Return what this rank has of a tensor. Raises CheckpointError: it was not written down where that begins."""
    if saved.layout is None:
        return (0,) * len(saved.shape), saved.shape
    if saved.layout.offsets is None:
        raise CheckpointError(f"it is not known which share of {saved.name} this is: load it with checkpoint.load")
    return saved.layout.offsets, saved.layout.local


def _around(shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[Box]:
    """Yield boxes that cover a tensor together with this one, none of which overlap."""
    if not all(sizes):
        if all(shape):
            yield (0,) * len(shape), shape
        return
    for dimension, whole in enumerate(shape):
        begin, end = offsets[dimension], offsets[dimension] + sizes[dimension]
        for at, length in ((0, begin), (end, whole - end)):
            if length:
                yield (
                    (*offsets[:dimension], at, *([0] * (len(shape) - dimension - 1))),
                    (*sizes[:dimension], length, *shape[dimension + 1 :]),
                )


def _entry(saved: SavedTensor, boxes: Sequence[Box]) -> TensorStorageMetadata:
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=dtype_of(saved.dtype)),
        size=torch.Size(saved.shape),
        chunks=[ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in boxes],
    )
