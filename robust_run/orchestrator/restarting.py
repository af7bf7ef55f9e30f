"""Asks a member's launcher to start its workers again, as `robust restart` does: from memory, and no restart is spent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from robust_run.errors import RobustRunError
from robust_run.launcher.operator.reading.client import ApiTarget
from robust_run.launcher.operator.reading.place import SOCKET_NAME
from robust_run.launcher.operator.views.operations import OperatorWish

BY = "robust-run --roles"


def ask_to_restart(run: str, reason: str, say: Callable[[str], None]) -> None:
    """Ask the launcher of a run directory, beside what this process does. `say`: is told where it does not do it."""
    loop = asyncio.get_running_loop()

    def told(asked: asyncio.Future[str]) -> None:
        if not asked.cancelled() and asked.exception() is None and asked.result():
            say(asked.result())

    loop.run_in_executor(None, _ask, run, reason).add_done_callback(told)


def _ask(run: str, reason: str) -> str:
    """Return what went wrong; empty: nothing."""
    try:
        ApiTarget(socket=os.path.join(run, SOCKET_NAME)).post("/v1/restart", OperatorWish(reason=reason, by=BY))
    except (RobustRunError, OSError) as error:
        return f"{os.path.basename(run)} was asked to start its workers again, and does not: {error}"
    return ""
