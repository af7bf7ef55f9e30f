"""Lines of a rank's program, to tell what a thread does in them. What they say stays here: only what is known by name is told."""

from __future__ import annotations

import os
import stat

from robust_run.tracer.types import Frame

#: A longer file is no program that a person wrote.
FILE_BYTES = 4 << 20
#: Descriptors that are looked through for one of a GPU.
DESCRIPTORS = 4096
_DEVICE = "/dev/nvidia"


def uses_gpu(pid: int, root: str = "/proc") -> bool:
    """Whether a process has a device of NVIDIA's open."""
    folder = f"{root}/{pid}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return False
    for number in numbers[:DESCRIPTORS]:
        try:
            if os.readlink(f"{folder}/{number}").startswith(_DEVICE):
                return True
        except OSError:
            continue
    return False


def line_of(pid: int, frame: Frame, root: str = "/proc") -> str:
    """Return the line that a frame of a process is in, as that process sees its files; "" where that cannot be told."""
    if not frame.file.startswith("/") or frame.line < 1:
        return ""
    try:
        opened = os.open(f"{root}/{pid}/root{frame.file}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_BYTES:
            return ""
        lines = os.read(opened, FILE_BYTES).splitlines()
    except OSError:
        return ""
    finally:
        os.close(opened)
    return lines[frame.line - 1].decode("utf-8", "replace") if frame.line <= len(lines) else ""
