"""A process that makes a place in namespaces of its own and keeps it: what it says, and how it lives.

It reads one line, its order, from a socket that is its standard input, and answers with descriptors of its namespaces and a
`HolderReady`, or with the reason why there is no place. Then it stays until its starter hangs up. Signals that end jobs do not
end it: workers still read while they save their state.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec


class HolderReady(msgspec.Struct, frozen=True, kw_only=True):
    """What a holder says once, as a line of JSON, when the place is made or could not be."""

    failed: str = ""
    """Why it could not be; the rest means nothing then."""
    rung: str = ""
    chosen: str = ""
    """The rung, and why no better one, for people."""
    in_user_namespace: bool = False
    control_path: str = ""
    """Socket of the block server; "": there is none."""
    laid_control_path: str = ""
    """The same for what is laid over an image."""
    env: tuple[str, ...] = ()
    """`NAME=VALUE` each: what the image wants its programs to have."""
    python: str = ""
    """The image's interpreter; "": it has none."""
    mount_at: str = ""
    """For an image of an environment: where it is; "" for a root file system."""


class Problem(msgspec.Struct, frozen=True):
    """What a holder says later, a line each: something went wrong, in a sentence."""

    sentence: str
    is_lost: bool = False
    """The place is of no use any more: what reads the image gets errors."""
    has_lost_reads: bool = False
    """Reads failed. A mount may remember that: the kernel's squashfs hands on the error of a block for as long as it has it."""
    is_note: bool = False
    """Nothing went wrong, or nothing that a reader sees: it is worth knowing."""


@dataclass(frozen=True, kw_only=True)
class HolderResult:
    """What a holder has made of its order."""

    ready: HolderReady
    namespaces: Sequence[int] = ()
    """Descriptors: of the mount namespace, then of the user namespace if there is one."""
    stop: Callable[[], None] = lambda: None
    """Called when the starter has hung up."""
    exit_code: int = 0


Tell = Callable[[Problem], None]


def own_namespace(kind: Literal["mnt", "user"]) -> int:
    """Return a descriptor of a namespace that this process is in."""
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def run(make: Callable[[bytes, Tell], HolderResult], largest_bytes: int, channel: socket.socket) -> int:
    """Do what the starter says, in at most so many bytes, and stay until it hangs up. Return the exit code."""
    lock = threading.Lock()

    def say(message: HolderReady | Problem) -> None:
        with contextlib.suppress(OSError):  # the starter is gone: that shows at once
            channel.sendall(msgspec.json.encode(message) + b"\n")

    def tell(problem: Problem) -> None:
        with lock:
            say(problem)

    with channel.makefile("rb") as lines:
        line = lines.readline(largest_bytes)
        if not line.endswith(b"\n"):
            return 1  # the starter is gone
        made = make(line, tell)
        with lock:
            with contextlib.suppress(OSError):  # the same
                socket.send_fds(channel, [b"-" if made.ready.failed else b"+"], list(made.namespaces))
            say(made.ready)
        if made.ready.failed:
            return made.exit_code
        for descriptor in made.namespaces:
            os.close(descriptor)
        while lines.read(1):
            pass
    made.stop()
    return 0


def main(make: Callable[[bytes, Tell], HolderResult], largest_bytes: int) -> int:
    """Run as a process, with the socket as standard input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return run(make, largest_bytes, socket.socket(fileno=os.dup(0)))
