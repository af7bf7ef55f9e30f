"""Programs that the kernel hides from whoever may not trace, and a user who may not."""

from __future__ import annotations

import os
import shutil

import pytest

#: What a program does that wants nobody to see its memory.
UNDUMPABLE = "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"


def unprivileged() -> tuple[str, ...]:
    """Return the beginning of a command that runs what follows without the right to trace what is not its own."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    return ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")
