"""Responses that are generated window by window: what is unfinished goes on in the next step (Truncated PPO, arXiv 2506.15050).

A batch has so many slots. In each step every slot goes on by at most one window; those whose response has ended get a new
problem. With a window as long as the longest response this is PPO: each step waits for the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import strokes
import torch
from model import GPT
from torch import Tensor
from torch.nn import functional


@dataclass
class Slot:
    """A response on its way."""

    text: str
    tokens: list[int] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)
    """Log-probabilities that tokens were drawn with."""
    begin: int = 0
    """First token of the newest window: those before have trained the policy already."""

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, or was cut off."""
        return bool(self.tokens) and (self.tokens[-1] == strokes.END or len(self.tokens) >= strokes.MOST_TOKENS)

    @property
    def whole(self) -> list[int]:
        """Problem and response."""
        return strokes.encode(self.text) + self.tokens

    @property
    def reward(self) -> float | None:
        """Of a finished response."""
        return strokes.reward(self.text, strokes.decode(self.tokens)) if self.is_finished else None


@dataclass
class Spent:
    """What generation has cost. A round is one pass of the model over all slots: their number is what rollouts take in time."""

    tokens: int = 0
    rounds: int = 0


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Return rows as one tensor; what follows the end of a row changes nothing before it."""
    longest = max(len(row) for row in rows)
    return torch.tensor([[*row, *[strokes.END] * (longest - len(row))] for row in rows])


@torch.no_grad()
def go_on(model: GPT, slots: Sequence[Slot], window: int, chance: torch.Generator, spent: Spent) -> None:
    """Let every response go on by a window, or to its end."""
    for slot in slots:
        slot.begin = len(slot.tokens)
    for _ in range(window):
        open_slots = [slot for slot in slots if not slot.is_finished]
        if not open_slots:
            return
        rows = [slot.whole for slot in open_slots]
        last = torch.tensor([len(row) - 1 for row in rows])
        logits = model(padded(rows))[torch.arange(len(rows)), last]
        logs = functional.log_softmax(logits, dim=-1)
        drawn = torch.multinomial(logs.exp(), 1, generator=chance).squeeze(1)
        chosen = logs.gather(1, drawn[:, None]).squeeze(1)
        for slot, token, log in zip(open_slots, drawn.tolist(), chosen.tolist(), strict=True):
            slot.tokens.append(token)
            slot.logs.append(log)
        spent.tokens += len(open_slots)
        spent.rounds += 1
