"""A mount of checkpoints whose server died, as the agent has it: made anew beside its heartbeats; an attempt waits for it."""

from __future__ import annotations

import socket
import subprocess
import threading
from pathlib import Path

import pytest

from robust_run.clock import SystemClock
from robust_run.errors import PlatformError
from robust_run.launcher.agent.checkpoint.mount import CheckpointMount
from robust_run.launcher.agent.checkpoint.mount_server import MountServer


class Played(CheckpointMount):
    """Has servers that only wait; each but the first is made when the test lets it."""

    def __init__(self, folder: Path) -> None:
        self.may_be_made, self.fails = threading.Event(), False
        self.may_be_made.set()
        self.said: list[str] = []
        super().__init__("file:///ckpt", str(folder), {}, SystemClock(), self.said.append, tuple)
        self.may_be_made.clear()

    def _made(self) -> MountServer:
        assert self.may_be_made.wait(60)
        if self.fails:
            raise PlatformError("--ckpt-mount: there is no FUSE any more")
        ours, theirs = socket.socketpair()
        with theirs:
            return MountServer(subprocess.Popen(["cat"], stdin=theirs.fileno()), ours, ())

    def loses_its_server(self) -> None:
        self._server.process.kill()
        self._server.process.wait()

    def settle(self) -> None:
        self.may_be_made.set()
        if self._anew is not None:
            self._anew.join(60)


@pytest.fixture
def mount(tmp_path: Path) -> Played:
    return Played(tmp_path / "files")


def test_an_attempt_waits_until_it_is_made_anew_and_nobody_is_blocked(mount: Played) -> None:
    assert mount.is_ready()
    mount.loses_its_server()
    assert [mount.is_ready() for _ in range(3)] == [False] * 3, "asked, it says so at once"
    mount.settle()
    assert mount.is_ready()
    mount.begin({})
    mount.stop()


def test_where_it_cannot_be_made_anew_the_attempt_fails_of_that_and_the_next_one_tries_again(mount: Played) -> None:
    mount.fails = True
    mount.loses_its_server()
    assert not mount.is_ready()
    mount.settle()
    assert mount.is_ready(), "there is nothing to wait for"
    with pytest.raises(PlatformError, match="no FUSE any more"):
        mount.begin({})
    mount.fails = False
    assert not mount.is_ready()
    mount.settle()
    assert mount.is_ready()
    mount.begin({})
    mount.stop()
