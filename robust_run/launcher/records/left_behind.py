"""Workers that a run may have left behind when its controller died: for how long they live at most, by its journal.

A lease that is longer than usual is in the journal, durably, before it is granted (`LeaseRecorded`), and so is its end. So where
the journal of the run can be read, what it says last holds, and nobody waits for the longest lease that there could be.
"""

from __future__ import annotations

from robust_run.errors import UserError
from robust_run.launcher.model.actions import Finish, OpenStore
from robust_run.launcher.model.lease_times import HOLD_MARGIN_S, lease_times
from robust_run.launcher.model.node_events import LeaseRecorded
from robust_run.launcher.records.journal import in_force
from robust_run.launcher.records.journal_reading import read


def left_for_s(journal: str) -> float | None:
    """Return after how long no worker of a run lives that has no controller; 0.0: the run is over. None: this cannot be told."""
    try:
        header, entries = read(journal)
    except (OSError, UserError):
        return None
    if header.job.many is None:
        return None
    lost_s = usual_s = lease_times(header.job.many).lost_s
    is_over = False
    for entry in in_force(entries):
        if isinstance(entry.event, LeaseRecorded):
            lost_s = max(usual_s, entry.event.lost_s)
        is_over = isinstance(entry.action, Finish) or (is_over and not isinstance(entry.action, OpenStore))
    return 0.0 if is_over else lost_s + HOLD_MARGIN_S
