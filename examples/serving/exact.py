"""Arithmetic whose results are the same to the last bit in any order, in any batch and on any machine.

Sums of floating point numbers depend on their order, and a library of matrices chooses that by the size of the batch. So all
numbers here lie on a grid: multiples of 2**-12 no larger than 64, weights multiples of 2**-9 no larger than 1/4. Then each
product, and each sum of a few thousand of them, is a whole multiple of 2**-24 below 2**29 and has room in the 53 bits of a
double: nothing is rounded, so nothing depends on the order. What is rounded is rounded by `snap`, one number at a time. Division
and square root are correctly rounded everywhere; exponentials are not, so there is one of our own.
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np

Array = np.ndarray

STEPS = 1 << 12
"""Of the grid, in 1."""
MOST = 64.0


def snap(x: Array) -> Array:
    """Return the nearest numbers of the grid. No zero of them is negative: it would have other bits."""
    found: Array = np.clip(np.rint(x * STEPS) / STEPS, -MOST, MOST) + 0.0
    return found


@functools.cache
def weights(name: str, *shape: int) -> Array:
    """Return weights that follow from their name alone: whoever asks for them holds the same."""
    data = hashlib.shake_256(name.encode()).digest(int(np.prod(shape)))
    return np.frombuffer(data, np.int8).reshape(shape) / 512.0


def norm(x: Array) -> Array:
    """Return each row with a mean square of 1."""
    return snap(x / np.sqrt((x * x).mean(-1, keepdims=True) + 2.0**-10))


def power_of_two(x: Array) -> Array:
    """Return about 2**x: a parabola between whole powers, which are exact."""
    whole = np.floor(x)
    part = x - whole
    found: Array = np.ldexp(1.0 + part * (0.65625 + 0.34375 * part), whole.astype(np.int32))
    return found


def softmax(scores: Array, values: Array) -> Array:
    """Return the mean of values, (..., count, width), with weights that grow as 2**score, (..., count)."""
    parts = snap(power_of_two(scores - scores.max(-1, keepdims=True)))
    return snap((parts[..., None, :] @ values)[..., 0, :] / parts.sum(-1)[..., None])
