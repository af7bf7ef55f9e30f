"""From what was typed to a plan: which commands, which folders, which key."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence

from robust_run.snapshot import platforms
from robust_run.snapshot.building import BuildPlan
from robust_run.snapshot.capture.capturing import CaptureSetup
from robust_run.snapshot.defaults import cache_folder
from robust_run.snapshot.errors import SetupRefused
from robust_run.snapshot.ingredients import collect
from robust_run.snapshot.roots import ask, captured_roots, of_this_interpreter
from robust_run.snapshot.rules import key
from robust_run.snapshot.rules.types import Root

_SCRIPT_BYTES = 1 << 20
#: Variables that say something of this machine's Python, and that programs in an image do not get.
_OF_THE_HOST = ("PYTHONPATH", "LD_LIBRARY_PATH")


def commands_of(typed: Sequence[str], files: Sequence[str]) -> tuple[str, ...]:
    """Return the commands of `--setup`, then those of `--setup-file`: each file is one script, which ends at its first failure.

    Raises `SetupRefused` for a file that cannot be read, and for what is no text.
    """
    found = [_text(os.fsencode(command), f"--setup {command!a}") for command in typed]
    found += ["set -e\n" + _text(_read(path, _SCRIPT_BYTES), path) for path in files]
    return tuple(found)


def _text(data: bytes, what: str) -> str:
    """Return a script; it is kept as text, and no shell takes a zero byte."""
    if (zero := data.find(b"\0")) >= 0:
        raise SetupRefused(f"{what}: byte {zero} is zero: it is no script")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SetupRefused(
            f"{what}: byte {error.start} is no UTF-8: it is no script, or one in another encoding"
        ) from error


def prepare(
    commands: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: str,
    python: str = sys.executable,
    more_roots: Sequence[str] = (),
    variables: Sequence[str] = (),
    base_image: str = "",
) -> BuildPlan:
    """Return the plan of a set-up in the environment of an interpreter. Raises `SetupRefused`."""
    places = of_this_interpreter(environment, os.environ) if python == sys.executable else None
    prefix, paths, user_base = places or ask([python], dict(environment))
    more = [os.path.realpath(os.path.join(cwd, path)) for path in more_roots]
    roots = captured_roots(prefix, paths, user_base, more)
    facts = platforms.here(base_image)
    if os.path.realpath(sys.prefix) != prefix:
        raise SetupRefused(
            f"{python}: it is of {prefix}, robust-run of {sys.prefix}: install it there, or name that Python"
        )
    cache = cache_folder(environment)
    found = collect(
        commands, cwd=cwd, roots=roots, facts=facts, environment=environment, variables=variables, cache=cache
    )
    setup = CaptureSetup(
        commands=tuple(commands),
        cwd=cwd,
        roots=roots,
        environment=dict(environment),
        python=(python,),
        work_folders=work_folders(environment),
        home=environment.get("HOME"),
    )
    return BuildPlan(key=key.make(found.ingredients), setup=setup, platform=facts.platform, pinned=found.pinned)


def prepare_in_image(
    commands: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: str,
    image: platforms.ImageFacts,
    mount_at: str | None,
) -> BuildPlan:
    """Return the plan of a set-up inside an image. Raises `SetupRefused`.

    `environment`: ours; the commands get the image's. `mount_at`: see `BlockMap`. Its platform is that of this machine until the
    image's Python is asked, which only a build does: the image's digest is part of the key.
    """
    root = Root(folder="0", path=mount_at or "/")
    found = collect(
        commands,
        cwd=cwd,
        roots=(root,),
        facts=image,
        environment={name: value for name, value in environment.items() if name not in _OF_THE_HOST},
        cache=cache_folder(environment),
    )
    setup = CaptureSetup(
        commands=tuple(commands),
        cwd=cwd,
        roots=(root,),
        environment=dict(environment),
        python=(image.python,),
        work_folders=work_folders(environment),
        home=environment.get("HOME"),
    )
    platform = platforms.here().platform
    return BuildPlan(key=key.make(found.ingredients), setup=setup, platform=platform, pinned=found.pinned)


def work_folders(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return where a capture may put what is written: local disk, then memory where that can be written."""
    first = environment.get("TMPDIR") or "/var/tmp"  # noqa: S108 - a folder of a random name is made in it
    places = [place for place in (first, "/tmp", "/dev/shm") if os.path.isdir(place) and os.access(place, os.W_OK)]  # noqa: S108
    return tuple(dict.fromkeys(places)) or (os.getcwd(),)


def _read(path: str, limit_bytes: int) -> bytes:
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode):  # it would be waited for
            raise SetupRefused(f"{path}: it is a pipe, and would be read more than once; write it to a file")
        with open(path, "rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise SetupRefused(f"{path}: {error.strerror}") from error
    if len(data) > limit_bytes:
        raise SetupRefused(f"{path}: it has more than {limit_bytes} bytes")
    return data
