"""The undivided model: one process, one request at a time, no cache. Each token is computed from the whole text before it.

It shares weights and arithmetic with the parts that the job runs, and nothing else: no cache, no batches, and all experts work on
all tokens.

    python examples/serving/reference.py "what is it?"
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np
from decoder import CHOSEN, EXPERTS, HEADS, HIDDEN, LAYERS, LETTERS, START, WIDTH, decode, encode
from exact import Array, norm, power_of_two, snap, softmax, weights


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
        x = _mixed(layer, x)
    found: Array = norm(x[-1]) @ weights("head", WIDTH, len(LETTERS)) + 0.0
    return found


def _mixed(layer: int, x: Array) -> Array:
    """Let all experts work on all rows; those that were not chosen have no share."""
    given = norm(x)
    scores = given @ weights(f"gate {layer}", WIDTH, EXPERTS)
    worse = np.argsort(-scores, axis=1, kind="stable")[:, CHOSEN:]
    parts = power_of_two(snap(scores - scores.max(1, keepdims=True)))
    np.put_along_axis(parts, worse, 0.0, axis=1)
    shares = snap(parts / parts.sum(1, keepdims=True))
    total = x
    for expert in range(EXPERTS):
        hidden = np.maximum(snap(given @ weights(f"up {layer} {expert}", WIDTH, HIDDEN)), 0.0)
        made = snap(hidden @ weights(f"down {layer} {expert}", HIDDEN, WIDTH))
        total = total + shares[:, expert, None] * made
    return snap(total)


if __name__ == "__main__":
    print(generate(" ".join(sys.argv[1:]), 40)[0])
