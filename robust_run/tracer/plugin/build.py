"""Finding the plugin for NCCL, or building it: from the wheel if it was built with a compiler, else from source, once a user.

Standard library only, and nothing of robust_run: the build hook of the wheel (`hatch_build.py`) loads this file by itself. What
only compiling needs is imported there: `at_hand` runs before the first worker of a job. The recorder in C (`tracer.native`) is
compiled and kept by the same functions.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from typing import NamedTuple

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plugin.c")
#: Lies beside the source in a wheel that was built where there was a compiler.
OBJECT_NAME = "nccl_plugin.so"
COMPILERS = ("cc", "gcc", "clang")
#: nodelete: NCCL unloads the plugin with its last communicator, while a signal handler and late events may still need it.
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", "-Wl,-z,nodelete")
COMPILE_LIMIT_S = 60.0
WHAT, PURPOSE = "the plugin for NCCL", "to trace NCCL"
WORK_PREFIX = ".nccl-"
#: How often a use is noted.
MARKED_S = 24 * 3600.0

Which = Callable[[str], str | None]


class Plugin(NamedTuple):
    """Where the plugin is, or why there is none. One of the two is empty."""

    path: str
    reason: str


def command(
    compiler: str, source: str, target: str, extra: Sequence[str] = (), flags: Sequence[str] = FLAGS
) -> list[str]:
    """Return what to run to compile the plugin, or another source with flags of its own."""
    return [compiler, *flags, *extra, "-o", target, source]


def compile_plugin(target: str, which: Which | None = None) -> str:
    """Compile the plugin into `target`, which appears whole or not at all. Return why that failed; empty: it did not."""
    return compile_object(target, SOURCE, FLAGS, WHAT, PURPOSE, which)


def compile_object(
    target: str, source: str, flags: Sequence[str], what: str, purpose: str, which: Which | None = None
) -> str:
    """Compile a source into `target`, which appears whole or not at all. Return why that failed; empty: it did not.

    `what` names it in messages, `purpose` says what a compiler would be installed for.
    """
    import shutil
    import subprocess
    import tempfile

    compiler = next((path for path in map(which or shutil.which, COMPILERS) if path), None)
    if compiler is None:
        return f"no C compiler ({', '.join(COMPILERS)}) is on the PATH: install one {purpose}"
    folder = os.path.dirname(target)
    try:
        clear(folder)
        with tempfile.TemporaryDirectory(dir=folder, prefix=WORK_PREFIX) as work:
            built = os.path.join(work, os.path.basename(target))
            result = subprocess.run(
                command(compiler, source, built, flags=flags),
                env={**os.environ, "TMPDIR": work},  # a job may end now, and what the compiler leaves is found here
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMPILE_LIMIT_S,
                check=False,
            )
            if result.returncode:
                first = (result.stderr.strip() or f"exit status {result.returncode}").splitlines()[0]
                return f"{compiler} cannot build {what}: {first[:200]}"
            os.replace(built, target)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{compiler} cannot build {what} in {folder}: {error}"
    return ""


def clear(folder: str) -> None:
    """Remove what was left by processes that were killed while they compiled. Raises OSError."""
    import contextlib
    import shutil
    import time

    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        with contextlib.suppress(FileNotFoundError):  # another process has just ended its own
            if name.startswith(WORK_PREFIX) and time.time() - os.lstat(path).st_mtime > 10 * COMPILE_LIMIT_S:
                shutil.rmtree(path, ignore_errors=True)


def cache_folder(environment: dict[str, str] | None = None) -> str:
    """Return where this user's plugins are kept."""
    variables = os.environ if environment is None else environment
    base = variables.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "robust-run")


def at_hand(folder: str | None = None, shipped: str | None = None) -> str:
    """Return the path of the plugin if it need not be compiled, else empty. Makes nothing, never raises. See `ensure`."""
    beside = _beside(shipped)
    if os.path.isfile(beside):
        return beside
    place = cache_folder() if folder is None else folder
    try:
        if obstacle(place):
            return ""
        target = _target(place)
    except OSError:
        return ""
    return target if os.path.isfile(target) and mark(target) else ""


def mark(path: str) -> bool:
    """Note on a kept object, once a day, that a job uses it: what nobody uses for long is removed (`pruning`). Never raises."""
    import time

    try:
        if time.time() - os.lstat(path).st_mtime > MARKED_S:
            os.utime(path)
    except OSError:
        pass  # it may belong to a file system that only reads
    return True


def ensure(folder: str | None = None, which: Which | None = None, shipped: str | None = None) -> Plugin:
    """Return the plugin: that of the wheel (`shipped`), or one built from the source before, or one built now. Never raises.

    `folder` keeps what is built, under a name that the source's digest is part of; default: `cache_folder`. It must belong to the
    user alone: what lies in it is loaded into training. Takes about a second where it has to compile.
    """
    beside = _beside(shipped)
    if os.path.isfile(beside):
        return Plugin(beside, "")
    place = cache_folder() if folder is None else folder
    try:
        reason = make_private(place)
        target = "" if reason else _target(place)
    except OSError as error:
        return Plugin("", f"{place} cannot keep the plugin for NCCL: {error}")
    if not reason and not os.path.isfile(target):
        reason = compile_plugin(target, which)
        if not reason:
            from robust_run.tracer.plugin.pruning import prune

            prune(target)
    return Plugin("", reason) if reason else Plugin(target, "")


def _beside(shipped: str | None) -> str:
    return os.path.join(os.path.dirname(SOURCE), OBJECT_NAME) if shipped is None else shipped


def _target(place: str) -> str:
    """Return where what is built of this source, with these flags, is kept. Raises OSError where there is no source."""
    import binascii  # hashlib takes 10 ms to import, and only the user may put files there: it is a matter of versions

    with open(SOURCE, "rb") as source:
        content = source.read() + "\0".join(FLAGS).encode()
    digest = f"{binascii.crc32(content):08x}{len(content):08x}"
    return os.path.join(place, f"nccl-plugin-{digest}-{os.uname().machine}.so")


def make_private(folder: str, what: str = WHAT) -> str:
    """Make a folder that only this user can enter. Return what is wrong with it; empty: nothing. Raises OSError."""
    os.makedirs(os.path.dirname(folder) or ".", exist_ok=True)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        return obstacle(folder, what)
    return ""


def obstacle(folder: str, what: str = WHAT) -> str:
    """Return why nothing that lies in a folder may be trusted; empty: it may. Raises OSError."""
    about = os.lstat(folder)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        return f"{folder} is not a folder of this user: {what} is not built there"
    if about.st_mode & 0o022:
        return f"{folder} can be written by others (mode {about.st_mode & 0o777:o}, limit 755): run chmod 700 on it"
    return ""
