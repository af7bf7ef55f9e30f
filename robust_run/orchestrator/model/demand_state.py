"""What is remembered of the demand for a role. No behaviour."""

from __future__ import annotations

import msgspec


class Needs(msgspec.Struct, kw_only=True):
    """Of one role. Changed in place by `elastic.demand`."""

    lacks_s: float = 0.0
    """For so long, without a gap, its consumers have waited for more of it."""
    idles_s: float = 0.0
    """For so long it has had a member too many."""
    quiet_until_s: float = 0.0
    """Nothing is concluded before: its members have just become more or fewer."""
    acts: tuple[str, ...] = ()
    """What was done last, and why."""
