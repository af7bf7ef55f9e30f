"""Whether the kernel lets us see what a process waits for, and what keeps it from that.

Its system calls and memory are for those who may trace it: who runs as the same user, unless the process has made itself
undumpable or the machine forbids it (Yama); where /proc hides processes, such a one is not even there.

Sources: proc(5), ptrace(2) "Ptrace access mode checking", kernel.org Yama.
"""

from __future__ import annotations

import os
from collections.abc import Callable

_TEXT_BYTES = 4096


def _text(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        return (file.read(_TEXT_BYTES) or b"").decode("utf-8", errors="replace")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def why_hidden(
    pid: int,
    root: str = "/proc",
    *,
    text: Callable[[str], str] = _text,
    lives: Callable[[int], bool] = _lives,
    user: Callable[[], int] = os.geteuid,
) -> str:
    """Return what keeps us from seeing what a process waits for, as a clause; "" if nothing does, or it is gone.

    `text` returns the beginning of a file or raises OSError.
    """
    try:
        text(f"{root}/{pid}/syscall")
        return ""
    except PermissionError:
        return _forbidden(pid, root, text, user)
    except OSError:
        return _not_there(pid, root, text, lives)


def _not_there(pid: int, root: str, text: Callable[[str], str], lives: Callable[[int], bool]) -> str:
    """Say why a process is not in /proc; a kernel that tells no system calls of anybody keeps us from nothing that others see."""
    try:
        text(f"{root}/{pid}/stat")
    except OSError:
        return "/proc is mounted with hidepid" if lives(pid) else ""
    return "this kernel does not tell which system call a process is in" if lives(pid) else ""


def _forbidden(pid: int, root: str, text: Callable[[str], str], user: Callable[[], int]) -> str:
    scope = _read(f"{root}/sys/kernel/yama/ptrace_scope", text).strip()
    if scope in ("2", "3"):
        return f"kernel.yama.ptrace_scope is {scope}"
    owners = next(
        (line.split()[1:] for line in _read(f"{root}/{pid}/status", text).splitlines() if line.startswith("Uid:")),
        [],
    )
    if owners and any(owner != str(user()) for owner in owners[:3]):
        return f"it runs as user {owners[1] if len(owners) > 1 else owners[0]}, robust-run as user {user()}"
    if owners and _is_forbidden(f"{root}/{pid}/io", text):  # Yama does not forbid that
        return "the program is undumpable: prctl(PR_SET_DUMPABLE) or file capabilities"
    return f"kernel.yama.ptrace_scope is {scope}" if scope not in ("", "0") else "to trace is not allowed here"


def _read(path: str, text: Callable[[str], str]) -> str:
    try:
        return text(path)
    except OSError:
        return ""


def _is_forbidden(path: str, text: Callable[[str], str]) -> bool:
    try:
        text(path)
    except PermissionError:
        return True
    except OSError:
        return False
    return False
