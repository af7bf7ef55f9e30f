"""A container is killed: all of its processes at once, one of them in the middle of a read of the image that it shows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from jobs import wait_for
from prefetch.private_mounts import privately

from robust_run.prefetch.image import build
from tests.prefetch.image.tools import needs, python_path
from tests.prefetch.mount.test_mounting import needs_loop

_PROGRAM = """
import os, sys
from robust_run.mounts import squashfs, syscalls
from robust_run.prefetch import blockmap
from robust_run.prefetch.server import start
image, cache, stage = sys.argv[1:]
syscalls.unshare(syscalls.NEW_MOUNTS)
syscalls.make_private()
os.mkdir(stage + "/blocks")
os.mkdir(stage + "/image")
block_map = blockmap.decode(open(blockmap.sidecar(image), "rb").read())
handle = start(image, block_map, cache, stage + "/blocks")
handle.leave_device_to_keeper()
squashfs.by_kernel(handle.image_path, stage + "/image")
print(handle.status().pid, flush=True)
sys.stdin.readline()
open(stage + "/image/large", "rb").read()
"""


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@privately
def test_nothing_hangs_where_the_reader_and_the_server_are_killed_together(tmp_path: Path) -> None:
    needs_loop()
    needs("mksquashfs")
    source, image = tmp_path / "tree", tmp_path / "image.sqsh"
    source.mkdir()
    (source / "large").write_bytes(os.urandom(8 << 20))
    build.build(str(source), str(image), build.BuildOptions(compression="lz4"))
    (tmp_path / "stage").mkdir()
    argv = [sys.executable, "-c", _PROGRAM, str(image), str(tmp_path / "cache"), str(tmp_path / "stage")]
    env = {**os.environ, "PYTHONPATH": python_path()}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as reader:
        assert reader.stdout is not None
        assert reader.stdin is not None
        server = int(reader.stdout.readline())
        os.kill(server, signal.SIGSTOP)
        reader.stdin.write("read\n")
        reader.stdin.flush()
        wait_for(lambda: state_of(reader.pid) == "D", "a read that waits for the server")
        for pid in (server, reader.pid):
            os.kill(pid, signal.SIGKILL)
        assert reader.wait(60) == -signal.SIGKILL
