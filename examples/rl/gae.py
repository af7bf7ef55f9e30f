"""Advantages of single tokens from values (GAE; Schulman et al., arXiv 1506.02438), also where a response is not finished.

Extended GAE (Truncated PPO, arXiv 2506.15050): a response that was cut at the end of a window has no reward yet. What it is worth
is taken from the value of the state that it has reached. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

FADE = 0.95
"""Lambda: how fast what comes later stops to matter, beyond what values say of it."""


def extended_gae(values: Sequence[float], reward: float | None, fade: float = FADE) -> list[float]:
    """Return the advantage of each token of a window. Nothing is discounted; only the last token of a response has a reward.

    `values`: of the state before each token, and after the last one. `reward`: of the response, None: it is not finished.
    """
    found, after = [0.0] * (len(values) - 1), 0.0
    for at in reversed(range(len(found))):
        is_last = at == len(found) - 1
        gained = reward if is_last and reward is not None else values[at + 1]
        after = gained - values[at] + (0.0 if is_last else fade * after)
        found[at] = after
    return found
