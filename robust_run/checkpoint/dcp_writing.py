"""For programs that call torch.distributed.checkpoint themselves: its saves as those of `checkpoint.save`.

    dcp.async_save(state, storage_writer=checkpoint.MemoryWriter(step=step))

The copy that an asynchronous save begins with is the copy into memory, and what is agreed on is agreed on then, in the thread of
the program. All that is left for torch's own thread is to write storage, where the keepers do not.
"""

from __future__ import annotations

import os
from typing import Any

from torch.distributed.checkpoint import StorageWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from robust_run.checkpoint import session, storage, together
from robust_run.checkpoint.rules.cadence import BESIDE_MEMORY
from robust_run.checkpoint.rules.settings import FOLDER, MEMORY, REPLAY, Settings, checked_step, settings_of
from robust_run.ckpt_io.dcp.failures import travels
from robust_run.ckpt_io.dcp.staging import copy_of
from robust_run.ckpt_io.dcp.writer import RobustWriter
from robust_run.errors import UserError


class _Staging:
    """What torch asks of those who copy a state. The copy is made when `stage` returns."""

    _synchronize_after_execute = False
    should_synchronize_after_execute = False

    def synchronize_staging(self) -> None:
        """Nothing is left to be done."""

    def close(self) -> None:
        """Nothing is held."""


class MemoryWriter(_Staging, StorageWriter):  # type: ignore[misc]
    """One save of `checkpoint.save`, for `dcp.save` and `dcp.async_save`; one a save, and all ranks of the job save.

    `step`, `folder`, `every`: as of `checkpoint.save`. To memory goes all of the state dict, whatever the planner leaves out.
    `async_save` raises what the state or the arguments are refused for; what fails in storage, its future. The future's metadata
    is that of storage: it is empty where the step is in memory, from where the keepers write it.
    """

    def __init__(self, *, step: int, folder: str | None = None, every: int | str | None = None) -> None:
        """Raises UserError: there is no folder, or a number is none that counts."""
        self._step, self._every, self._folder = checked_step(step), every, folder
        settings_of(folder, every, os.environ)
        self._is_staged = self._is_used = False
        self._storage: RobustWriter | None = None
        """What writes a copy of the state to storage; None: nobody here does."""
        self._kept: session.Kept | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Refuse another place. torch calls it where `checkpoint_id=` was given."""
        if checkpoint_id is not None:
            raise UserError(
                f"checkpoint_id={os.fspath(checkpoint_id)!r}: MemoryWriter saves to FOLDER/step-N; "
                "leave it out, and give MemoryWriter(step=N, folder=FOLDER)"
            )

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Save to memory; return a copy of what is to be written to storage here, in most cases nothing. All ranks take part."""
        self._check_new()
        self._is_staged = True
        if os.environ.get(REPLAY):
            return {}
        kept = session.take_step(state_dict, self._step, settings_of(self._folder, self._every, os.environ))
        kept.done()  # on all ranks, whatever comes of storage: they must ask the same questions at the next step
        if kept.way != "here":
            return {}
        facts = storage.facts_of(kept.values)
        self._storage = RobustWriter(storage.url_of(kept.settings.folder, self._step), step=self._step, facts=facts)
        self._kept = kept
        copied: dict[str, Any] = copy_of(storage.as_stored(kept.values, kept.gathered.tensors))
        return copied

    @travels
    def set_up_storage_writer(self, is_coordinator: bool, *_args: Any, **kwargs: Any) -> None:
        """Check what can be checked before anything is planned. Raises UserError: ranks would save without each other."""
        if kwargs.get("use_collectives", True) is False:
            raise UserError("use_collectives=False: MemoryWriter saves one step of all ranks; leave it out")
        if self._storage is not None:
            self._storage.set_up_storage_writer(is_coordinator)

    def storage_meta(self) -> StorageMeta | None:
        """Return what torch tells planners of the storage."""
        return None if self._storage is None else self._storage.storage_meta()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan as it is."""
        return plan

    @travels
    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Begin to write storage, where it is written here. Only on the coordinator.

        Raises:
            UserError: Not all ranks are here.
            TargetLost: Storage cannot be written to.
        """
        _, world_size = together.rank_and_size()
        if len(plans) != world_size:
            raise UserError(
                f"{len(plans)} of {world_size} ranks save together: MemoryWriter saves one step of all of them; "
                "leave out no_dist=, and give a process group of all ranks or none"
            )
        return plans if self._storage is None else self._storage.prepare_global_plan(plans)

    @travels
    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write what was staged to storage; if nothing was, save the state that the planner has.

        Raises:
            As `checkpoint.save`.
        """
        is_staged = self._is_staged and not self._is_used
        if not is_staged or (plan.items and self._storage is None):  # of what was staged there is nothing to be written
            self._check_new()
        self._is_used = True
        if self._storage is not None:
            return self._storage.write_data(plan, planner)
        if not is_staged:
            session.save(_state_of(planner), step=self._step, folder=self._folder, every=self._every)
        done: Future[list[WriteResult]] = Future()
        done.set_result([])
        return done

    @travels
    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Have the checkpoint exist, where it is written here. Only on the coordinator."""
        if self._storage is not None:
            self._storage.finish(metadata, results)
            if self._kept is not None:
                self._kept.remove_old()

    def _check_new(self) -> None:
        if self._is_staged or self._is_used:
            raise UserError(f"this MemoryWriter was used for step {self._step}: make one for each save")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003 - torch's
        """Whether this is a place that is looked for by its name: it has none."""
        return False


