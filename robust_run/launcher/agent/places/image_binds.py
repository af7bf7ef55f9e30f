"""Bind mounts of a job's folders into its image."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress

from robust_run.ckpt_io.seen import is_url
from robust_run.launcher.agent.places.own_package import own_binds, package
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.model.job_parts import ImageUse
from robust_run.prefetch.belonging import is_in
from robust_run.prefetch.inside import Bind, binds

#: Where a machine has its own system: what an image has there is not replaced because a script lies there.
_SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "usr")


def binds_of(spec: JobSpec, image: ImageUse, env: Mapping[str, str], run_folder: str | None) -> tuple[Bind, ...]:
    """Return what is bound into a root file system. `run_folder`: the run directory, or the folder that it will be in."""
    here = os.getcwd()
    home = env.get("HOME", "")
    home = home if os.path.isabs(home) and os.path.isdir(home) else ""
    ckpt_dir = "" if spec.ckpt_dir is None or is_url(spec.ckpt_dir) else spec.ckpt_dir
    folders = [env.get("TMPDIR", ""), script_folder(spec, here), ckpt_dir]
    if ckpt_dir:
        with suppress(OSError):  # it need not be there yet, and nothing can be bound before it is
            os.makedirs(ckpt_dir, exist_ok=True)
    named = [here, home, run_folder or "", *folders]
    real = [os.path.realpath(path) for path in named if path]
    return binds.standard(
        working_directory=here,
        home=home or None,
        run_directory=run_folder,
        folders=[path for path in dict.fromkeys([*folders, *real]) if os.path.isabs(path)],
        more=(*binds.of_this_host(), *own_binds(image.cache), *users_binds(image)),
    )


def seen(spec: JobSpec, env: Mapping[str, str], run_folder: str | None) -> dict[str, str]:
    """Return what an image of an environment must not hide, real path → what it is.

    The environment in which robust-run itself lies may be replaced as a whole: an image is often made of that very one.
    """
    found = {
        os.getcwd(): "the working directory",
        env.get("HOME", ""): "the home folder",
        run_folder or "": "the run directory",
        "" if spec.ckpt_dir is None or is_url(spec.ckpt_dir) else spec.ckpt_dir: "--ckpt-dir",
        os.path.dirname(os.path.abspath(sys.prefix)): "more than robust-run's own environment",
    }
    if not is_in(os.path.realpath(package()), os.path.realpath(sys.prefix)):
        found[package()] = "robust-run itself"
    return {os.path.realpath(path): what for path, what in found.items() if path}


def users_binds(image: ImageUse) -> tuple[Bind, ...]:
    """Return what `--bind` asked for."""
    return tuple(binds.parse(text) for text in image.binds)


def script_folder(spec: JobSpec, here: str) -> str:
    """Return the folder of a script of this machine; empty where it is the image's, or lies where the system does."""
    path = os.path.join(here, spec.script)
    if not os.path.exists(path):
        return ""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    folder = os.path.normpath(folder)
    return "" if folder == "/" or folder.split("/")[1] in _SYSTEM else folder
