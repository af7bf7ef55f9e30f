"""A small language model of fixed weights, and one training step of it: the same bits wherever it is computed.

The family that is trained: embedding, attention, a feed-forward layer, cross-entropy, and AdamW. ByteRobust §4.2 compares
such a step between machines bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from robust_run.health.diagnostics.digests import fractions, integers

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 256, 64, 4, 2, 32, 4
#: For GPUs: large enough that all their units have work.
WIDE_WIDTH, WIDE_LENGTH, WIDE_BATCH = 1024, 256, 8

Touch = Callable[[Any], None]


class Reference:
    """Weights and one batch, made once."""

    def __init__(self, torch: Any, device: str, seed: int, *, wide: bool) -> None:
        self._torch = torch
        self._width = WIDE_WIDTH if wide else WIDTH
        length, batch = (WIDE_LENGTH, WIDE_BATCH) if wide else (LENGTH, BATCH)
        shapes = _shapes(self._width, length)
        scale = 2.0 ** -round(math.log2(self._width) / 2)
        self._weights = {
            name: fractions(torch, shape, seed + index, scale).to(device)
            for index, (name, shape) in enumerate(shapes.items())
        }
        tokens = integers(torch, (batch, length + 1), seed + 1000, VOCABULARY).to(device)
        self._inputs, self._targets = tokens[:, :-1], tokens[:, 1:]

    def step(self, touch: Touch) -> dict[str, list[Any]]:
        """Compute forward, backward and update; return what each gives, in this order.

        `touch` sees the first layer's output: tests flip a bit there.
        """
        torch = self._torch
        weights = {name: tensor.clone().requires_grad_() for name, tensor in self._weights.items()}
        loss, hidden = self._forward(weights, touch)
        loss.backward()
        return {
            "hidden": [hidden.detach()],
            "loss": [loss.detach()],
            "gradients": [tensor.grad for tensor in weights.values()],
            "weights": [_adam(torch, tensor, tensor.grad) for tensor in weights.values()],
        }

    def _forward(self, weights: dict[str, Any], touch: Touch) -> tuple[Any, Any]:
        torch = self._torch
        # A product with ones and zeros instead of a lookup: the backward of a lookup adds up in any order on GPUs.
        chosen = torch.nn.functional.one_hot(self._inputs, VOCABULARY).to(torch.float32)
        hidden = chosen @ weights["embedding"] + weights["positions"]
        for layer in range(LAYERS):
            hidden = hidden + self._attention(_normed(torch, hidden), weights, layer)
            inner = torch.nn.functional.gelu(_normed(torch, hidden) @ weights[f"up{layer}"], approximate="tanh")
            hidden = hidden + inner @ weights[f"down{layer}"]
            if layer == 0:
                with torch.no_grad():
                    touch(hidden)
        logits = _normed(torch, hidden) @ weights["embedding"].t()
        wanted = torch.nn.functional.one_hot(self._targets, VOCABULARY).to(torch.float32)
        loss = -(torch.log_softmax(logits, -1) * wanted).sum() / self._targets.numel()
        return loss, hidden

    def _attention(self, hidden: Any, weights: dict[str, Any], layer: int) -> Any:
        torch = self._torch
        batch, length, width = hidden.shape
        parts = (hidden @ weights[f"attention{layer}"]).reshape(batch, length, 3, HEADS, width // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) / math.sqrt(width // HEADS)
        future = torch.ones(length, length, dtype=torch.bool, device=hidden.device).triu(1)
        mixed = torch.softmax(scores.masked_fill(future, -1e9), -1) @ value
        return mixed.transpose(1, 2).reshape(batch, length, width) @ weights[f"output{layer}"]


def _shapes(width: int, length: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"embedding": (VOCABULARY, width), "positions": (length, width)}
    for layer in range(LAYERS):
        shapes[f"attention{layer}"] = (width, 3 * width)
        shapes[f"output{layer}"] = (width, width)
        shapes[f"up{layer}"] = (width, 4 * width)
        shapes[f"down{layer}"] = (4 * width, width)
    return shapes


def _normed(torch: Any, hidden: Any) -> Any:
    return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6)


def _adam(torch: Any, weight: Any, gradient: Any) -> Any:
    """The first step of AdamW, written out: moments begin at zero, so both corrections cancel."""
    with torch.no_grad():
        return weight * (1 - 1e-5) - 1e-3 * gradient / (gradient.abs() + 1e-8)
