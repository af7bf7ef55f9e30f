"""For Lightning's Trainer: every optimizer step into memory, and on from the last one.

    trainer = Trainer(callbacks=[RobustCheckpoint()])
    trainer.fit(model, loader)

Lightning itself skips no batches: where in an epoch it goes on is up to a loader with state_dict and load_state_dict, as
torchdata's StatefulDataLoader. Lightning is not imported before this module is.
"""

from __future__ import annotations

import os
from typing import Any

from robust_run import checkpoint
from robust_run.checkpoint import random_states
from robust_run.errors import UserError

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

_REFUSED = ("FSDPStrategy", "DeepSpeedStrategy")
_OURS_TO_KEEP = ("lightning.", "pytorch_lightning.")


class RobustCheckpoint(Callback):  # type: ignore[misc]
    """Keeps the module, optimizers, schedulers, loops, Lightning's own callbacks and random number generators.

    `folder`, `every`, `keep`: as of `robust_run.checkpoint.save`.
    """

    def __init__(self, *, folder: str | None = None, every: int | str | None = None, keep: int | None = None) -> None:
        self._folder, self._every, self._keep = folder, every, keep
        self._last_step = 0
        self._random: dict[str, Any] | None = None
        self._begins_epoch = False

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Load, once optimizers are there and before the loops begin.

        Raises:
            CheckpointError, UserError: As of `robust_run.checkpoint.load`.
        """
        strategy = type(trainer.strategy).__name__
        if strategy in _REFUSED:
            raise UserError(
                f"RobustCheckpoint cannot reach what {strategy} has: use DDP, or ModelParallelStrategy (FSDP2)"
            )
        state = {**self._objects(trainer, pl_module), "loops": {}, "callbacks": {}, "is_whole_epoch": True}
        step = checkpoint.load(state, folder=self._folder)
        if step is None:
            return
        self._last_step = step
        trainer.fit_loop.load_state_dict(state["loops"])
        for callback in _kept(trainer):
            if callback.state_key in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][callback.state_key])
        self._begins_epoch = state["is_whole_epoch"]
        self._random = None if self._begins_epoch else random_states.take()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Have the next epoch begin as one, where the last one was whole.

        Lightning (2.6) goes on with that as if it were in its middle: it neither counts nor announces the next epoch, and
        what is saved in that one would make a later start begin it again.
        """
        if self._begins_epoch and hasattr(trainer.fit_loop, "reset_restart_stage"):
            trainer.fit_loop.reset_restart_stage()
        self._begins_epoch = False

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:  # noqa: ARG002
        """After the loader was asked, which draws numbers within an epoch that had begun already."""
        if self._random is not None:
            random_states.put(self._random)
            self._random = None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """Save, if the optimizer made a step."""
        if trainer.global_step > self._last_step:
            self._last_step = trainer.global_step
            self._save(trainer, pl_module, self._every)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save to storage, if there is any: memory ends with the job."""
        has_folder = self._folder or os.environ.get("ROBUST_CKPT_DIR")
        is_seldom = (
            self._every is not None or os.environ.get("ROBUST_CKPT_EVERY") or os.environ.get("ROBUST_CKPT_MEMORY")
        )
        if has_folder and is_seldom and self._last_step:
            self._save(trainer, pl_module, 1)

    def _save(self, trainer: Any, module: Any, every: int | str | None) -> None:
        state = {
            **self._objects(trainer, module),
            "loops": trainer.fit_loop.state_dict(),
            "callbacks": {each.state_key: each.state_dict() for each in _kept(trainer)},
            "is_whole_epoch": bool(trainer.is_last_batch),
        }
        checkpoint.save(state, step=self._last_step, folder=self._folder, every=every, keep=self._keep)

    def _objects(self, trainer: Any, module: Any) -> dict[str, Any]:
        return {
            "model": module,
            "optimizers": list(trainer.optimizers),
            "schedulers": [each.scheduler for each in trainer.lr_scheduler_configs],
            "precision": trainer.precision_plugin,
        }


def _kept(trainer: Any) -> list[Any]:
    """Return the callbacks whose state is known to be plain: Lightning's own. Others save theirs themselves."""
    return [each for each in trainer.callbacks if type(each).__module__.startswith(_OURS_TO_KEEP)]
