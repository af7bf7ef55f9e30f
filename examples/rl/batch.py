"""Which groups the trainer trains on, and what became of the others. Pure: dynamic sampling, as a state that is fed.

Every problem has one of three fates, and only one: trained, dropped (all right or all wrong), refused (responses by a policy that
is too old, which the queue sorts out).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from objective import advantages, is_useful, overlong
from rollout import MOST_TOKENS
from samples import Group
from torch import Tensor

OVERLONG_TOKENS = 2
"""Responses lose some reward in the last so many tokens before they are cut off."""


@dataclass
class Batch:
    """What one step is made of. `wanted`: groups with something to learn from."""

    wanted: int
    useful: list[Group] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    right: int = 0
    tried: int = 0
    tokens: int = 0

    def add(self, group: Group) -> None:
        """Take in a group that was verified."""
        self.right += sum(group.right)
        self.tried += len(group.right)
        self.tokens += group.tokens
        if is_useful(group.right):
            self.useful.append(group)
        else:
            self.dropped.append(group.number)

    @property
    def missing(self) -> int:
        """How many useful groups it lacks."""
        return max(self.wanted - len(self.useful), 0)

    @property
    def reward(self) -> float:
        """Share of responses that were right, of all that came: dropped ones too."""
        return self.right / max(self.tried, 1)

    def fates(self) -> dict[str, list[int]]:
        """Return the numbers of the problems by what became of them."""
        return {"trained": [each.number for each in self.useful], "dropped": self.dropped}


def rewards_of(group: Group) -> list[float]:
    """Return the reward of each response: 1 if it is right, less what it is too long."""
    return [
        float(right) + overlong(length_of(each.tokens), MOST_TOKENS, OVERLONG_TOKENS)
        for right, each in zip(group.right, group.responses, strict=True)
    ]


def length_of(tokens: tuple[int, ...]) -> int:
    """Return how long a response is; one that was cut off counts as longer than any."""
    from task import END

    return len(tokens) if tokens[-1] == END else MOST_TOKENS + 1


def tensors_of(groups: list[Group]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return problems and responses as tokens, old log-probabilities, advantages, which tokens count: a row for each response."""
    from task import END, encode

    problems, responses, logs, gains, lengths = [], [], [], [], []
    for group in groups:
        for each, gain in zip(group.responses, advantages(rewards_of(group)), strict=True):
            missing = MOST_TOKENS - len(each.tokens)
            problems.append(encode(group.text))
            responses.append([*each.tokens, *[END] * missing])
            logs.append([*each.logs, *[0.0] * missing])
            gains.append(gain)
            lengths.append(len(each.tokens))
    mask = torch.arange(MOST_TOKENS)[None] < torch.tensor(lengths)[:, None]
    return torch.tensor(problems), torch.tensor(responses), torch.tensor(logs), torch.tensor(gains), mask.float()
