"""A small root file system for tests, from this machine's own programs, and an ordinary user to run things as."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from robust_run.prefetch import blockmap
from robust_run.prefetch.image import build
from robust_run.prefetch.rules.types import BlockMap
from tests.prefetch.image.tools import needs, python_path
from tests.prefetch.private_mounts import fuse_for_all

NOBODY = 65534
_PROGRAMS = ("bash", "cat", "ls", "id", "mkdir", "touch", "rm", "sleep", "env", "readlink")


def make_rootfs(folder: Path) -> Path:
    """Make a tree with a shell, a few programs, and links that lead to places outside of it."""
    root = folder / "rootfs"
    for name in ("bin", "etc", "proc", "sys", "dev", "opt"):
        (root / name).mkdir(parents=True)
    for program in _PROGRAMS:
        found = shutil.which(program)
        if found is None:
            pytest.skip(f"{program} is not installed")
        shutil.copy(found, root / "bin" / program)
        for word in subprocess.run(["ldd", found], capture_output=True, text=True, check=False).stdout.split():
            if word.startswith("/") and not (root / word[1:]).exists():
                (root / word[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, root / word[1:])
    (root / "etc/only-in-image").write_text("image\n")
    (root / "etc/environment").write_text("IMAGE_VARIABLE=from the image\nPATH=/bin\n")
    (root / "way").symlink_to("/opt")
    return root


def make_image(folder: Path, mount_at: str | None = None) -> tuple[str, BlockMap]:
    """Make an image of it that anybody may read."""
    needs("mksquashfs")
    image = folder / "image.sqsh"
    build.build(str(make_rootfs(folder)), str(image), build.BuildOptions(mount_at=mount_at, compression="lz4"))
    os.chmod(image, 0o644)
    return str(image), blockmap.decode((folder / "image.sqsh.blocks.json").read_bytes())


@functools.cache
def ordinary_user() -> tuple[list[str], dict[str, str]]:
    """Return how to run Python as an ordinary user who has this package: the beginning of an argv, and variables.

    Skips where that user cannot: no setpriv, or no interpreter that others than root may run.
    """
    needs("setpriv")
    if os.geteuid() != 0:
        return [sys.executable], {"PYTHONPATH": python_path()}
    become = [*fuse_for_all(), "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    env = {"PYTHONPATH": python_path(), "PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    check = "import json, subprocess, sys, msgspec, robust_run.prefetch.inside; subprocess.check_call([sys.executable, '-c', ''])"
    for python in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        try:
            done = subprocess.run([*become, python, "-c", check], env=env, capture_output=True, cwd="/", check=False)
        except OSError:
            continue
        if not done.returncode:
            return [*become, python], env
    pytest.skip("no Python here that an ordinary user may run")
