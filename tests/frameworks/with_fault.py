"""Runs a training script as `python SCRIPT` would, with a fault in its first attempt: with_fault.py KIND RANK STEP SCRIPT.

kill     the rank is killed by SIGKILL after so many optimizer steps
stop     the rank is stopped by SIGSTOP
slow     the rank does something else for a while: it is healthy
none     nothing
"""

from __future__ import annotations

import gc
import os
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any

SLOW_S = 15.0
"""Longer than what is waited for before a rank is said to be waited for."""


def arm(kind: str, rank: str, step: int) -> None:
    """Have it happen after a step of any optimizer, and leave a file that shows that it did."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    count = 0

    def hook(*_: Any) -> None:
        nonlocal count
        count += 1
        if count == step:
            Path(f"fired-{kind}").touch()
            if kind == "slow":
                time.sleep(SLOW_S)
            else:
                os.kill(os.getpid(), signal.SIGKILL if kind == "kill" else signal.SIGSTOP)

    if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == (rank, "0"):
        register_optimizer_step_post_hook(hook)


gc.set_threshold(100_000, 50, 50)  # a quarter of the CPU, most of it while frameworks are imported
kind, rank, step, script = sys.argv[1:5]
del sys.argv[:4]
sys.path[0] = str(Path(script).resolve().parent)
if kind != "none":
    arm(kind, rank, int(step))
runpy.run_path(script, run_name="__main__")
