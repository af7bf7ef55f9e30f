"""A child that is forked to see whether a process may be forked at all, and what is set while it imports what others need."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: How long a child forked as a test may take. No attempt waits for it, and a busy machine may not run it for seconds.
CANARY_S = 10.0

#: While this is set, torch asks the driver's library how many GPUs there are, and does not initialise CUDA for it.
NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


@contextmanager
def without_cuda() -> Iterator[None]:
    """Import inside, and CUDA is not initialised where a module only wants to know whether there is a GPU."""
    users_own = os.environ.get(NVML_CHECK)
    os.environ[NVML_CHECK] = "1"
    try:
        yield
    finally:
        os.environ.pop(NVML_CHECK, None)
        if users_own is not None:
            os.environ[NVML_CHECK] = users_own


def try_child(work: Callable[[], object], when: str) -> str:
    """Fork a canary that does the work, and return why it did not end well in time, empty if it did."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os.write(writing, b"alive")
        finally:
            os._exit(0)
    os.close(writing)
    ended = select.select([reading], [], [], CANARY_S)[0]
    word = os.read(reading, 16) if ended else b""
    os.close(reading)
    if word != b"alive":
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if word == b"alive":
        return ""
    return f"a forked child {'failed' if ended else f'hung for {CANARY_S:g} s'} {when}"


def compute() -> None:
    """Compute in parallel."""
    torch = sys.modules.get("torch")
    if torch is not None:
        rows = torch.ones(256, 256)
        torch.ones(1 << 20).sin().sum()
        assert float((rows @ rows)[0, 0]) == 256.0
