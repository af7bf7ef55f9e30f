"""Exit codes and signals in words."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9; `signal 99` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return (
            f"SIGRTMIN+{number - signal.SIGRTMIN}"
            if signal.SIGRTMIN <= number <= signal.SIGRTMAX
            else f"signal {number}"
        )


def describe_exit(exit_code: int | None) -> str:
    """Return `was killed by SIGKILL (signal 9)` or `exited with code 7`, for an exit code as `subprocess` gives it."""
    if exit_code is None:
        return "could not be ended or never started"
    if exit_code < 0:
        return f"was killed by {signal_name(-exit_code)} (signal {-exit_code})"
    return f"exited with code {exit_code}"
