"""Forks savers that torch.save a state through a mount, and kills each of them at some moment.

    killed_savers.py MOUNT SEED COUNT

Half of them stop at a byte that chance chose, and are killed there; the others write to a path, as most programs do, and are
killed after a time that chance chose. Prints a line of JSON for each: its name, the value that it saved, and whether it is known
to have been in the middle.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
from typing import BinaryIO

import torch

ELEMENTS = 600_000


class Stopping:
    """A file that stops at a byte."""

    def __init__(self, file: BinaryIO, at: int) -> None:
        self._file, self._left = file, at

    def write(self, data: bytes) -> int:
        """Write, or stop for good."""
        if len(data) > self._left:
            self._file.write(data[: self._left])
            os.write(1, b"!")
            signal.pause()
        self._left -= len(data)
        return self._file.write(data)


def save(path: str, value: int, stop_at: int | None) -> None:
    """Save, and wait."""
    state = {"weight": torch.full((ELEMENTS,), float(value)), "value": value}
    if stop_at is None:
        os.write(1, b"!")
        torch.save(state, path)
    else:
        with open(path, "wb", buffering=0) as file:
            torch.save(state, Stopping(file, stop_at))
    signal.pause()


def main(mount: str, seed: int, count: int) -> None:
    """Kill them, one after the other."""
    torch.set_num_threads(1)
    chance = random.Random(seed)
    save_s = 0.1
    for number in range(count):
        name = "model.pt" if number % 3 else f"step-{number}.pt"
        stop_at = chance.randrange(ELEMENTS * 4) if number % 2 else None
        ready, says = os.pipe()
        child = os.fork()
        if not child:
            os.dup2(says, 1)
            save(f"{mount}/{name}", number, stop_at)
        select.select([ready], [], [])
        began_s = time.monotonic()
        if stop_at is None:
            time.sleep(chance.random() * save_s * 2)
        os.kill(child, chance.choice([signal.SIGKILL, signal.SIGTERM]))
        _, status = os.waitpid(child, 0)
        save_s = max(0.02, time.monotonic() - began_s) if stop_at is None else save_s
        assert os.WIFSIGNALED(status)
        os.close(ready)
        os.close(says)
        print(json.dumps([name, number, stop_at is not None]), flush=True)
        if sys.stdin.readline() != "go on\n":
            return


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
