"""The process that answers for a mount of checkpoints, and what is done with it from outside."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress

from robust_run.ckpt_io.mount import placing
from robust_run.errors import PlatformError
from robust_run.signals import describe_exit

#: Of making it: on a busy machine a Python takes its time to start.
LIMIT_S = 60.0
END_S = 5.0
READ_AHEAD_BYTES = 4 << 20


class MountServer:
    """The process that serves, and the namespaces that it is seen in."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket, namespaces: tuple[int, ...]) -> None:
        self.process, self.channel = process, channel
        self.namespaces = namespaces
        """Descriptors, not ours to close."""

    @property
    def has_ended(self) -> bool:
        """Whether it serves no more."""
        return self.process.poll() is not None


def check(env: Mapping[str, str]) -> None:
    """Raise PlatformError where nothing can be mounted: before a node takes part in a job. In a process that ends afterwards."""
    process = subprocess.run(
        placing.trial(), stdin=subprocess.DEVNULL, capture_output=True, cwd="/", env=env, timeout=LIMIT_S, check=False
    )
    if process.returncode:
        said = process.stderr.decode(errors="replace").strip().splitlines()
        why = said[-1][:300] if said else f"the process that tried {describe_exit(process.returncode)}"
        raise PlatformError(f"--ckpt-mount: checkpoints cannot be shown as files here: {why}")


def source_of(url: str) -> str:
    """Return what the mount says it shows."""
    from robust_run.ckpt_io.mount.serve import source_name

    return source_name(url)


def widen(device: str) -> None:
    """Let the kernel ask for more at once, where we may: else it asks for 128 KiB at a time."""
    with suppress(OSError), open(f"/sys/class/bdi/{device}/read_ahead_kb", "w", encoding="ascii") as setting:
        setting.write(str(READ_AHEAD_BYTES >> 10))


def end(server: MountServer) -> None:
    """Have it end, and wait for that."""
    with suppress(OSError):
        server.channel.shutdown(socket.SHUT_RDWR)
    server.channel.close()
    reap(server.process)


def reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process that was told to end; kill it where that takes too long."""
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
