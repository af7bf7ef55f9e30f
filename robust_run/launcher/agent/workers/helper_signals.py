"""Signals of an agent's helpers (the store, the warm process): what ends a job is the agent's to act on, and it ends them."""

from __future__ import annotations

import signal


def leave_the_end_to_the_agent() -> None:
    """Ignore the signals that a scheduler sends to every process of a job when it ends it.

    Workers that save a last checkpoint need the store until they are done; and a helper that dies of such a signal before the
    agent has seen its own looks like a fault. Helpers end when the agent closes their socket, or dies. A standby worker that
    is promoted gets Python's handlers back. SIGHUP stays as it is: workers inherit what `nohup` made of it.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
