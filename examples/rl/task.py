"""The task: sums of two small numbers, whose answers a rule can verify. No torch.

    3+4=7.        the problem is `3+4=`, the right response `7.`

Problems are numbered without end: a problem follows from its number and a seed alone, whoever asks for it, however often.
"""

from __future__ import annotations

import random

LETTERS = "0123456789+=."
MOST_ADDEND = 4
END = LETTERS.index(".")
"""Token that ends a response."""


def problem(number: int, seed: int) -> str:
    """Return a problem by its number."""
    chance = random.Random(f"{seed}/{number}")
    return f"{chance.randint(0, MOST_ADDEND)}+{chance.randint(0, MOST_ADDEND)}="


def answer(text: str) -> str:
    """Return the right response to a problem."""
    left, _, right = text.removesuffix("=").partition("+")
    return f"{int(left) + int(right)}."


def is_right(text: str, response: str) -> bool:
    """Verify a response: all of it must be right, its end too."""
    return response == answer(text)


def encode(text: str) -> list[int]:
    """Return the tokens of a text. Raises ValueError for a letter that is none of the task."""
    return [LETTERS.index(letter) for letter in text]


def decode(tokens: list[int]) -> str:
    """Return the text of tokens."""
    return "".join(LETTERS[token] for token in tokens)
