"""As much of transformers and Lightning as our callbacks touch: what they call, in the order in which they call it."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

STEPS = 10


@dataclass
class TrainerState:
    global_step: int = 0
    epoch: float = 0.0


class Plugin:
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}


def callback_of(framework: str, module: str, base: str, ours: str) -> Any:
    """Our module for a framework that is not here."""
    fake = ModuleType(module)
    setattr(fake, base, type(base, (), {}))
    sys.modules.setdefault(framework, ModuleType(framework))
    sys.modules[module] = fake
    return importlib.import_module(ours)


def trainer_ten(rank: int) -> None:
    """Ten steps of a Trainer whose callback keeps two."""
    ours = callback_of("transformers", "transformers", "TrainerCallback", "robust_run.checkpoint.trainer")
    callback = ours.RobustCallback(every=1, keep=2)
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    given = {"model": model, "optimizer": optimizer, "lr_scheduler": scheduler}
    args, state = SimpleNamespace(fsdp=None, deepspeed=None), TrainerState()
    callback.on_init_end(args, state, None, **given)
    assert callback.resume_point() is None
    callback.on_train_begin(args, state, None, **given)
    for _ in range(STEPS):
        callback.on_step_begin(args, state, None, **given)
        optimizer.step()
        state.global_step += 1
        callback.on_step_end(args, state, None, **given)
    callback.on_train_end(args, state, None, **given)


def lightning_ten(rank: int) -> None:
    """Ten batches of Lightning's Trainer whose callback keeps two."""
    ours = callback_of("lightning", "lightning.pytorch", "Callback", "robust_run.checkpoint.lightning")
    callback = ours.RobustCheckpoint(every=1, keep=2)
    model = nn.Linear(3, 3)
    trainer = SimpleNamespace(
        strategy=Plugin(),
        fit_loop=Plugin(),
        callbacks=[callback],
        optimizers=[torch.optim.SGD(model.parameters(), lr=0.1)],
        lr_scheduler_configs=[],
        precision_plugin=Plugin(),
        is_last_batch=False,
        global_step=0,
    )
    callback.on_fit_start(trainer, model)
    for _ in range(STEPS):
        callback.on_train_batch_start(trainer, model, None, 0)
        trainer.optimizers[0].step()
        trainer.global_step += 1
        callback.on_train_batch_end(trainer, model, None, None, 0)
    callback.on_train_end(trainer, model)
