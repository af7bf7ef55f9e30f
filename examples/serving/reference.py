"""The undivided model: one process, one request at a time, no cache. Each token is computed from the whole text before it.

It shares weights and arithmetic with the parts that the job runs, and nothing else: neither cache nor batches nor ways.

    python examples/serving/reference.py "what is it?"
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np
from exact import Array, norm, power_of_two, snap, softmax, weights
from model import CHOSEN, EXPERTS, HEADS, HIDDEN, LAYERS, LETTERS, START, WIDTH, decode, encode


def generate(prompt: str, most: int) -> tuple[str, str]:
    """Return the answer to a prompt, and a digest of all logits on the way to it: equal where each bit of them is."""
    tokens, digest = [START, *encode(prompt)], hashlib.sha256()
    begin = len(tokens)
    while len(tokens) < begin + most:
        logits = _logits(tokens)
        digest.update(logits.tobytes())
        tokens.append(int(logits.argmax()))
        if tokens[-1] == START:
            break
    return decode(tokens[begin:]).rstrip("\n"), digest.hexdigest()


def _logits(tokens: list[int]) -> Array:
    count = len(tokens)
    x = weights("letters", len(LETTERS), WIDTH)[tokens] * 4 + weights("places", 96, WIDTH)[:count] * 4
    for layer in range(LAYERS):
        parts = snap(norm(x) @ weights(f"attend {layer}", WIDTH, 3 * WIDTH))
        query, key, value = parts.reshape(count, 3, HEADS, WIDTH // HEADS).transpose(1, 2, 0, 3)
        scores = query @ key.swapaxes(1, 2) + np.triu(np.full((count, count), -1024.0), 1)  # nothing from the future
        seen = softmax(scores, value[:, None]).transpose(1, 0, 2).reshape(count, WIDTH)
        x = snap(x + seen @ weights(f"gather {layer}", WIDTH, WIDTH))
        x = np.stack([_mixed(layer, row) for row in x])
    return norm(x[-1]) @ weights("head", WIDTH, len(LETTERS)) + 0.0


def _mixed(layer: int, row: Array) -> Array:
    given = norm(row)
    scores = given @ weights(f"gate {layer}", WIDTH, EXPERTS)
    chosen = sorted(range(EXPERTS), key=lambda expert: (-scores[expert], expert))[:CHOSEN]
    parts = [float(power_of_two(snap(scores[expert] - scores[chosen[0]]))) for expert in chosen]
    total = row
    for expert, part in zip(chosen, parts, strict=True):
        hidden = np.maximum(snap(given @ weights(f"up {layer} {expert}", WIDTH, HIDDEN)), 0.0)
        made = snap(hidden @ weights(f"down {layer} {expert}", HIDDEN, WIDTH))
        total = total + snap(np.array(part / sum(parts))) * made
    return snap(total)


if __name__ == "__main__":
    print(generate(" ".join(sys.argv[1:]), 40)[0])
