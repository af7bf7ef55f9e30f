"""Saving through `torch.distributed.checkpoint`: each rank writes one logical file, the coordinator commits.

    dcp.save(state, storage_writer=RobustWriter("rrck:///ssd0/run/step-4000?also=/ssd1/run"))

Nothing of a checkpoint that has the same name is touched before the new manifest is written whole: a save that fails leaves the
old checkpoint as it was.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint import StorageWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan as TorchPlan
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from robust_run.ckpt_io import address
from robust_run.ckpt_io.dcp.failures import travels
from robust_run.ckpt_io.dcp.metadata import contents, logical_files, paths_of
from robust_run.ckpt_io.dcp.sources import resolve, write
from robust_run.ckpt_io.rules.manifest import name_fault
from robust_run.ckpt_io.rules.types import UNIT_BYTES, Codec
from robust_run.ckpt_io.saving import SavePlan, abandon, begin_save, commit
from robust_run.errors import RobustRunError, UserError


@dataclass(frozen=True)
class WriteAssignment:
    """What the coordinator tells a rank through its plan: where to write, as which logical file."""

    save: SavePlan
    file: int
    name: str


class RobustWriter(StorageWriter):  # type: ignore[misc]
    """A storage writer for striped, verified checkpoints.

    `also`: roots of further targets (see `address`). `step`: by default what the checkpoint's name ends with (`step-4000`).
    `facts`: what else people should know of it. `codec`, `unit_bytes`, `durable`, `threads`: see `begin_save`. `progress` is told
    of bytes, from any thread. What is saved must stay as it is until the save is over: nothing is copied that can be written as
    it lies in memory.
    """

    def __init__(  # noqa: PLR0913 - options, all by name and with a default
        self,
        checkpoint_id: str | os.PathLike[str] | None = None,
        *,
        also: Sequence[str] = (),
        step: int | None = None,
        facts: Mapping[str, str] | None = None,
        codec: Codec = "none",
        unit_bytes: int = UNIT_BYTES,
        durable: bool = True,
        threads: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self._also = tuple(also)
        self._step = step
        self._facts = dict(facts or {})
        self._codec: Codec = codec
        self._unit_bytes = unit_bytes
        self._durable = durable
        self._threads = threads
        self._progress = progress
        self._save: SavePlan | None = None
        self._ranks = 0

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a new save. What is left of one that failed is removed."""
        self.abandon()
        if checkpoint_id is not None:
            self.checkpoint_id = checkpoint_id

    def abandon(self) -> None:
        """Remove what a failed save has written, as far as the targets let us; never raises. For when no rank writes any more."""
        if self._save is not None:
            with suppress(RobustRunError):
                abandon(self._save)
        self._save = None

    @travels
    def set_up_storage_writer(self, is_coordinator: bool, *_args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Check what can be checked before anything is planned.

        Raises:
            UserError: No checkpoint was named, or ranks are to save without talking to each other.
        """
        if self.checkpoint_id is None:
            raise UserError("nowhere to save to: give RobustWriter a path or URL, or checkpoint_id= to dcp.save")
        if kwargs.get("use_collectives", True) is False:
            raise UserError(
                "use_collectives=False would commit one checkpoint per rank under one name: leave it out, or give each rank "
                "a name of its own and no_dist=True"
            )

    def storage_meta(self) -> StorageMeta:
        """Return what torch tells planners of the storage."""
        return StorageMeta(checkpoint_id=self.checkpoint_id)

    def prepare_local_plan(self, plan: TorchPlan) -> TorchPlan:
        """Return the plan as it is: what a rank writes does not depend on how it is stored."""
        return plan

    @travels
    def prepare_global_plan(self, plans: list[TorchPlan]) -> list[TorchPlan]:
        """Begin the save, and give each rank that has something to write its logical file. Only on the coordinator.

        Raises:
            TargetLost: A target cannot be written to.
            UserError: The address is none, a key is none that a checkpoint can have, or the planner hands out plans of an earlier
                save.
        """
        if not all(getattr(plan, "usable", True) for plan in plans):
            raise _stale_plans()
        _check_keys(plans)  # before anything is written: the manifest, which would refuse them, comes last
        self.abandon()
        self._ranks = len(plans)
        assert self.checkpoint_id is not None, "checked in set_up_storage_writer"
        self._save = begin_save(
            os.fspath(self.checkpoint_id),
            also=self._also,
            unit_bytes=self._unit_bytes,
            codec=self._codec,
            durable=self._durable,
        )
        assigned, file = [], 0
        for rank, plan in enumerate(plans):
            assigned.append(
                dataclasses.replace(plan, storage_data=WriteAssignment(self._save, file, f"rank-{rank:05d}.bin"))
            )
            file += bool(plan.items)
        return assigned

    @travels
    def write_data(self, plan: TorchPlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's logical file, durably.

        Raises:
            TargetLost: A target is full, read-only or gone.
            UserError: A tensor cannot be saved (sparse, quantised, meta).
        """
        if getattr(planner, "_enable_plan_caching", False):
            raise _stale_plans()
        results: list[WriteResult] = []
        if plan.items:
            given: WriteAssignment = plan.storage_data
            sources = resolve(plan.items, planner)
            stored = write(given.save, given.file, given.name, sources, threads=self._threads, progress=self._progress)
            results = [
                WriteResult(index=source.index, size_in_bytes=item.segment.size_bytes, storage_data=item)
                for source, item in zip(sources, stored, strict=True)
            ]
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    @travels
    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the manifest: from here on the checkpoint exists. Only on the coordinator.

        Raises:
            ManifestRefused: What was saved cannot be said in a manifest (a tensor that chunks do not cover).
            TargetLost: A target is gone by now.
        """
        assert self._save is not None, "prepare_global_plan comes first"
        tensors, blobs = contents(metadata, results)
        known = [*(tensor.name for tensor in tensors), *(blob.name for blob in blobs)]
        assert self.checkpoint_id is not None, "checked in set_up_storage_writer"
        commit(
            self._save,
            logical_files(results),
            tensors=tensors,
            blobs=blobs,
            paths=paths_of(metadata.planner_data, known),
            step=address.step_of(self.checkpoint_id) if self._step is None else self._step,
            facts={"world_size": str(self._ranks), "framework": f"torch {torch.__version__}", **self._facts},
        )
        self._save = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether this is a path or URL that a checkpoint can have. Nothing is looked up."""
        return address.is_valid(checkpoint_id)


def _check_keys(plans: Sequence[TorchPlan]) -> None:
    for name in (item.index.fqn for plan in plans for item in plan.items):
        if fault := name_fault(name):
            shown = f"{name[:80]!r}{'...' if len(name) > 80 else ''}"
            raise UserError(f"the key {shown} of the state {fault}: rename it. Nothing was saved")


def _stale_plans() -> UserError:
    return UserError(
        "DefaultSavePlanner(enable_plan_caching=True) gives ranks the plan of an earlier save, and so its place: leave it out"
    )
