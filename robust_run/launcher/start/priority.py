"""Scheduling priority of what keeps a job of several nodes alive: its guards, agents and controller, where that is allowed.

They use next to nothing, and a lease ends when they are kept from the little. What they start (workers, sensors, commands) runs
at the usual priority: the kernel resets it at each fork.
"""

from __future__ import annotations

import os

NICENESS = -5


def raise_priority() -> bool:
    """Raise this thread's priority; return whether it was. One that a user has chosen, and a missing right, are left alone."""
    try:
        if os.getpriority(os.PRIO_PROCESS, 0) != 0 or os.sched_getscheduler(0) != os.SCHED_OTHER:
            return False
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    except (OSError, AttributeError):
        return False
    return True
