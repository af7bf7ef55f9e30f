"""Number of standby nodes worth having. Pure."""

from __future__ import annotations

import math

DAILY_FAILURE_RATE = 0.0012
"""Part of the machines of a large cluster that fail on a day."""
CONFIDENCE = 0.99


def standby_count(nodes: int, daily_failure_rate: float = DAILY_FAILURE_RATE, confidence: float = CONFIDENCE) -> int:
    """Return the fewest standbys that replace all nodes that fail on a day, with this confidence.

    Nodes fail independently of each other: the count is the quantile of a binomial distribution. Its terms are kept as
    logarithms, because the first is too small for a float where nodes are many or bad.
    Raises ValueError for numbers that are no count or no probability.
    """
    if nodes < 0 or not 0 <= daily_failure_rate <= 1 or not 0 <= confidence < 1:
        raise ValueError(f"no quantile of {nodes} nodes at rate {daily_failure_rate} and confidence {confidence}")
    if daily_failure_rate in (0, 1):
        return nodes if daily_failure_rate else 0
    log_odds = math.log(daily_failure_rate) - math.log1p(-daily_failure_rate)
    log_term = nodes * math.log1p(-daily_failure_rate)
    covered = math.exp(log_term)
    count = 0
    while covered < confidence and count < nodes:
        log_term += math.log((nodes - count) / (count + 1)) + log_odds
        covered += math.exp(log_term)
        count += 1
    return count
