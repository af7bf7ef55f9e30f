"""Which folders are captured: by default the environment's prefix, its site-packages and the user's own if they are used."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from robust_run.snapshot.errors import SetupRefused
from robust_run.snapshot.rules.types import Root

MOST_ROOTS = 16
Places = tuple[str, list[str], str | None]
"""An environment's prefix, its site-packages, and the user's base if that folder is there; as real paths."""
#: No environment, and an overlay over them would hide the machine from itself.
_NEVER = ("/", "/proc", "/sys", "/dev", "/run", "/tmp", "/boot")  # noqa: S108 - names to refuse, nothing is put there
_ASK = """
import json, site, sys, sysconfig
print(json.dumps({"prefix": sys.prefix, "paths": [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")],
                  "user": site.getuserbase() if site.ENABLE_USER_SITE else None}))
"""


def captured_roots(
    prefix: str, site_packages: Iterable[str], user_base: str | None = None, more: Iterable[str] = ()
) -> tuple[Root, ...]:
    """Return the roots in the order of their paths; a folder within another is left out. All paths must be real already.

    Raises `SetupRefused` for a folder that cannot be one.
    """
    wanted = [prefix, *site_packages, *([user_base] if user_base else []), *more]
    for path in wanted:
        reason = what_is_wrong(path)
        if reason:
            raise SetupRefused(f"{path[:200]!r} cannot be captured: {reason}; use a virtual environment")
    found: list[str] = []
    for path in sorted(set(wanted)):
        if not any(is_within(path, other) for other in found):
            found.append(path)
    if len(found) > MOST_ROOTS:
        raise SetupRefused(f"{len(found)} folders are to be captured: at most {MOST_ROOTS} can be")
    return tuple(Root(folder=str(index), path=path) for index, path in enumerate(found))


def what_is_wrong(path: str) -> str | None:
    """Return why a path can be no captured root; None: it can be."""
    if not path.startswith("/") or path.startswith("//") or os.path.normpath(path) != path:
        return "its path is not absolute and plain"
    if len(os.fsencode(path)) > 1024 or "\0" in path:
        return "its path is too long, or has a NUL in it"
    if path in _NEVER or any(is_within(path, never) for never in ("/proc", "/sys", "/dev")):
        return "it belongs to the system"
    return None


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies below it; both are plain."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def of_this_interpreter(environment: Mapping[str, str], ours: Mapping[str, str]) -> Places | None:
    """Return what `ask` would, where this interpreter is the one that is asked: without starting it once more.

    `ours`: what this process was started with. None: started in `environment` it could answer otherwise.
    """
    import site
    import sys
    import sysconfig

    if (
        sys.flags.isolated
        or sys.flags.no_site
        or sys.flags.ignore_environment
        or _decisive(environment) != _decisive(ours)
    ):
        return None
    user = site.getuserbase() if site.ENABLE_USER_SITE else None
    return _places(sys.prefix, [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")], user)


def _decisive(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name == "HOME" or name.startswith("PYTHON")}


def ask(python: Sequence[str], environment: dict[str, str], timeout_s: float = 60.0) -> Places:
    """Ask an interpreter for its prefix, site-packages, and the user's base if that folder is there; as real paths.

    Raises `SetupRefused` where it does not answer.
    """
    import json
    import subprocess

    argv = [*python, "-c", _ASK]
    try:
        done = subprocess.run(argv, env=environment, capture_output=True, timeout=timeout_s, check=True)
        said = json.loads(done.stdout)
        prefix, paths, user = str(said["prefix"]), [str(path) for path in said["paths"]], said["user"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        raise SetupRefused(f"{python[0]}: it does not say where its packages are: {str(error)[:200]}") from error
    return _places(prefix, paths, user and str(user))


def _places(prefix: str, paths: list[str], user: str | None) -> Places:
    user_base = os.path.realpath(user) if user and os.path.isdir(user) else None
    return os.path.realpath(prefix), sorted({os.path.realpath(path) for path in paths}), user_base
