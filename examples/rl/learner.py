"""A policy with a value head, and how it learns from one step's windows (Truncated PPO, arXiv 2506.15050)."""

from __future__ import annotations

import strokes
import torch
from gae import extended_gae
from model import GPT
from torch import Tensor
from torch.nn import functional
from windows import Slot, padded

CLIP = 0.2
SLOTS = 48
"""Responses on their way at a time."""
WINDOW = 4
"""Tokens that each goes on by in a step."""
EPOCHS = 2
RATE = 5e-4
"""With 1e-3 PPO is as fast and T-PPO, whose steps are of fewer tokens, may settle for answers that are partly right."""


def new_model() -> GPT:
    """Return a policy that knows nothing, with a value head."""
    context = strokes.MOST_PROBLEM + strokes.MOST_TOKENS
    return GPT(len(strokes.LETTERS), context, width=48, layers=2, heads=4, value=True)


class Learner:
    """A policy with a value head."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = new_model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)

    def learn(self, slots: list[Slot]) -> None:
        """Take one step's windows in."""
        rows = padded([slot.whole for slot in slots])
        with torch.no_grad():
            values = self._values(rows).tolist()
        longest = rows.shape[1]
        old, gains, new_tokens, returns, finished = (torch.zeros(len(slots), longest) for _ in range(5))
        for row, slot in enumerate(slots):
            first, end = len(slot.text), len(slot.text) + len(slot.tokens)
            begin, reward = first + slot.begin, slot.reward
            # Place t holds what concerns token t, which was drawn in the state after token t - 1.
            gains[row, begin:end] = torch.tensor(extended_gae(values[row][begin - 1 : end], reward))
            old[row, begin:end] = torch.tensor(slot.logs[slot.begin :])
            new_tokens[row, begin:end] = 1
            if reward is not None:
                returns[row, first:end], finished[row, first:end] = reward, 1
        spread = gains[new_tokens > 0].std(correction=0) + 1e-6
        gains = (gains - gains[new_tokens > 0].mean()) / spread
        for _ in range(EPOCHS):
            self.optimizer.zero_grad()
            self._loss(rows, old, gains, new_tokens, returns, finished).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()

    def _values(self, rows: Tensor) -> Tensor:
        assert self.model.value is not None
        found: Tensor = self.model.value(self.model.features(rows)).squeeze(2)
        return found

    def _loss(
        self, rows: Tensor, old: Tensor, gains: Tensor, new_tokens: Tensor, returns: Tensor, finished: Tensor
    ) -> Tensor:
        assert self.model.value is not None
        features = self.model.features(rows)[:, :-1]
        logs = functional.log_softmax(self.model.head(features), dim=-1).gather(2, rows[:, 1:, None]).squeeze(2)
        ratio = (logs - old[:, 1:]).exp()
        gain = torch.minimum(ratio * gains[:, 1:], ratio.clamp(1 - CLIP, 1 + CLIP) * gains[:, 1:])
        policy = -(gain * new_tokens[:, 1:]).sum() / new_tokens.sum()
        off = (self.model.value(features).squeeze(2) - returns[:, 1:]).square()
        return policy + 0.5 * (off * finished[:, 1:]).sum() / finished.sum().clamp(min=1)
