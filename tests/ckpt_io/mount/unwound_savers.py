"""Programs that save through a mount and are ended by an exception in the middle, or in good order by a signal's handler.

    unwound_savers.py HOW PATH

Each one says "ready" where it waits for a signal.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from typing import Any, BinaryIO

import numpy as np
import torch

STATE = {f"layer{number}": torch.full((100_000,), float(number)) for number in range(10)}
HANDLED = list[bool]()
"""Signals whose handler went on."""
NEW = {"last": torch.ones(200_000)}


class Waits:
    """Waits for a signal when it is pickled."""

    def __reduce__(self) -> Any:
        wait()
        return (int, (3,))


class Slow:
    """A file that waits for a signal when it has taken some bytes."""

    def __init__(self, file: BinaryIO, at: int) -> None:
        self._file, self._left = file, at

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        waits, self._left = self._left > 0 >= self._left - size, self._left - size
        if waits:
            wait()
        return self._file.write(data)


def wait() -> None:
    """Wait until a signal was handled."""
    print("ready", flush=True)
    while not HANDLED:
        time.sleep(0.02)


def exits(*_: object) -> None:
    sys.exit(1)


def torch_save_is_left(path: str) -> None:
    """torch.save writes records one by one; the handler runs between two of them."""
    original = torch._C.PyTorchFileWriter.write_record

    def slowly(self: Any, name: str, *arguments: Any) -> None:
        if name == "data/4":
            wait()
        original(self, name, *arguments)

    torch._C.PyTorchFileWriter.write_record = slowly
    torch.save(STATE, path)


def torch_save_is_left_while_it_pickles(path: str) -> None:
    torch.save(STATE | {"waits": Waits()}, path)


def torch_save_to_a_file_is_left(path: str) -> None:
    with open(path, "wb") as file:
        torch.save(STATE, Slow(file, 2_000_000))


def numpy_save_is_left(path: str) -> None:
    with open(path, "wb") as file:
        np.lib.format.write_array(Slow(file, 2_000_000), np.arange(600_000))


def is_left_before_the_first_byte(path: str) -> None:
    with open(path, "wb") as file:
        wait()
        file.write(b"new")


def a_copy_is_left(path: str) -> None:
    torch.save(STATE, f"{os.environ['ROBUST_TEST_LOCAL']}.pt")
    with open(f"{os.environ['ROBUST_TEST_LOCAL']}.pt", "rb") as source, open(path, "wb") as file:
        shutil.copyfileobj(source, Slow(file, 2_000_000), 65536)


def safetensors_are_left(path: str) -> None:
    from safetensors.torch import save

    data = save(STATE)
    with open(path, "wb") as file:
        for at in range(0, len(data), 65536):
            if at == 65536 * 30:
                wait()
            file.write(data[at : at + 65536])


def saves_in_its_handler(path: str) -> None:
    def last(*_: object) -> None:
        torch.save(NEW, path)
        sys.exit(1)

    signal.signal(signal.SIGTERM, last)
    wait()


def saves_the_same_name_in_its_handler_while_it_saves(path: str) -> None:
    def last(*_: object) -> None:
        torch.save(NEW, path)
        sys.exit(1)

    signal.signal(signal.SIGTERM, last)
    torch_save_to_a_file_is_left(path)


def goes_on_after_its_handler(path: str) -> None:
    """As programs do whose handler only sets a flag."""
    signal.signal(signal.SIGTERM, lambda *_: HANDLED.append(True))
    with open(path, "wb") as file:
        torch.save(NEW, Slow(file, 400_000))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, exits)
    signal.siginterrupt(signal.SIGTERM, True)
    torch.set_num_threads(1)
    globals()[sys.argv[1]](sys.argv[2])
