"""For the Trainer of transformers: every optimizer step into memory, and on from the last one.

    callback = RobustCallback()
    trainer = Trainer(model=model, args=args, train_dataset=dataset, callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.resume_point())

Which epoch and batch it goes on with, the Trainer decides before any callback is asked. So it is given a folder of its own
format, as for a checkpoint, with the step alone; what is large is loaded as training begins. transformers is not imported before
this is.
"""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import tempfile
from typing import Any

from transformers import TrainerCallback

from robust_run import checkpoint
from robust_run.checkpoint import random_states
from robust_run.errors import UserError

_STATE, _INDEX, _WEIGHTS = "trainer_state.json", "model.safetensors.index.json", "none.safetensors"


class RobustCallback(TrainerCallback):  # type: ignore[misc]
    """Keeps model, optimizer, scheduler, the Trainer's own state and random number generators, at every optimizer step.

    `folder`, `every`, `keep`: as of `robust_run.checkpoint.save`. One process or several (DDP): what FSDP and DeepSpeed have
    is not in the reach of a callback, and is refused.
    """

    def __init__(self, *, folder: str | None = None, every: int | str | None = None, keep: int | None = None) -> None:
        self._folder, self._every, self._keep = folder, every, keep
        self._point: tempfile.TemporaryDirectory[str] | None = None
        self._is_asked = False
        self._names: list[str] | None = None
        self._random: dict[str, Any] | None = None

    def resume_point(self) -> str | None:
        """Return what `train(resume_from_checkpoint=...)` is to be given; None: there is nothing to go on from.

        Raises:
            CheckpointError, UserError: As of `robust_run.checkpoint.load`.
        """
        if self._names is None:
            raise UserError("RobustCallback knows of no Trainer yet: give it to Trainer(callbacks=[callback]) first")
        self._is_asked = True
        kept: dict[str, Any] = {"trainer": ""}
        if checkpoint.load(kept, folder=self._folder) is None:
            return None
        self._point = tempfile.TemporaryDirectory(prefix="robust-resume-")
        files = {_STATE: kept["trainer"].encode(), _INDEX: _index_of(self._names), _WEIGHTS: _no_weights()}
        for name, data in files.items():
            with open(os.path.join(self._point.name, name), "wb") as file:
                file.write(data)
        return self._point.name

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - of all callbacks
        """Refuse what a callback cannot reach."""
        self._names = list(kwargs["model"].state_dict())
        if getattr(args, "fsdp", None) or getattr(args, "deepspeed", None):
            raise UserError(
                "RobustCallback keeps what one process or DDP has: with FSDP or DeepSpeed save in a loop of your own, "
                "or leave it to the Trainer (save_steps)"
            )

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - of all callbacks
        """Load what is large.

        Raises:
            UserError: The Trainer was not told where to go on.
        """
        if not self._is_asked:
            raise UserError(
                "call train(resume_from_checkpoint=callback.resume_point()): it says which batches are done"
            )
        self._is_asked = False
        if self._point is None:
            return
        if checkpoint.load(_objects(kwargs), folder=self._folder) != state.global_step:
            raise UserError(
                f"training begins at step {state.global_step}, which is not the one that resume_point named: "
                "call it right before train"
            )
        self._random = random_states.take()
        self._point.cleanup()
        self._point = None

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - of all callbacks
        """Before batches are drawn: an epoch that was not begun yet draws them anew."""
        if self._random is not None:
            random_states.put(self._random)
            if float(state.epoch or 0.0).is_integer():
                self._random = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - of all callbacks
        """After batches were skipped, which draws numbers."""
        if self._random is not None:
            random_states.put(self._random)
            self._random = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - of all callbacks
        """Save."""
        self._save(state, kwargs, self._every)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - of all callbacks
        """Save to storage, if there is any: memory ends with the job."""
        has_folder = self._folder or os.environ.get("ROBUST_CKPT_DIR")
        is_seldom = (
            self._every is not None or os.environ.get("ROBUST_CKPT_EVERY") or os.environ.get("ROBUST_CKPT_MEMORY")
        )
        if has_folder and is_seldom and state.global_step:
            self._save(state, kwargs, 1)

    def _save(self, state: Any, kwargs: dict[str, Any], every: int | str | None) -> None:
        kept = {**_objects(kwargs), "trainer": json.dumps(dataclasses.asdict(state))}
        checkpoint.save(kept, step=state.global_step, folder=self._folder, every=every, keep=self._keep)


def _objects(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return what has a state, of what callbacks are given."""
    return {"model": kwargs["model"], "optimizer": kwargs["optimizer"], "scheduler": kwargs["lr_scheduler"]}


def _index_of(names: list[str]) -> bytes:
    """Return an index that says where all weights are: the Trainer misses none."""
    return json.dumps({"metadata": {"total_size": 0}, "weight_map": dict.fromkeys(names, _WEIGHTS)}).encode()


def _no_weights() -> bytes:
    """Return a file of weights with none in it: the Trainer loads from it what it has."""
    header = b'{"__metadata__":{"format":"pt"}}'
    return struct.pack("<Q", len(header)) + header
