"""A tiny decoder with a mixture of experts, cut in two: what attention members hold, and what expert members hold.

It has learnt nothing: its weights are noise that follows from their names, and what it says is noise too, always the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from exact import Array, norm, power_of_two, snap, softmax, weights

LETTERS = "\n abcdefghijklmnopqrstuvwxyz,.?!'"
START = 0
"""Token before each prompt, and the one that ends an answer."""
CONTEXT = 96
"""Tokens of a prompt and its answer together, at most."""
WIDTH, HEADS, LAYERS, HIDDEN = 32, 2, 2, 64
EXPERTS, CHOSEN = 8, 2
"""Experts of each layer, and how many of them a token goes to."""


class Cache:
    """Keys and values of one sequence, by layer."""

    def __init__(self) -> None:
        self.keys = np.zeros((LAYERS, HEADS, CONTEXT, WIDTH // HEADS))
        self.values = np.zeros_like(self.keys)
        self.length = 0
        """Tokens that all layers have seen."""


class AttentionPart:
    """Embeddings, attention, the gate, the head. All methods take a row for each sequence of a batch."""

    def __init__(self) -> None:
        self.letters, self.places = weights("letters", len(LETTERS), WIDTH) * 4, weights("places", CONTEXT, WIDTH) * 4
        self.attend_in = [weights(f"attend {layer}", WIDTH, 3 * WIDTH) for layer in range(LAYERS)]
        self.attend_out = [weights(f"gather {layer}", WIDTH, WIDTH) for layer in range(LAYERS)]
        self.gates = [weights(f"gate {layer}", WIDTH, EXPERTS) for layer in range(LAYERS)]
        self.head = weights("head", WIDTH, len(LETTERS))

    def embed(self, tokens: Sequence[int], caches: Sequence[Cache]) -> Array:
        """Return rows for the next token of each sequence."""
        found: Array = self.letters[list(tokens)] + self.places[[cache.length for cache in caches]]
        return found

    def attend(self, layer: int, rows: Array, caches: Sequence[Cache]) -> Array:
        """Return rows after attention to what came before, which is in the caches; they take in the new token."""
        new = snap(norm(rows) @ self.attend_in[layer]).reshape(len(rows), 3, HEADS, 1, WIDTH // HEADS)
        seen = np.empty_like(rows)
        for row, (query, key, value), cache in zip(seen, new, caches, strict=True):
            at = cache.length
            cache.keys[layer, :, at], cache.values[layer, :, at] = key[:, 0], value[:, 0]
            keys, values = cache.keys[layer, :, : at + 1], cache.values[layer, :, : at + 1]
            row[:] = softmax((query @ keys.swapaxes(1, 2))[:, 0], values).reshape(WIDTH)
        return snap(rows + seen @ self.attend_out[layer])

    def gate(self, layer: int, rows: Array) -> tuple[Array, Array, Array]:
        """Return what experts are given, which ones each row goes to, and the share of each of those."""
        given = norm(rows)
        scores = given @ self.gates[layer]
        chosen = np.argsort(-scores, axis=1, kind="stable")[:, :CHOSEN]  # of equal ones the first
        best = np.take_along_axis(scores, chosen, axis=1)
        parts = power_of_two(snap(best - best[:, :1]))
        return given, chosen, snap(parts / parts.sum(1, keepdims=True))

    def logits(self, rows: Array) -> Array:
        """Return the logits of each sequence's next token."""
        found: Array = norm(rows) @ self.head + 0.0
        return found


class ExpertPart:
    """Some experts of every layer."""

    def __init__(self, experts: Sequence[int]) -> None:
        self.up = {(n, e): weights(f"up {n} {e}", WIDTH, HIDDEN) for n in range(LAYERS) for e in experts}
        self.down = {(n, e): weights(f"down {n} {e}", HIDDEN, WIDTH) for n in range(LAYERS) for e in experts}

    def compute(self, layer: int, expert: int, given: Array) -> Array:
        """Return what an expert makes of rows. Raises KeyError for one that is not held here."""
        hidden = np.maximum(snap(given @ self.up[layer, expert]), 0.0)
        return snap(hidden @ self.down[layer, expert])


def by_expert(chosen: Array) -> dict[int, Array]:
    """Return which rows go to each expert that is wanted."""
    return {int(expert): np.flatnonzero((chosen == expert).any(1)) for expert in np.unique(chosen)}


def combined(rows: Array, chosen: Array, shares: Array, made: dict[int, Array]) -> Array:
    """Return rows with what experts made of them, each in its share. `made`: rows in the order of `by_expert`."""
    total = rows.copy()
    for expert, numbers in by_expert(chosen).items():
        share = (shares * (chosen == expert)).sum(1)[numbers, None]
        total[numbers] += share * made[expert]
    return snap(total)


def encode(text: str) -> list[int]:
    """Return the tokens of a text. Raises ValueError for a letter that the model has not."""
    return [LETTERS.index(letter) for letter in text]


def decode(tokens: Sequence[int]) -> str:
    """Return the text of tokens."""
    return "".join(LETTERS[token] for token in tokens)
