"""Loading through `torch.distributed.checkpoint`: each rank reads what it needs, verified, straight into its tensors.

    dcp.load(state, storage_reader=RobustReader("rrck:///ssd0/run/step-4000?also=/ssd1/run"))

or `load` of this package, which does the same and has plainer errors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import StorageReader
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from robust_run.ckpt_io import address
from robust_run.ckpt_io.dcp.agreement import OpenedByRank, disagreement, opened_by
from robust_run.ckpt_io.dcp.broadcast import Exchange
from robust_run.ckpt_io.dcp.failures import travels
from robust_run.ckpt_io.dcp.landing import Landing, LandingMemory, aligned, batches, landings
from robust_run.ckpt_io.dcp.metadata import metadata_of
from robust_run.ckpt_io.dcp.tensors import byte_view, device_of, vouched
from robust_run.ckpt_io.errors import CheckpointError, Mixed
from robust_run.ckpt_io.reading import Wanted, open_checkpoint
from robust_run.ckpt_io.rules.ranges import Box
from robust_run.ckpt_io.rules.segments import Segment
from robust_run.ckpt_io.rules.types import Manifest
from robust_run.errors import UserError

Verify = Literal["full", "touched", "off"]


class ReadsRanges(Protocol):
    """A checkpoint, open for reading: what a `Checkpoint` is, wherever its bytes are."""

    @property
    def manifest(self) -> Manifest:
        """Say what is in it."""

    @property
    def url(self) -> str:
        """Return where it is, for people."""

    def read(self, wanted: Sequence[Wanted], progress: Callable[[int], None] | None = None) -> None:
        """Fill all buffers."""

    def close(self) -> None:
        """Let go of it."""


Opener = Callable[..., ReadsRanges]
#: Objects that are in memory at once, besides one that is larger.
_OBJECT_BYTES = 64 << 20


@dataclass(frozen=True)
class _Resolved:
    """An item of the plan, and the tensor that it goes into; of an object: memory for its bytes."""

    item: ReadItem
    tensor: torch.Tensor


class RobustReader(StorageReader):  # type: ignore[misc]
    """A storage reader for checkpoints of `RobustWriter`, of any number of ranks, read by any number of ranks.

    `broadcast_group`: a process group whose ranks want much the same, as a data-parallel group. Each unit is then read by one
    of them and broadcast to those that want it too; all ranks of the group must load at once. `trust_objects`: objects of the
    state dict may run code, as any pickle may. `verify`, `threads`: see `open_checkpoint`. `progress` is told of bytes, from any
    thread.

    Errors of ours come out of `dcp.load` within torch's `CheckpointException` (see `failures`), and those of opening a
    checkpoint as text of an AssertionError within it.
    """

    def __init__(
        self,
        checkpoint_id: str | os.PathLike[str] | None = None,
        *,
        also: Sequence[str] = (),
        broadcast_group: dist.ProcessGroup | None = None,
        trust_objects: bool = False,
        verify: Verify = "touched",
        threads: int | None = None,
        progress: Callable[[int], None] | None = None,
        opener: Opener = open_checkpoint,
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self._also = tuple(also)
        self._group = broadcast_group
        self._trust_objects = trust_objects
        self._verify = verify
        self._threads = threads
        self._progress = progress
        self._opener = opener
        self._open: ReadsRanges | None = None
        self._segments: dict[MetadataIndex, Segment] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Read another checkpoint from here on, or the same one anew."""
        self.close()
        if checkpoint_id is not None:
            self.checkpoint_id = checkpoint_id

    def close(self) -> None:
        """Let go of the files. Done by itself after a load."""
        if self._open is not None:
            self._open.close()
        self._open = None

    def opened(self) -> ReadsRanges:
        """Return the checkpoint, opened by now.

        Raises:
            NotACheckpoint, ManifestRefused, TargetLost: It cannot be.
            UserError: No checkpoint was named.
        """
        if self._open is None:
            if self.checkpoint_id is None:
                raise UserError(
                    "no checkpoint to load: give RobustReader its path or URL, or checkpoint_id= to dcp.load"
                )
            self._open = self._opener(
                os.fspath(self.checkpoint_id), also=self._also, threads=self._threads, verify=self._verify
            )
        return self._open

    @travels
    def read_metadata(self, *_args: Any, **_options: Any) -> Metadata:
        """Return what the checkpoint has. torch may ask for that of one rank (`rank=`): there is one for all ranks."""
        checkpoint = self.opened()
        return metadata_of(checkpoint.manifest, checkpoint.url)

    @travels
    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_args: Any, **_kwargs: Any) -> None:  # noqa: ARG002
        """Take the metadata that `read_metadata` returned."""
        self._segments = metadata.storage_data

    @travels
    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan with what this rank has opened: the coordinator holds that against the other ranks'."""
        return replace(plan, storage_data=self.opening())

    @travels
    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are: who reads for whom is agreed on in `read_data`, by the ranks of a group.

        Raises:
            Mixed: Ranks opened different checkpoints.
        """
        wrong = disagreement(plan.storage_data for plan in plans if isinstance(plan.storage_data, OpenedByRank))
        if wrong:
            raise Mixed(wrong)
        return plans

    def opening(self) -> OpenedByRank:
        """Return what this rank has opened, for the others. Raises as `opened`."""
        checkpoint = self.opened()
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        shares_with = dist.get_process_group_ranks(self._group) if self._group is not None else ()
        return opened_by(rank, checkpoint.manifest, checkpoint.url, shares_with=shares_with)

    @travels
    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill what the plan names.

        Raises:
            Damaged, TargetLost, Replaced: The checkpoint is not what was saved, or cannot be read.
            ObjectRefused: An object that is not trusted is more than plain values.
        """
        try:
            checkpoint = self.opened()
            if self._group is None:
                self._read_alone(checkpoint, plan, planner)
            else:
                self._read_shared(checkpoint, plan, planner, self._group)
        finally:
            self.close()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether this is a path or URL that a checkpoint can have. Nothing is looked up."""
        return address.is_valid(checkpoint_id)

    def _read_alone(self, checkpoint: ReadsRanges, plan: LoadPlan, planner: LoadPlanner) -> None:
        resolved = self._resolve(plan, planner)
        todo = self._landings(resolved, ("cpu",))
        scratch = LandingMemory(pinned=any(row.tensor.device.type == "cuda" for row in resolved))
        for batch in batches(todo):
            _read_batch(checkpoint, batch, scratch, self._progress)
        for row in resolved:
            planner.commit_tensor(row.item, row.tensor)
        for objects in self._object_batches(plan):
            for batch in batches(self._landings(objects, ("cpu",))):
                _read_batch(checkpoint, batch, scratch, self._progress)
            self._hand_over(checkpoint, objects, planner)

    def _read_shared(
        self, checkpoint: ReadsRanges, plan: LoadPlan, planner: LoadPlanner, group: dist.ProcessGroup
    ) -> None:
        """As `_read_alone`; a rank whose tensors cannot be loaded into still takes part, so that the others learn of it."""
        resolved: list[_Resolved] = []
        objects: list[_Resolved] = []
        todo: list[Landing] = []
        trouble: Exception | None = None
        try:
            resolved = self._resolve(plan, planner)
            objects = [row for batch in self._object_batches(plan) for row in batch]
            todo = self._landings([*resolved, *objects], ("cpu", device_of(group).type))
        except Exception as error:
            trouble = error
        Exchange(checkpoint, todo, group, trouble=trouble, progress=self._progress).run()
        for row in resolved:
            planner.commit_tensor(row.item, row.tensor)
        self._hand_over(checkpoint, objects, planner)

    def _resolve(self, plan: LoadPlan, planner: LoadPlanner) -> list[_Resolved]:
        items = [item for item in plan.items if item.type == LoadItemType.TENSOR]
        return [_Resolved(item, planner.resolve_tensor(item).detach()) for item in items]

    def _landings(self, resolved: Sequence[_Resolved], devices: Sequence[str]) -> list[Landing]:
        """Return what to read, in the order in which it lies in the files."""
        found: list[Landing] = []
        for row in resolved:
            segment, wanted = self._segment(row.item.storage_index), Box((0,), (row.tensor.numel(),))
            if row.item.type == LoadItemType.TENSOR:
                wanted = Box(tuple(row.item.storage_offsets), tuple(row.item.lengths))
            found.extend(landings(segment, wanted, row.tensor, row.item.dest_index.fqn, devices=devices))
        return sorted(
            found, key=lambda landing: (landing.segment.file, landing.segment.offset_bytes, landing.read.offsets)
        )

    def _object_batches(self, plan: LoadPlan) -> Iterator[list[_Resolved]]:
        """Yield objects with memory for their bytes. Many at once: they lie close together, and each read is of a whole unit."""
        batch: list[_Resolved] = []
        size_bytes = 0
        for item in plan.items:
            if item.type != LoadItemType.BYTE_IO:
                continue
            segment = self._segment(item.storage_index)
            if batch and size_bytes + segment.size_bytes > _OBJECT_BYTES:
                yield batch
                batch, size_bytes = [], 0
            batch.append(_Resolved(item, torch.empty(segment.size_bytes, dtype=torch.uint8)))
            size_bytes += segment.size_bytes
        if batch:
            yield batch

    def _hand_over(self, checkpoint: ReadsRanges, objects: Sequence[_Resolved], planner: LoadPlanner) -> None:
        for row in objects:
            data, name = bytes(byte_view(row.tensor)), row.item.storage_index.fqn
            planner.load_bytes(row.item, vouched(data, name, checkpoint.url, trusted=self._trust_objects))

    def _segment(self, index: MetadataIndex) -> Segment:
        segment = self._segments.get(index)
        if segment is None:
            raise CheckpointError(
                f"the load plan asks for {index.fqn!r} at {index.offset}, which the checkpoint does not have"
            )
        return segment


def _read_batch(
    checkpoint: ReadsRanges, batch: Sequence[Landing], scratch: LandingMemory, progress: Callable[[int], None] | None
) -> None:
    """Read some landings in one go, and settle those that went to scratch."""
    scratch.begin(sum(aligned(landing.size_bytes) for landing in batch if not landing.direct))
    memories = [landing.own_memory() if landing.direct else scratch.take(landing.size_bytes) for landing in batch]
    wanted = []
    for landing, memory in zip(batch, memories, strict=True):
        view = byte_view(memory)
        wanted += [
            Wanted(run.file, run.offset_bytes, view[run.at_bytes : run.at_bytes + run.size_bytes])
            for run in landing.runs()
        ]
    checkpoint.read(wanted, progress)
    for landing, memory in zip(batch, memories, strict=True):
        if not landing.direct:
            landing.settle(memory)
