"""Rate limit of notices, a token bucket. Pure: `(limiter, now) -> (limiter, whether)`.

A burst is let through, then one for each token that time brings. A person who is woken by the first needs no
fortieth; the next one that is let through says how many were not.
"""

from __future__ import annotations

import msgspec

BURST = 10
EVERY_S = 30.0


class Limiter(msgspec.Struct, frozen=True, kw_only=True):
    """The bucket."""

    burst: int = BURST
    every_s: float = EVERY_S
    """One more is let through after so long."""
    tokens: float = float(BURST)
    at_s: float = float("-inf")
    """When `tokens` were counted."""
    suppressed: int = 0
    """Left out since the last one that was let through."""

    def offer(self, now_s: float, *, must: bool = False) -> tuple[Limiter, bool]:
        """Take in that there is a notice; return what is left, and whether it is let through. `must`: it is, in any case.

        Before that, `suppressed` says how many were left out; afterwards it is 0 where this one was let through.
        """
        gained = (now_s - self.at_s) / self.every_s if self.at_s > float("-inf") else float(self.burst)
        tokens = min(self.tokens + max(gained, 0.0), float(self.burst))
        if tokens >= 1.0 - 1e-9 or must:  # tenths add up to a little less
            return msgspec.structs.replace(self, tokens=max(tokens - 1.0, 0.0), at_s=now_s, suppressed=0), True
        return msgspec.structs.replace(self, tokens=tokens, at_s=now_s, suppressed=self.suppressed + 1), False
