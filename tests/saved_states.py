"""A small training, all of whose state is in one dict."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

from robust_run.checkpoint import session


def a_new_process() -> None:
    """What a process remembers is forgotten."""
    session._session = None


def made(seed: int = 1) -> dict[str, Any]:
    torch.manual_seed(seed)
    random.seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
    return {"model": model, "optimizer": optimizer, "schedule": schedule, "seen": {"losses": [], "best": None}}


def train(state: dict[str, Any], steps: int) -> None:
    for _ in range(steps):
        loss = state["model"](torch.randn(4, 6) + random.random()).square().mean()
        state["optimizer"].zero_grad()
        loss.backward()
        state["optimizer"].step()
        state["schedule"].step()
        state["seen"]["losses"].append(loss.item())
        state["seen"]["best"] = min(state["seen"]["losses"])


def all_of(value: Any) -> Any:
    """All of a state as values that can be compared, bit for bit."""
    if isinstance(value, torch.Tensor):
        data = value.detach().contiguous().reshape(-1).view(torch.uint8)
        return str(value.dtype), tuple(value.shape), bytes(data.tolist())
    if isinstance(value, dict):
        return {key: all_of(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [all_of(each) for each in value]
    if hasattr(value, "state_dict"):
        return all_of(value.state_dict())
    return type(value), repr(value)