class MemoryStager(_Staging):
    """Keeps each step in memory, and leaves storage to another writer: `async_stager=MemoryStager(step=step)`.

    For programs that go on writing checkpoints of a format of their own: what the writer gets is a copy in CPU memory. Without
    robust-run that is all. One a save; all ranks of the job save. Needs a torch whose `async_save` has `async_stager=`.
    """

    def __init__(self, *, step: int) -> None:
        """Raises UserError: `step` is no number that counts."""
        self._step = checked_step(step)

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Save to memory, and return a copy. All ranks take part. Raises StateRefused, UserError."""
        memory = os.environ.get(MEMORY, "")
        if memory not in ("", "off") and not os.environ.get(REPLAY):
            session.take_step(
                state_dict, self._step, Settings(os.environ.get(FOLDER, ""), BESIDE_MEMORY, memory)
            ).done()
        copied: dict[str, Any] = copy_of(state_dict)
        return copied


def _state_of(planner: SavePlanner) -> dict[str, Any]:
    """Return the state dict that a planner was given. Tuples that have tensors in them come as lists.

    Raises:
        UserError: It does not tell, or not whether a key is text or an integer.
    """
    state, mappings = getattr(planner, "state_dict", None), getattr(planner, "mappings", None)
    if not isinstance(state, dict) or not isinstance(mappings, dict):
        raise UserError(
            f"{type(planner).__name__} does not tell MemoryWriter of the state: use a planner that is made from torch's "
            "DefaultSavePlanner, or dcp.async_save"
        )
    if not mappings:
        return state
    from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

    return _with_integers(unflatten_state_dict(state, mappings), ())


def _with_integers(found: dict[str, Any], path: tuple[str, ...]) -> dict[Any, Any]:
    """Return a dict with the integers that torch has made text of: those of an optimizer's parameters. Others are refused."""
    groups = found.get("param_groups")
    is_optimizer = isinstance(groups, list) and all(
        type(each) is int for group in groups for each in group.get("params", [""])
    )
    fixed: dict[Any, Any] = (
        {"state": {}} if is_optimizer else {}
    )  # one without momentum: torch leaves out what is empty
    for key, value in found.items():
        if key.isdecimal():
            raise UserError(
                f"the key {'.'.join((*path, key))}: torch's planner does not tell whether the last of it is text or an integer; "
                "use dcp.async_save, or checkpoint.save"
            )
        fixed[key] = value
        if is_optimizer and key == "state" and all(each.isdecimal() for each in value):
            fixed[key] = {int(number): inner for number, inner in value.items()}
        elif isinstance(value, dict):
            fixed[key] = _with_integers(value, (*path, key))
    return fixed
