"""The kernel's squashfs on an image file, through a loop device. For root of the machine."""

from __future__ import annotations

import shutil
import subprocess

from robust_run.prefetch.errors import MountRefused

_LIMIT_S = 120.0


def mount_squashfs(image: str, folder: str, *, offset_bytes: int = 0, limit_s: float = _LIMIT_S) -> None:
    """Mount an image file read-only. The loop device is given back by the kernel as soon as the mount ends.

    mount(8) looks for the device, because others look for one at the same time. Raises `MountRefused`.
    """
    tool = shutil.which("mount", path="/usr/bin:/bin:/usr/sbin:/sbin") or "/bin/mount"
    options = "ro,nodev,nosuid,loop" + (f",offset={offset_bytes}" if offset_bytes else "")
    try:
        done = subprocess.run(
            [tool, "-n", "-t", "squashfs", "-o", options, "--", image, folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MountRefused(
            f"{image}: mounting it took more than {limit_s:g} s: its first blocks do not arrive"
        ) from error
    except OSError as error:
        raise MountRefused(f"mount: {error.strerror}: install util-linux") from error
    if done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[:300]
        raise MountRefused(f"{image}: the kernel does not mount it: {said or f'exit code {done.returncode}'}")
