"""Building the recorder in C, once a user and Python: from the wheel where that has it, else from source; and trying it.

What lies under its final name has been loaded and used once by a process that could be spared (`trial`): a shared object that
kills whoever loads it never gets there, and workers load nothing else. Only a Python of the very same build is given it.
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from robust_run.tracer.arm.place import FLAGS, MODULE, SOURCE, cache_folder, suffix, target_path
from robust_run.tracer.plugin.build import Which, compile_object, make_private, mark, obstacle
from robust_run.tracer.plugin.pruning import prune

TRIAL = os.path.join(os.path.dirname(SOURCE), "trial.py")
WHAT, PURPOSE = "the recorder in C", "to have calls recorded in less time"
TRIAL_LIMIT_S = 60.0
BAD_SUFFIX = ".bad"
#: Signals that a faulty object ends its process with. Others (a machine without memory) say nothing about it.
FAULTS = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS")


class Recorder(NamedTuple):
    """Where the recorder in C is, or why there is none. One of the two is empty."""

    path: str
    reason: str


def object_name() -> str:
    """Return the name of an object beside the source in a wheel."""
    return f"{MODULE}{suffix()}"


def is_ready(folder: str | None = None) -> bool:
    """Whether there is nothing to build: it lies there, or has been found bad. Makes nothing, never raises."""
    try:
        target = target_path(folder or cache_folder())
        kept = [path for path in (target, target + BAD_SUFFIX) if os.path.isfile(path)]
        return not obstacle(os.path.dirname(target), WHAT) and any(map(mark, kept))
    except OSError:
        return False


def is_shipped() -> bool:
    """Whether the wheel has one for this Python, so that no compiler is needed."""
    return os.path.isfile(_beside(None))


def ensure(folder: str | None = None, which: Which | None = None, shipped: str | None = None) -> Recorder:
    """Return the recorder: one that was built before, or that of the wheel (`shipped`), or one compiled now. Never raises.

    `folder` keeps it; default: that of the plugin for NCCL. It must belong to the user alone. Compiling takes a second.
    """
    place = cache_folder() if folder is None else folder
    try:
        reason = make_private(place, WHAT)
        target = "" if reason else target_path(place)
        if not reason and not os.path.isfile(target):
            reason = _known_bad(target) or _make(target, which, shipped)
            if not reason:
                prune(target)
    except OSError as error:
        return Recorder("", f"{place} cannot keep {WHAT}: {error}")
    return Recorder("", reason) if reason else Recorder(target, "")


def compile_recorder(target: str, which: Which | None = None) -> str:
    """Compile for this Python into `target`. Return why that failed; empty: it did not."""
    import sysconfig

    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return f"{WHAT} is not for a Python without the interpreter's lock"
    include = sysconfig.get_path("include")
    if not os.path.isfile(os.path.join(include, "Python.h")):
        return f"{include} has no Python.h: install Python's headers {PURPOSE}"
    return compile_object(target, SOURCE, (*FLAGS, "-I", include), WHAT, PURPOSE, which)


def _make(target: str, which: Which | None, shipped: str | None) -> str:
    """Make an object, try it, and put it in its place. Return why that failed. Raises OSError."""
    import shutil
    import tempfile

    from robust_run.tracer.plugin.build import WORK_PREFIX, clear

    folder = os.path.dirname(target)
    clear(folder)
    beside = _beside(shipped)
    with tempfile.TemporaryDirectory(dir=folder, prefix=WORK_PREFIX) as work:
        made = os.path.join(work, os.path.basename(target))
        if os.path.isfile(beside):
            shutil.copyfile(beside, made)
        elif reason := compile_recorder(made, which):
            return reason
        reason, is_final = _try(made)
        if reason and is_final:
            with open(os.path.join(work, "bad"), "w", encoding="utf-8") as file:
                file.write(reason)
            os.replace(os.path.join(work, "bad"), target + BAD_SUFFIX)
        elif not reason:
            os.replace(made, target)
    return reason


def _try(path: str) -> tuple[str, bool]:
    """Use an object in a process of its own. Return what came of it, empty if all is well; and whether it would come again."""
    import signal
    import subprocess

    try:
        result = subprocess.run(
            [sys.executable, "-I", TRIAL, path],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TRIAL_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{WHAT} could not be tried: {error}", False
    code = result.returncode
    if code == 0:
        return "", False
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"{WHAT} ended its trial with {name}", name in FAULTS
    last = (result.stderr.strip() or f"exit status {code}").splitlines()[-1]
    return f"{WHAT} failed its trial: {last[:200]}", True


def _known_bad(target: str) -> str:
    """Return why an earlier trial failed; empty: there was none. Raises OSError."""
    try:
        with open(target + BAD_SUFFIX, encoding="utf-8", errors="replace") as file:
            return file.read(1000) or f"{WHAT} failed its trial"
    except FileNotFoundError:
        return ""


def _beside(shipped: str | None) -> str:
    return os.path.join(os.path.dirname(SOURCE), object_name()) if shipped is None else shipped
