"""Fork safety check: whether a process may be forked and its child used as if it were fresh. Looks, and changes nothing.

A fork copies one thread. The others are gone in the child, and the locks that they held stay held; a CUDA context does not
survive at all. So before every fork: one thread, no CUDA context, no children, no sockets or pipes but our own. The one
exception are threads that take care of themselves across a fork.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection

#: Threads that install their own fork handlers: jemalloc's (in pyarrow).
SAFE_THREADS = frozenset({"jemalloc_bg_thd"})

#: What cuCtxGetCurrent answers where CUDA was never initialised in this process.
CUDA_ERROR_NOT_INITIALIZED = 3


def unfit(ours: Collection[int]) -> str:
    """Return why this process must not be forked, empty if it may. `ours` are descriptors known to be harmless.

    OpenBLAS starts idle threads when it is loaded, and its own fork handler ends them: call this after a throw-away fork.
    """
    return _threads() or cuda_context() or _children() or _descriptors(ours) or _resource_tracker()


def _threads() -> str:
    threading = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
        names = ", ".join(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
        return f"a Python thread runs ({names})"
    tasks = [task for task in os.listdir("/proc/self/task") if task != str(os.getpid())]
    names_of_tasks = [name for task in tasks if (name := _name(task)) and name not in SAFE_THREADS]
    if names_of_tasks:
        return f"{len(names_of_tasks)} native thread(s) run ({', '.join(sorted(set(names_of_tasks)))})"
    return ""


def _name(task: str) -> str:
    try:
        with open(f"/proc/self/task/{task}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def cuda_context() -> str:
    """Return why CUDA forbids a fork, empty if it was never initialised here. Does not initialise it."""
    import ctypes

    torch_cuda = sys.modules.get("torch.cuda")
    if torch_cuda is not None and torch_cuda.is_initialized():
        return "torch has initialised CUDA"
    try:
        library = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return ""
    context = ctypes.c_void_p()
    if library.cuCtxGetCurrent(ctypes.byref(context)) != CUDA_ERROR_NOT_INITIALIZED:
        return "CUDA is initialised"
    return ""


def _children() -> str:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            found = file.read().split()
    except OSError:
        return ""
    return f"it has child processes ({', '.join(found)})" if found else ""


def _descriptors(ours: Collection[int]) -> str:
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue  # the listing's own
        if int(entry) not in ours and target.startswith(("socket:", "pipe:", "anon_inode:")):
            return f"descriptor {entry} is open ({target})"
    return ""


def _resource_tracker() -> str:
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    if tracker is not None and getattr(tracker._resource_tracker, "_fd", None) is not None:
        return "multiprocessing's resource tracker runs"
    return ""
