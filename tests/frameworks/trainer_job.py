"""A program that trains with transformers' Trainer and keeps every step; each rank is killed after a step, one by attempt."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from robust_run.checkpoint.trainer import RobustCallback

DIES_AFTER = {str(attempt): int(step) for attempt, step in enumerate(sys.argv[1:])}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.inner(x)
        return {"loss": (out.squeeze(-1) - labels).square().mean(), "logits": out}


class Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        x = torch.randn(8, generator=torch.Generator().manual_seed(number))
        return {"x": x, "labels": x.sum()}


class Dies(RobustCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_step_end(args, state, control, **kwargs)
        if state.global_step == DIES_AFTER.get(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
            os.kill(os.getpid(), signal.SIGKILL)


torch.manual_seed(3)
arguments = TrainingArguments(
    "out", per_device_train_batch_size=4, num_train_epochs=2, save_strategy="no", report_to=[], seed=3, use_cpu=True,
    disable_tqdm=True, learning_rate=1e-2,
)  # fmt: skip
callback = Dies()
trainer = Trainer(model=Model(), args=arguments, train_dataset=Data(), callbacks=[callback])
trainer.train(resume_from_checkpoint=callback.resume_point())
weights = b"".join(each.detach().numpy().tobytes() for each in trainer.model.parameters())
if os.environ["RANK"] == "0":
    print("step", trainer.state.global_step, "weights", hashlib.sha256(weights).hexdigest(), flush=True)
