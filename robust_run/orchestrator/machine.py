"""What of a job of several roles is this machine's: its GPUs, and the file that says where the leader listens."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from robust_run.roles.client import Place


def place_of(path: str) -> Place | None:
    """Return where an orchestrator listens, or did; None: there is no such file that can be read."""
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=Place)
    except (OSError, msgspec.MsgspecError):
        return None


def devices(env: Mapping[str, str]) -> int:
    """Return how many GPUs this machine gives to the job."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([each for each in visible.split(",") if each.strip()])
    try:
        return sum(name.startswith("nvidia") and name[6:].isdigit() for name in os.listdir("/dev"))
    except OSError:
        return 0
