"""Fingerprint of this interpreter and what it imports, as far as a later change would make a warm process stale."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from robust_run.launcher.start.warm.key import COMPILER_CACHE, Announcement, Fingerprint, variables_read_at_import

_PACKAGE_FOLDERS = ("site-packages", "dist-packages")


def fingerprint(
    env: Mapping[str, str], preload: tuple[str, ...], cwd: str, *, omp_threads_defaulted: bool
) -> Fingerprint:
    """Return what the workers of a job are that this interpreter launches from `cwd` with the environment `env`."""
    variables = variables_read_at_import(env, omp_threads_defaulted, compiler_cache(env))
    return Fingerprint(
        executable=sys.executable,
        real_executable=os.path.realpath(sys.executable),
        python=sys.version,
        variables=variables,
        folder=cwd if is_relative(variables.get("PYTHONPATH", "")) else "",
        preload=preload,
    )


def compiler_cache(env: Mapping[str, str]) -> str:
    """Return the folder that torch's compiler takes in this process where none is named, if `env` names any; else empty."""
    if COMPILER_CACHE not in env:
        return ""  # and no launcher pays for the imports
    import getpass
    import re
    import tempfile

    try:
        user = getpass.getuser()
    except (KeyError, ImportError, OSError):  # a user without a name; OSError from Python 3.13 on
        return ""
    return os.path.join(tempfile.gettempdir(), "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user))


def is_relative(python_path: str) -> bool:
    """Whether a PYTHONPATH means something else in another working directory."""
    return bool(python_path) and not all(os.path.isabs(entry) for entry in python_path.split(os.pathsep))


def package_folders() -> dict[str, int]:
    """Return the folders packages are installed in, with their times of change: installing anything changes them."""
    folders = [path for path in sys.path if os.path.basename(path) in _PACKAGE_FOLDERS]
    return {path: changed[0] for path in folders if (changed := _change(path))}


def own_files() -> dict[str, tuple[int, int]]:
    """Return what was imported from outside the standard library and the package folders, and the interpreter itself."""
    library = os.path.dirname(os.__file__) + os.sep
    folders = tuple(path + os.sep for path in package_folders())
    paths = {os.path.realpath(sys.executable)}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and os.path.isabs(path) and not path.startswith((library, *folders)):
            paths.add(path)
    return {path: changed for path in sorted(paths) if (changed := _change(path))}


def stale(announcement: Announcement) -> str:
    """Return what has changed on disk since the warm process imported it, empty if nothing has."""
    for path, nanoseconds in announcement.folders.items():
        changed = _change(path)
        if changed is None or changed[0] != nanoseconds:
            return f"packages in {path} were installed or removed since it started; start it anew"
    for path, size_and_time in announcement.files.items():
        if _change(path) != size_and_time:
            return f"{path} has changed since it started; start it anew"
    return ""


def _change(path: str) -> tuple[int, int] | None:
    """Return time of change and size, None for what is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
