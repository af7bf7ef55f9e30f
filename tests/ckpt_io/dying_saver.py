"""Saves a checkpoint again and again, each time in a process that kills itself a little later.

    dying_saver.py ROOT HOW

For k = 0, 1, 2...: the folder ROOT/k is made ready, with an older checkpoint in it, then a forked process saves and sends itself
SIGKILL at its k-th operation on a store. Ends when a save was not killed; prints how many were.
"""

from __future__ import annotations

import os
import signal
import sys

from saved_checkpoints import Faults, OneWay, Operation, contents, save

from robust_run.ckpt_io.catalog import prune

OLD, NEW, OTHER = contents(1, size_bytes=1_300_000), contents(2, size_bytes=1_300_000), contents(3, size_bytes=5000)
#: How: is there a checkpoint of that name before; targets; written as a stream to stores that take pieces in order only.
HOWS = {
    "anew": (False, 1, False),
    "over": (True, 1, False),
    "over, 3 targets": (True, 3, False),
    "stream over, 2 targets": (True, 2, True),
    "prune": (True, 2, False),
}


def roots(place: str, targets: int) -> list[str]:
    """One root per target."""
    return [f"{place}/{target}" for target in range(targets)]


def main(root: str, how: str) -> None:
    """Die at each operation in turn."""
    exists, targets, streamed = HOWS[how]
    for k in range(1000):
        primary, *also = roots(f"{root}/{k}", targets)
        save(f"{primary}/other", OTHER, also, step=1)
        if exists:
            save(f"{primary}/ck", OLD, also, step=2)
        child = os.fork()
        if not child:
            try:
                die_at(k, how, primary, also, streamed)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            print(k if not os.WEXITSTATUS(status) else "failed", flush=True)
            return
        assert os.WTERMSIG(status) == signal.SIGKILL


def die_at(k: int, how: str, primary: str, also: list[str], streamed: bool) -> None:
    """Save, until the k-th operation."""

    def fault(operation: Operation) -> None:
        if operation.number == k:
            os.kill(os.getpid(), signal.SIGKILL)

    if how == "prune":
        prune(primary, also=also, keep=1, stores=Faults(fault))
    else:
        stores = (OneWay if streamed else Faults)(fault)
        save(f"{primary}/ck", NEW, also, step=3, stores=stores, streamed=streamed)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
