"""The container of a pod for a launcher that is forked (see host_warmth.py): what `pods.py` has `unshare` and `setpriv` do."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import NoReturn

CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 23, 24, 38
CAPABILITY_VERSION = 0x20080522


def enter(pod: str) -> None:
    """Have the pod's name, and go on as process 1 of its container. The process that called this ends as that one does."""
    Path("/proc/sys/kernel/hostname").write_text(pod)
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(CLONE_NEWPID | CLONE_NEWNS))
    if pid := os.fork():
        _wait(pid)
    _check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    _check(libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None))
    _be_nobody(libc)


def _wait(pid: int) -> NoReturn:
    """Be what `unshare --fork` is, which no signal of the keyboard ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.closerange(0, 1 << 10)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def _be_nobody(libc: ctypes.CDLL) -> None:
    """Have no capability, and no way to get one."""
    number = 0
    while libc.prctl(PR_CAPBSET_READ, number, 0, 0, 0) >= 0:
        _check(libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0))
        number += 1
    _check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    header, none = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _check(libc.capset(header, none))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
