"""The process that serves the mount of a job's checkpoints: a child of its agent, outside of where workers run.

    python -m robust_run.ckpt_io.mount.held FUSE OPTIONS      a descriptor; JSON; standard input is a socket to the agent

It ends when the agent's end of the socket closes. What is mounted belongs to the namespaces of the workers (see `placing`): a
server that is killed leaves errors for who reads, and nothing else. It reads in the name of the agent's first rank: it takes what
is fetched ahead from where ranks would find it, and leaves the same notes of damage, by which the next attempt starts elsewhere.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import warnings
from typing import TYPE_CHECKING

import msgspec

from robust_run.ckpt_io.mount.held_types import AttemptTold, HeldOptions, HeldServing, HeldTrouble
from robust_run.errors import RobustRunError
from robust_run.own_process import boot

if TYPE_CHECKING:
    from robust_run.ckpt_io.mount.held_operations import HeldOperations

_BOOT = boot("robust_run.ckpt_io.mount.held", "main(*sys.argv[1:])")
#: Requests are short; a thread that wants the interpreter does not wait the usual 5 ms for it.
_SWITCH_S = 0.0005
_MOST_BYTES = 1 << 16


def command(fuse: int, options: HeldOptions) -> tuple[str, ...]:
    """Return what starts the process. No file of the folder it is started in can take the place of a module."""
    return (sys.executable, "-c", _BOOT, str(fuse), msgspec.json.encode(options).decode())


def main(fuse: str, text: str) -> None:
    """Serve until the agent hangs up."""
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
    ):  # workers may still read: the agent ends us
        signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(_SWITCH_S)
    options = msgspec.json.decode(text, type=HeldOptions)
    _Server(socket.socket(fileno=os.dup(0)), options).run(int(fuse))


class _Server:
    def __init__(self, agent: socket.socket, options: HeldOptions) -> None:
        self._agent, self._options = agent, options
        self._saying, self._hearing = threading.Lock(), threading.Lock()
        self._came = b""

    def run(self, fuse: int) -> None:
        """Never returns: what libfuse leaves undone at the end is of no interest any more."""
        reason = "the kernel has ended it"
        try:
            self._serve(fuse)
        except ImportError as error:
            reason = f"FUSE cannot be used: {error}; install fuse3 (libfuse3) and the package mfusepy"
        except (RobustRunError, OSError, RuntimeError) as error:
            reason = str(error) or type(error).__name__
        self._say(HeldServing(failed=reason))
        os._exit(1)

    def _serve(self, fuse: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from robust_run.ckpt_io.mount.fuse import DirectFuse
            from robust_run.ckpt_io.mount.held_operations import HeldOperations
        from robust_run.ckpt_io.mount.serve import source_name, tree_of
        from robust_run.ckpt_io.views.cache import UnitCache

        options = self._options
        tree = tree_of(options.url, refresh_s=options.refresh_s)
        operations = HeldOperations(
            tree,
            UnitCache(options.cache_bytes),
            lambda: self._say(HeldServing()),
            options.refresh_s,
            tell=lambda sentence: self._say(HeldTrouble(sentence=sentence)),
            look=self._look,
        )
        threading.Thread(target=self._hear, args=(operations,), name="agent", daemon=True).start()
        # It is mounted: libfuse only serves it. All files are shown as root's of the workers' user namespace, who is our user.
        DirectFuse(
            operations,
            f"/dev/fd/{fuse}",
            foreground=True,
            fsname=source_name(options.url),
            subtype="rrck",
            uid=0,
            gid=0,
        )

    def _hear(self, operations: HeldOperations) -> None:
        while True:
            select.select([self._agent], [], [])
            self._look(operations)

    def _look(self, operations: HeldOperations) -> None:
        """Take in what the agent has said by now."""
        with self._hearing:
            try:
                content = self._agent.recv(_MOST_BYTES, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                content = b""
            if not content:
                os._exit(0)
            *lines, self._came = (self._came + content).split(b"\n")
            for line in lines:
                operations.read_for(msgspec.json.decode(line, type=AttemptTold).env)

    def _say(self, message: HeldServing | HeldTrouble) -> None:
        with self._saying:
            try:
                self._agent.sendall(msgspec.json.encode(message) + b"\n")
            except OSError:  # the agent is gone
                os._exit(0)
