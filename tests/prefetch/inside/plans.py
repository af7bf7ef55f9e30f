"""Plans for tests, what this machine can do of them, and waiting for processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from robust_run.mounts.errors import MountRefused
from robust_run.mounts.ladder import KernelFacts
from robust_run.prefetch import inside
from robust_run.prefetch.inside import binds
from robust_run.prefetch.rules.mount_ladder import Need, Rung, choose
from robust_run.prefetch.rules.types import BlockMap


def plan(image: tuple[str, BlockMap], folder: Path, *more: inside.Bind, **fields: Any) -> inside.InsidePlan:
    standard = binds.standard(working_directory=str(folder), home=None, run_directory=None, more=more)
    return inside.InsidePlan(
        image_url=image[0], block_map=image[1], cache_root=str(folder / "cache"), binds=standard, limit_s=60.0, **fields
    )


def can(facts: KernelFacts, rung: Rung, **need: Any) -> None:
    try:
        choose(facts, Need(served=True, **need), (rung,))
    except MountRefused as error:
        pytest.skip(str(error))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], bool], limit_s: float = 60.0) -> bool:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(OSError):  # a thread that has ended
                found += map(int, task.read_text().split())
    return found
