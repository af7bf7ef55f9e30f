"""Counts of what happens by chance: exact intervals of a rate, and how improbable a share is. Pure, without scipy.

Tails come from the incomplete gamma function (series and continued fraction: Numerical Recipes, section 6.2) and from sums of
binomial terms that only fall. All are sums of positive terms, so small tails have as many right digits as large ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

LEVEL = 0.95
"""Of all intervals."""

_MOST_TERMS = 1_000_000
_TINY = 1e-300
_EPSILON = 1e-16


@lru_cache(maxsize=4096)
def interval(count: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the exact interval of a Poisson mean after `count` events (Garwood, Biometrika 28, 1936).

    It holds the true mean in at least `level` of all cases, more often where counts are small. Raises ValueError for a count
    below 0, or a level that is none.
    """
    if count < 0 or not 0 < level < 1:
        raise ValueError(f"no interval of {count} events at level {level}")
    tail = (1.0 - level) / 2.0
    widest = 10.0 * math.sqrt(count + 1.0) + 40.0 + 4.0 * abs(math.log(tail))
    low = _root(lambda mean: at_least(count, mean) < tail, 0.0, float(count)) if count else 0.0
    return low, _root(lambda mean: 1.0 - at_least(count + 1, mean) > tail, float(count), count + widest)


def at_least(count: int, mean: float) -> float:
    """Return the probability of `count` or more events where `mean` are expected."""
    if count <= 0:
        return 1.0
    if mean <= 0.0:
        return 0.0
    scale = math.exp(count * math.log(mean) - mean - math.lgamma(count))
    return _series(count, mean) * scale if mean < count + 1.0 else 1.0 - _fraction(count, mean) * scale


def _series(count: int, mean: float) -> float:
    term = total = 1.0 / count
    for step in range(1, _MOST_TERMS):
        term *= mean / (count + step)
        total += term
        if term < total * _EPSILON:
            break
    return total


def _fraction(count: int, mean: float) -> float:
    """Return the continued fraction of the upper tail, by Lentz's method."""
    down = mean + 1.0 - count
    ratio, part = 1.0 / _TINY, 1.0 / down
    value = part
    for step in range(1, _MOST_TERMS):
        factor = -step * (step - count)
        down += 2.0
        part = 1.0 / _kept(factor * part + down)
        ratio = _kept(down + factor / ratio)
        value *= part * ratio
        if abs(part * ratio - 1.0) < _EPSILON * 10.0:
            break
    return value


def _kept(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def _root(is_below: Callable[[float], bool], low: float, high: float) -> float:
    """Return where a condition that is true below a point stops to be so."""
    while True:
        middle = (low + high) / 2.0
        if not low < middle < high:
            return middle
        if is_below(middle):
            low = middle
        else:
            high = middle


def share_at_least(count: int, total: int, share: float) -> float:
    """Return the probability that `count` or more of `total` events are one party's, whose due share is `share`.

    Where events come to all at one rate, and that rate is not known, this is exact (a Poisson count given its sum is binomial).
    """
    if count <= 0 or share >= 1.0:
        return 1.0
    if count > total or share <= 0.0:
        return 0.0
    if count <= total * share:
        return 1.0  # at least half: nobody asks for more digits
    log_term = (
        math.lgamma(total + 1)
        - math.lgamma(count + 1)
        - math.lgamma(total - count + 1)
        + count * math.log(share)
        + (total - count) * math.log1p(-share)
    )
    odds = share / (1.0 - share)
    term = sum_ = 1.0
    for at in range(count, total):
        term *= (total - at) / (at + 1) * odds
        sum_ += term
        if term < sum_ * _EPSILON:
            break
    return min(math.exp(log_term) * sum_, 1.0)
