"""Sandbox for unpacking hostile archives: a program can write below one folder only (Landlock: Linux 5.13, no privilege).

Sources: landlock(7), linux/landlock.h.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38
#: Write, remove and make, as of version 1; then "refer" (2) and "truncate" (3).
_WRITES_OF_VERSION = ((1, 0x1FF2), (2, 1 << 13), (3, 1 << 14))
_libc = ctypes.CDLL(None, use_errno=True)


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """Return the version of Landlock of this kernel; 0: it has none, or it is switched off."""
    return max(0, int(_libc.syscall(_CREATE, None, 0, _VERSION_FLAG)))


def writes_below(folder: str) -> Callable[[], None] | None:
    """Return what a child calls before it executes a program, so that it can write below `folder` only. None: impossible here."""
    known = version()
    if not known:
        return None
    rights = sum(bits for least, bits in _WRITES_OF_VERSION if known >= least)

    def confine() -> None:
        attributes = ctypes.c_uint64(rights)
        rules = _libc.syscall(_CREATE, ctypes.byref(attributes), 8, 0)
        beneath = _Beneath(rights, os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        if (
            rules < 0
            or _libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, ctypes.byref(beneath), 0)
            or _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
            or _libc.syscall(_RESTRICT, rules, 0)
        ):
            raise OSError(ctypes.get_errno(), "landlock")

    return confine
