"""What programs that wait are made of: a clock, services that are no children, and their first lines."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


def until(seconds: float) -> Callable[[], bool]:
    """Return a question that is true for so long from now on."""
    end_s = time.monotonic() + seconds
    return lambda: time.monotonic() < end_s


def apart(*argv: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start a program that is no child to wait for: a session of its own, as a service has."""
    return subprocess.Popen(argv, start_new_session=True, **options)


def python(program: str, *arguments: object) -> subprocess.Popen[bytes]:
    """Start a Python program like that and wait until it has said a line, which is left to be read."""
    return apart(sys.executable, "-c", program, *map(str, arguments), stdout=subprocess.PIPE)


def first_line(process: subprocess.Popen[bytes]) -> str:
    """Return what a program has said first."""
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()
