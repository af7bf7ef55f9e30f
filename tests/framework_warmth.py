"""One warm process with the frameworks imported, for the tests of all processes of xdist: each rank takes 6 s of CPU for it.

Jobs of a single rank use it, too: with OMP_NUM_THREADS set there is no difference. TEST_WARM=off (`make test-all`) starts
none.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import framework_parts
import warm_ground

LATER = ("transformers.models.llama.modeling_llama", "torch._inductor.compile_fx")
"""What a Llama and DeepSpeed's engine import only once they are used, which costs each rank a second.

Not transformers.trainer: it may start a thread (pyarrow's), and no job starts from a process that has several.
"""
PRELOAD = ",".join(("torch", "torch.distributed", "torch._dynamo", *framework_parts.FRAMEWORKS, *LATER))
START_S = 400.0


@contextmanager
def warm_jobs(shared: Path) -> Iterator[dict[str, str]]:
    """Give the variables of jobs that start from it. `shared`: the folder of one run of tests, whichever process asks.

    The first one starts it, the last one ends it.
    """
    if not warm_ground.WANTED:
        yield {}
        return
    users = shared / f"warm-{_cgroup()}"
    with _alone(users):
        before = users.read_text().split() if users.exists() else []
        folder = before[0] if before else tempfile.mkdtemp(prefix="rw-", dir="/tmp")  # short enough for a socket
        env = {**warm_ground.SEVERAL, "ROBUST_WARM_FOLDER": folder, "ROBUST_WARM_DAEMON": warm_ground.PATIENT_S}
        if not before:
            _warm(env, "start", "--idle-limit", "90m", "--preload", PRELOAD)
        users.write_text(" ".join([folder, *before[1:], str(os.getpid())]))
    try:
        yield env
    finally:
        with _alone(users):
            left = [each for each in users.read_text().split() if each != str(os.getpid())]
            users.write_text(" ".join(left))
            if len(left) == 1:
                users.unlink()
                _warm(env, "stop", "--all", check=False)  # it may have ended by itself: nobody used it for an hour
                shutil.rmtree(folder, ignore_errors=True)


def _cgroup() -> str:
    """Name the cgroup of this process: no job is started from a warm process of another one. With TEST_CPU each has its own."""
    with suppress(OSError):
        return hashlib.sha256(Path("/proc/self/cgroup").read_bytes()).hexdigest()[:10]
    return "all"


@contextmanager
def _alone(users: Path) -> Iterator[None]:
    with users.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _warm(env: dict[str, str], *words: str, check: bool = True) -> None:
    command = [framework_parts.python(), *(warm_ground.START if words[0] == "start" else warm_ground.WARM)[1:], *words]
    subprocess.run(
        command,
        env={**warm_ground.usual_environment(), **framework_parts.environment(), **env},
        check=check,
        timeout=START_S,
        stdout=subprocess.DEVNULL,
    )
