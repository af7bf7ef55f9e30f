"""The driver's own libraries: they must fit the host's kernel module, so programs in an image need the host's, not the image's.

Only NVIDIA's: of AMD's driver nothing but the device files is the host's. Everything above the driver (CUDA's runtime, NCCL,
cuDNN) is the image's own.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable

from robust_run.prefetch.inside.types import Bind

#: Where they lie in the image; last on LD_LIBRARY_PATH.
FOLDER = "/.robust-driver"
_DEVICE = "/dev/nvidiactl"
_LINE = re.compile(r"\s*(?P<name>\S+) \((?P<kind>[^)]*)\) => (?P<path>/.+)")
_OF_THE_DRIVER = re.compile(r"lib(cuda|cudadebugger|nvcuvid|nvoptix|nvidia-(?!container)[a-z0-9-]+)\.so(\.\d+)*")
_KINDS = {"x86_64": "x86-64", "aarch64": "AArch64"}
_MOST = 200


def driver_binds(lines: Iterable[str], machine: str) -> tuple[Bind, ...]:
    """Return what of `ldconfig -p` is the driver's, to be bound into `FOLDER`. Pure."""
    kind = _KINDS.get(machine, "")
    found: dict[str, str] = {}
    for line in lines:
        matched = _LINE.fullmatch(line.rstrip("\n"))
        if matched and kind in matched["kind"] and _OF_THE_DRIVER.fullmatch(matched["name"]):
            found.setdefault(matched["name"], matched["path"])
    return tuple(
        Bind(source=path, destination=f"{FOLDER}/{name}", read_only=True, optional=True)
        for name, path in sorted(found.items())[:_MOST]
    )


def of_this_host() -> tuple[Bind, ...]:
    """Return the driver's libraries here; none where there is no NVIDIA device, or the linker's table cannot be read."""
    if not os.path.exists(_DEVICE):
        return ()
    tool = next((path for path in ("/sbin/ldconfig", "/usr/sbin/ldconfig") if os.access(path, os.X_OK)), None)
    if tool is None:
        return ()
    try:
        listed = subprocess.run([tool, "-p"], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return ()
    return driver_binds(listed.stdout.decode("utf-8", "replace").splitlines(), platform.machine())
