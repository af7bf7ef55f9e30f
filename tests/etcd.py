"""A real etcd for tests: Debian's etcd-server on free ports with a folder of its own. Without one, the test is skipped."""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import wait_for

INSTALL = ["apt-get", "install", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=60", "etcd-server"]


@functools.cache
def etcd_program() -> str:
    """Return the path of etcd; installed first where this is a Debian and we are root. Skips the test otherwise."""
    found = shutil.which("etcd")
    if found:
        return found
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip("etcd is not installed, and installing it needs root and apt-get")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(INSTALL, env=environment, capture_output=True, text=True, timeout=150, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("etcd is not installed, and apt-get install etcd-server took too long")
    found = shutil.which("etcd")
    if not found:
        pytest.skip(f"etcd is not installed: apt-get says {done.stderr.strip().splitlines()[-1:]}")
    return found


def free_port() -> int:
    """Return a port that nobody listens on at the moment, and that the kernel gives to nobody who asks for any."""
    while True:
        port = random.randrange(20_000, 29_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Etcd:
    """One member that is a cluster of its own."""

    def __init__(self, folder: Path) -> None:
        self.program = etcd_program()
        self.folder = folder
        self.port = self._peer_port = free_port()
        while self._peer_port == self.port:
            self._peer_port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What --coordinator takes."""
        return f"etcd://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, with the data it had before, and wait until it answers."""
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self._peer_port}"
        command = [self.program, "--name", "test", "--data-dir", str(self.folder / "data")]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"test={peer}", "--logger", "zap"]
        with (self.folder / "etcd.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env={"PATH": os.defpath})
        wait_for(self.answers, "etcd answers")

    def answers(self) -> bool:
        """Whether it is ready."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/health")
            return b"true" in connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def pause(self) -> None:
        """Let it hang: connections are accepted and nothing is answered."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as a power loss would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)
            self.process = None


@contextlib.contextmanager
def running_etcd(folder: Path) -> Iterator[Etcd]:
    """Run an etcd for the length of a block."""
    server = Etcd(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
