"""The task of T-PPO: sums in strokes, whose answers are of very different lengths. No torch.

    111+11=11111.       the problem is `111+11=`, the right response `11111.`

The reward is the share of letters that are right, so that half an answer is worth something: 1 is for one that is right as a
whole. Most sums are small, a few are large, as lengths of responses are.
"""

from __future__ import annotations

import random

LETTERS = "1+=."
END = LETTERS.index(".")
MOST_SUM = 14
MOST_PROBLEM = MOST_SUM + 2
MOST_TOKENS = 18
"""A response that has not ended after so many is cut off."""


def problem(number: int, seed: int) -> str:
    """Return a problem by its number."""
    chance = random.Random(f"{seed}/{number}")
    total = min(2 + int(chance.expovariate(1 / 3)), MOST_SUM)
    left = chance.randint(1, total - 1)
    return "1" * left + "+" + "1" * (total - left) + "="


def answer(text: str) -> str:
    """Return the right response to a problem."""
    return "1" * text.count("1") + "."


def reward(text: str, response: str) -> float:
    """Return the share of letters that are right, of the longer of response and answer."""
    wanted = answer(text)
    right = sum(one == other for one, other in zip(wanted, response, strict=False))
    return right / max(len(wanted), len(response))


def encode(text: str) -> list[int]:
    """Return the tokens of a text."""
    return [LETTERS.index(letter) for letter in text]


def decode(tokens: list[int]) -> str:
    """Return the text of tokens."""
    return "".join(LETTERS[token] for token in tokens)
