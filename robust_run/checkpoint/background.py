"""Storage in the background: the keepers write what memory has, and training goes on."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Literal

from robust_run.checkpoint import together
from robust_run.ckpt_io.memory.client import MemoryClient

Way = Literal["background", "later", "here"]


def ask(client: MemoryClient | None, step: int, *, is_left_out: bool = False) -> Way:
    """Have the keepers write a step to storage; all ranks take part, and all get the same answer.

    `client`: to this rank's keeper, where memory has the step. `is_left_out`: memory has it not, but will have one that follows
    soon. "later": storage is being written, or memory leaves the step out on some rank. "here": memory has not all of the step,
    so the ranks write it.
    """
    is_unable, is_busy = not is_left_out, is_left_out
    with suppress(Exception):  # no fault of the tier may end a training: the ranks write then
        if client is not None:
            is_busy = client.asks_busy()
            is_unable = False
    is_unable, is_busy = together.any_say_yes(is_unable, is_busy)
    if is_busy:
        return "later"
    if is_unable or client is None:
        return "here"
    with suppress(Exception):  # the others' give up after a while, and say so
        client.flush(step, os.environ.get("ROBUST_RUN_DIR", ""))
    return "background"
