"""A program that trains with Lightning and keeps every step; it is killed after a step, one by attempt."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything

from robust_run.checkpoint.lightning import RobustCheckpoint

DIES_AFTER = {str(attempt): int(step) for attempt, step in enumerate(sys.argv[1:])}


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return (self.inner(batch).squeeze(-1) - batch.sum(1)).square().mean()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Loader:
    """Ten batches, by number; knows where it is."""

    def __init__(self) -> None:
        self.at = 0

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.at %= 10
        while self.at < 10:
            self.at += 1
            yield torch.randn(4, 8, generator=torch.Generator().manual_seed(self.at))

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Dies(RobustCheckpoint):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        super().on_train_batch_end(trainer, pl_module, *args, **kwargs)
        if trainer.global_step == DIES_AFTER.get(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
            os.kill(os.getpid(), signal.SIGKILL)


seed_everything(3)
model = Model()
trainer = Trainer(
    max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[Dies()],
)  # fmt: skip
trainer.fit(model, Loader())
weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
print("step", trainer.global_step, "weights", hashlib.sha256(weights).hexdigest(), flush=True)
