"""For programs that call torch.distributed.checkpoint themselves: its loads as those of `checkpoint.load`.

    reader = checkpoint.MemoryReader()
    if reader.step is not None:
        dcp.load(state, storage_reader=reader)

Which step it is, all ranks agree on when the reader is made: so it can be asked for, and errors are as plain as they are.
"""

from __future__ import annotations

import io
import os
from typing import Any

import torch
from torch.distributed.checkpoint import StorageReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.futures import Future

from robust_run.checkpoint import loading, memory, spreading
from robust_run.checkpoint.dcp_sources import Contents, FromMemory, FromStorage, Source
from robust_run.checkpoint.rules.settings import Generation
from robust_run.ckpt_io.dcp.failures import travels
from robust_run.ckpt_io.memory.client import MemoryClient
from robust_run.errors import UserError


class MemoryReader(StorageReader):  # type: ignore[misc]
    """What an attempt is to start from, in memory or storage, for one `dcp.load`. All ranks of the job make one, and load.

    `folder`: as of `checkpoint.load`. What `checkpoint.save` saved can be loaded as well. Random number generators are put back
    after the load, if there are as many ranks as when it was saved. One that is not loaded from is to be closed.
    """

    def __init__(self, folder: str | None = None) -> None:
        """Find it. All ranks take part.

        Raises:
            CheckpointError: It cannot be read, is not what was saved, or ranks would begin at different steps.
        """
        self._folder = folder
        self._source: Source | None = loading.first_good(folder, _open_memory, FromStorage.opened)
        self._contents = None if self._source is None else Contents.of(self._source.values)
        self.step: int | None = None if self._source is None else self._source.values.step
        """None: there is nothing to load, begin at step 0."""

    def close(self) -> None:
        """Let go of it. Done by itself after a load."""
        if self._source is not None:
            self._source.close()
        self._source = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Refuse another place. torch calls it where `checkpoint_id=` was given."""
        if checkpoint_id is not None:
            raise UserError(
                f"checkpoint_id={os.fspath(checkpoint_id)!r}: MemoryReader loads what the job starts from; leave it out"
            )

    @travels
    def read_metadata(self, *_args: Any) -> Metadata:
        """Return what this rank can load, under the keys that torch's planners give."""
        source, contents = self._open()
        entries = {key: source.entry(number) for key, number in contents.tensors.items()}
        plain = {key: BytesStorageMetadata() for key in contents.plain}
        return Metadata(state_dict_metadata={**entries, **plain}, planner_data=contents.paths)

    @travels
    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_args: Any, **_kwargs: Any) -> None:
        """It is set up."""

    @travels
    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan, with what the ranks must agree on. Raises CheckpointError: memory has not what it asks for."""
        source, contents = self._open()
        source.check([item for item in plan.items if item.storage_index.fqn in contents.tensors], contents.tensors)
        return source.local_plan(plan)

    @travels
    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are. Raises Mixed: ranks opened different checkpoints."""
        source, _ = self._open()
        return source.global_plan(plans)

    @travels
    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill what the plan names.

        Raises:
            CheckpointError: Storage is not what was saved, or cannot be read.
        """
        source, contents = self._open()
        tensors = [item for item in plan.items if item.type == LoadItemType.TENSOR]
        with torch.no_grad():
            source.read(tensors, contents.tensors, planner)
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, _as_bytes(contents.plain[item.storage_index.fqn]))
        loading.go_on_from(source.values, self._folder)
        self.close()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003 - torch's
        """Whether this is a place that is looked for by its name: it has none."""
        return False

    def _open(self) -> tuple[Source, Contents]:
        if self.step is None:
            raise UserError("there is nothing to load (MemoryReader.step is None): begin at step 0")
        if self._source is None or self._contents is None:
            raise UserError(f"step {self.step} was loaded or closed: make another MemoryReader")
        return self._source, self._contents


def _open_memory(client: MemoryClient, generation: Generation, stream: str | None) -> Source | None:
    if generation.saved_by:
        spread = spreading.opened(client, generation, stream)
        return None if spread is None else FromStorage.of_memory(spread)
    part = memory.open_part(client, generation, stream)
    return None if part is None else FromMemory(part)


def _as_bytes(value: Any) -> io.BytesIO:
    """Return a plain value as planners take it: as pickle, of ours, which never leaves this process."""
    data = io.BytesIO()
    torch.save(value, data)
    data.seek(0)
    return data
