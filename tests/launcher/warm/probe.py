"""A program that writes down all it can see of its process, for a comparison: `probe.py FILE`."""

import builtins
import gc
import os
import resource
import signal
import sys
import threading
import types

SIGNAL_LINES = ("SigBlk", "SigIgn", "SigCgt")


def of_start() -> dict[str, object]:
    """Facts that are so before anything is imported."""
    main = sys.modules["__main__"]
    frames = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_code.co_name))
        frame = frame.f_back
    stat = read("/proc/self/stat").rpartition(")")[2].split()
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "main": {name: type(value).__name__ for name, value in vars(main).items()},
        "main.__file__": getattr(main, "__file__", None),
        "main.__spec__": getattr(main.__spec__, "name", None),
        "main.__loader__": str(type(main.__loader__)),
        "main.__package__": main.__package__,
        "main.__doc__": main.__doc__,
        "main.__cached__": getattr(main, "__cached__", None),
        "frames": frames,
        "path": sys.path,
        "path_hooks": [str(hook).split(" at ")[0] for hook in sys.path_hooks],
        "executable": [sys.executable, sys.prefix, sys.base_prefix, sys.exec_prefix, sys.platlibdir],
        "sys": sorted(vars(sys)),
        "flags": repr(sys.flags),
        "warnoptions": [sys.warnoptions, dict(sys._xoptions)],
        "builtins": sorted(vars(builtins)),
        "hooks": [str(sys.excepthook), str(sys.unraisablehook), sys.gettrace(), sys.getprofile()],
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval(), gc.isenabled(), gc.get_threshold()],
        "environ": dict(os.environ),
        "environ in proc": sorted(read("/proc/self/environ").split("\0")),
        "cwd": os.getcwd(),
        "umask": os.umask(os.umask(0)),
        "affinity": sorted(os.sched_getaffinity(0)),
        "priority": [os.nice(0), os.sched_getscheduler(0), read("/proc/self/oom_score_adj")],
        "session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "terminal": stat[4],
        "cmdline": read("/proc/self/cmdline"),
        "comm": read("/proc/self/comm"),
        "signals": {number: str(signal.getsignal(number)) for number in signal.valid_signals()},
        "signal mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "descriptors": descriptors(),
        "threads": [thread.name for thread in threading.enumerate()],
        "main thread": [
            threading.main_thread() is threading.current_thread(),
            threading.get_native_id() == os.getpid(),
        ],
        "its native id": threading.main_thread().native_id == os.getpid(),
        "rlimits": [resource.getrlimit(number) for number in range(16)],
        "stdin": stream(sys.stdin),
        "stdout": stream(sys.stdout),
        "stderr": stream(sys.stderr),
        "std": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    }


def of_torch() -> dict[str, object]:
    """Facts that are so once the program has imported torch."""
    import logging
    import warnings

    import torch

    return {
        # Only now: glibc handles a signal of its own once there has been a thread.
        "signals in proc": [line for line in read("/proc/self/status").splitlines() if line.startswith(SIGNAL_LINES)],
        "tasks": len(os.listdir("/proc/self/task")),
        "torch threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "warnings": [str(entry[:4]) for entry in warnings.filters],
        "logging": [str(handler) for handler in logging.getLogger().handlers],
        "meta_path": [str(finder).split(" object at ")[0] for finder in sys.meta_path],
        "cuda": [torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()],
        "multiprocessing": multiprocessing(),
    }


def multiprocessing() -> list[object]:
    import multiprocessing.process

    current = multiprocessing.current_process()
    return [
        multiprocessing.process.ORIGINAL_DIR,
        current.name,
        current.pid == os.getpid(),
        multiprocessing.parent_process(),
        multiprocessing.get_start_method(allow_none=True),
        len(current.authkey),
    ]


def read(path: str) -> str:
    with open(path, errors="surrogateescape") as file:
        return file.read()


def descriptors() -> dict[str, str]:
    """Without libffi's own file: releases from 3.5 on keep it open once ctypes has been imported."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}").split(":")[0]
        except OSError:
            continue
    return {name: target for name, target in found.items() if not os.path.basename(target).startswith("libffi.so")}


def stream(file: object) -> dict[str, str]:
    names = "encoding errors line_buffering write_through newlines name mode"
    facts = {name: str(getattr(file, name, "absent")) for name in names.split()}
    methods = {name: str(getattr(file, name)()) for name in "isatty seekable readable writable fileno".split()}
    buffer = file.buffer
    kinds = [type(buffer).__name__, buffer.name, getattr(buffer, "mode", "absent")]
    return {**facts, **methods, "buffer": str(kinds)}


def main() -> None:
    import json

    facts = of_start()
    if "ROBUST_PROBE_TORCH" in os.environ:
        facts.update(of_torch())
    facts["modules"] = sorted(sys.modules)
    with open(sys.argv[-1], "w") as file:
        json.dump(facts, file, default=str)


if __name__ == "__main__":
    main()
