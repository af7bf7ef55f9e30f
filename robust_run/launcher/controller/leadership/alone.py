"""A leader that sees no other node: whether it gives the leadership up for a while, so that who sees more can lead. Pure.

How it knows: others were connected in this term, all of them fell silent at once for this leader, and it cannot go on with what
it has. What looks the same: all others lost their power. Then nobody claims the leadership, and this controller takes it
again a few seconds later; nothing is lost, for it could run nothing. Not meant are nodes that left in good order, a job that
can go on with the nodes that are here, and a machine that stood still: its own time does not count, and others come back.
It happens once for each time that others were seen, so a leader that stays alone does not hand the job round in a circle.
"""

from __future__ import annotations

from typing import TypedDict

#: Looks further apart than this: this process was held up, and nothing is known of that time.
HELD_UP_S = 0.5
#: A node may be noted as lost so long before its connection is seen to be gone.
SLACK_S = 1.0


class Company(TypedDict):
    """What a leader sees of others, see `AloneWatch.look`."""

    others: int
    is_stuck: bool
    lost_at_s: float | None


class AloneWatch:
    """Follows how long a leader has been alone."""

    def __init__(self, patience_s: float) -> None:
        """`patience_s`: as long as silent nodes take to be given up, and a moment more."""
        self._patience_s = patience_s
        self._has_company = False
        self._alone_s = 0.0
        self._company_at_s = 0.0
        self._looked_at_s: float | None = None

    def look(self, others: int, now_s: float, *, is_stuck: bool, lost_at_s: float | None) -> bool:
        """Return whether to stand down now.

        `others`: connected agents of other nodes. `is_stuck`: nothing runs, and nothing can with the nodes that are here.
        `lost_at_s`: when the last node was lost, not left, whose agent may lead; None: no such node was.
        """
        apart_s = 0.0 if self._looked_at_s is None else now_s - self._looked_at_s
        self._looked_at_s = now_s
        if others:
            self._has_company, self._alone_s, self._company_at_s = True, 0.0, now_s
        elif self._has_company and is_stuck and lost_at_s is not None and lost_at_s >= self._company_at_s - SLACK_S:
            self._alone_s += apart_s if apart_s <= HELD_UP_S else 0.0
        else:
            self._alone_s = 0.0
        if self._alone_s < self._patience_s:
            return False
        self._has_company, self._alone_s = False, 0.0
        return True
