"""Faults that tests inject into check programs. **For tests only**: `ROBUST_CHECK_FAULTS` is read here and nowhere else.

    ROBUST_CHECK_FAULTS='[{"node": "b", "check": "model", "flip": 0.5}]'

A result of a program that had a fault injected says so (`Result.injected`), so it cannot pass for a real one.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from robust_run.errors import UserError
from robust_run.health.checks.types import CheckProgramOrder

VARIABLE = "ROBUST_CHECK_FAULTS"
Probability = Annotated[float, Meta(ge=0, le=1)]


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes wrong, and where."""

    node: str = ""
    """Empty: on every node."""
    check: str = ""
    """Empty: in every check."""
    flip: Probability = 0.0
    """Probability, for each pass of a bitwise check, that a bit of what was computed flips."""
    stuck: bool = False
    """What flips is always the same bit, and not just any: the device is wrong in the same way each time."""
    corrupt: Probability = 0.0
    """Probability, for each exchange of data, that what this node sends is not what it should."""
    hang: bool = False
    """It never goes on."""
    stop: bool = False
    """It stops itself by SIGSTOP."""
    crash: int = 0
    """Signal it dies of."""
    escape: bool = False
    """It leaves a process of a session of its own behind."""
    slow: Annotated[float, Meta(ge=0, le=10)] = 0.0
    """Seconds that each timed piece of work takes longer."""
    seed: int = 0


class Faults:
    """The faults of one program; none, usually."""

    def __init__(self, faults: tuple[Fault, ...] = ()) -> None:
        self._faults = faults
        self._random = random.Random(sum(fault.seed for fault in faults))  # noqa: S311 - no secret

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return bool(self._faults)

    def at_start(self) -> None:
        """Do what is to happen before anything is measured."""
        for fault in self._faults:
            if fault.escape and os.fork() == 0:
                os.setsid()
                time.sleep(3600)
                os._exit(0)
            if fault.crash:
                os.kill(os.getpid(), signal.Signals(fault.crash))
            if fault.stop:
                os.kill(os.getpid(), signal.SIGSTOP)
            while fault.hang:
                time.sleep(3600)

    def slow_down(self) -> None:
        """Take longer."""
        for fault in self._faults:
            time.sleep(fault.slow)

    def flip(self, tensor: Any) -> None:
        """Flip a bit of a tensor, or not."""
        for fault in self._faults:
            if fault.flip and self._random.random() < fault.flip:
                _flip_bit(tensor, 0 if fault.stuck else self._random.randrange(tensor.numel()))

    def corrupt(self, tensor: Any) -> None:
        """Change what is about to be sent, or not."""
        if any(fault.corrupt and self._random.random() < fault.corrupt for fault in self._faults):
            _flip_bit(tensor, self._random.randrange(tensor.numel()))


def faults_for(order: CheckProgramOrder, env: Mapping[str, str]) -> Faults:
    """Return the faults that a test has put into this check on this node. Raises UserError for a malformed variable."""
    text = env.get(VARIABLE, "")
    if not text:
        return Faults()
    try:
        faults = msgspec.json.decode(text, type=tuple[Fault, ...])
    except msgspec.MsgspecError as error:
        raise UserError(f"{VARIABLE} is no list of faults: {error}") from error
    return Faults(tuple(each for each in faults if each.node in ("", order.node) and each.check in ("", order.check)))


def _flip_bit(tensor: Any, index: int) -> None:
    import torch

    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    flat = tensor.detach().view(words).reshape(-1)
    bit = torch.tensor(1 << (4 if tensor.element_size() == 1 else 9), dtype=words, device=tensor.device)
    flat[index] = flat[index] ^ bit
