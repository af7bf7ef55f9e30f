"""DAPO's objective (Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", arXiv 2503.14476).

Four parts of it, each a function: `clipped` (clip-higher, section 3.1), `is_useful` (dynamic sampling, 3.2), the mean over all
tokens of a batch in `loss` (token-level loss, 3.3), `overlong` (overlong reward shaping, 3.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

import torch
from torch import Tensor

CLIP_LOW, CLIP_HIGH = 0.2, 0.28
"""How far the probability of a token may sink and grow before the objective ends (section 4.1)."""


def is_useful(right: Sequence[bool]) -> bool:
    """Whether a group teaches anything: one that is all right or all wrong has no advantages."""
    return 0 < sum(right) < len(right)


def overlong(length: int, most: int, cache: int) -> float:
    """Return what length takes off a reward: nothing up to `most - cache` tokens, then step by step 1 (equation 13)."""
    if length <= most - cache:
        return 0.0
    return (most - cache - length) / cache if length <= most else -1.0


def advantages(rewards: Sequence[float]) -> list[float]:
    """Return how much better each response of a group is than the group, in its standard deviations (equation 9)."""
    spread = pstdev(rewards)
    mean = fmean(rewards)
    return [(reward - mean) / spread if spread > 0 else 0.0 for reward in rewards]


def clipped(ratio: Tensor, advantage: Tensor) -> Tensor:
    """Return the objective of each token: no gain beyond the clip, in either direction (equation 8)."""
    return torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantage)


def loss(new_logs: Tensor, old_logs: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """Return what is to be made small; each token counts as much. Log-probabilities and mask by response and token."""
    gain = clipped((new_logs - old_logs).exp(), advantage[:, None])
    return -(gain * mask).sum() / mask.sum()
