"""From a stage to one squashfs file: the same bytes for the same files, whenever and by whomever it is packed."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable

import msgspec

from robust_run.mounts import syscalls
from robust_run.snapshot.capture.types import Captured
from robust_run.snapshot.errors import SnapshotError, ToolMissing
from robust_run.snapshot.rules import listing
from robust_run.snapshot.rules.types import Compression

#: 1980-01-01: the earliest time that a zip file can hold, so that wheels can be built from what is restored.
TIMESTAMP_S = 315_532_800
_ADVICE = (
    "install squashfs-tools (apt install squashfs-tools, dnf install squashfs-tools, conda install squashfs-tools)"
)
_VERSION = re.compile(r"version (\d+)\.(\d+)(?:\.(\d+))?")


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """An image that was made."""

    path: str
    size_bytes: int
    sha256: str
    listing_sha256: str
    compression: Compression


def pack(
    captured: Captured,
    image: str,
    *,
    compression: Compression = "zstd",
    processors: int | None = None,
    which: Callable[[str], str | None] = shutil.which,
    timeout_s: float = 7200.0,
) -> Packed:
    """Write the stage and its listing into an image file. Raises `ToolMissing`, `SnapshotError`."""
    tool = tool_path("mksquashfs", which)
    data = listing.encode(captured.items)
    with open(os.path.join(captured.stage, listing.NAME), "wb") as file:
        file.write(data)
    argv = [
        tool,
        captured.stage,
        image,
        "-noappend",
        "-quiet",
        "-no-progress",
        "-no-recovery",
        "-no-xattrs",
        "-all-root",
    ]
    argv += ["-all-time", str(TIMESTAMP_S), "-mkfs-time", str(TIMESTAMP_S), "-b", "131072", "-comp", compression]
    argv += ["-Xcompression-level", "3"] if compression == "zstd" else []
    argv += ["-processors", str(processors)] if processors else []
    _make(argv, image, timeout_s)
    digest, size_bytes = sha256_of(image)
    return Packed(
        path=image,
        size_bytes=size_bytes,
        sha256=digest,
        listing_sha256=hashlib.sha256(data).hexdigest(),
        compression=compression,
    )


def _make(argv: list[str], image: str, timeout_s: float) -> None:
    """Run mksquashfs. An epoch of a build around us would forbid it our own time stamp."""
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    try:
        done = subprocess.run(
            argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False,
            preexec_fn=syscalls.die_with_parent,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise SnapshotError(f"{image}: mksquashfs cannot be run to its end: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise SnapshotError(
            f"{image}: mksquashfs ended with {done.returncode}: {(said or ['it said nothing'])[-1][:300]}"
        )


def sha256_of(path: str) -> tuple[str, int]:
    """Return the sha256 of a file in hex, and its length. Raises OSError."""
    whole = hashlib.sha256()
    size_bytes = 0
    with open(path, "rb", buffering=0) as file:
        buffer = memoryview(bytearray(1 << 20))
        while got := file.readinto(buffer):
            whole.update(buffer[:got])
            size_bytes += got
    return whole.hexdigest(), size_bytes


def tool_path(name: str, which: Callable[[str], str | None] = shutil.which) -> str:
    """Return where a program of squashfs-tools is. Raises `ToolMissing`."""
    found = which(name) or which(f"/usr/sbin/{name}")
    if found is None:
        raise ToolMissing(f"{name} is not installed: {_ADVICE}")
    return found


def tool_version(path: str) -> tuple[int, int, int]:
    """Return the version of a program of squashfs-tools; (0, 0, 0) where it does not say."""
    try:
        done = subprocess.run([path, "-version"], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0, 0)
    match = _VERSION.search((done.stdout + done.stderr).decode("utf-8", "replace"))
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else (0, 0, 0)
