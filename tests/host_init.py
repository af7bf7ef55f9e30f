"""Process 1 of a simulated host (see hosts.py): starts what it is asked to, reaps all, and ends when nobody holds its socket.

Standard input is its socket. A request is a JSON object `{argv, env, cwd}` with four descriptors: the new process's
standard input, output and error, and a socket that hears `pid N` (as seen by the harness) and later `exit STATUS`. Or it is
`{"adopt": N}` for a process of this host that was forked into it, with such a socket, and a pipe on which that one hears it.
Descriptor 9 is the harness's /proc.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

OUTER_PROC = 9
LARGEST_REQUEST_BYTES = 1 << 20
running: dict[int, socket.socket] = {}


def outer_pid() -> bytes:
    """Return the pid of this process as the harness sees it."""
    return os.readlink(b"self", dir_fd=OUTER_PROC)


def start(request: bytes, descriptors: list[int]) -> None:
    """Fork and exec one process, the leader of its own session."""
    said = socket.socket(fileno=descriptors[3])
    pid = os.fork()
    if pid == 0:
        become(json.loads(request), descriptors, said)
    running[pid] = said
    for descriptor in descriptors[:3]:
        os.close(descriptor)


def adopt(request: bytes, descriptors: list[int]) -> None:
    """Tell of the end of a process that was forked into this host, and let it go on: it waits for a byte."""
    running[json.loads(request)["adopt"]] = socket.socket(fileno=descriptors[0])
    with suppress(OSError):
        os.write(descriptors[1], b"!")
    os.close(descriptors[1])


def become(request: dict[str, Any], descriptors: list[int], said: socket.socket) -> None:
    """In the child: turn into the program; 127 if that cannot be, as in a shell."""
    try:
        said.send(b"pid " + outer_pid())
        os.setsid()
        for number, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, number)
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(request["cwd"])
        os.execvpe(request["argv"][0], request["argv"], request["env"])
    except BaseException as error:
        os.write(2, f"{request['argv'][0]}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(127)


def reap() -> None:
    """Take in every process that has ended, orphans too, and say how those that were asked for did."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if said := running.pop(pid, None):
            with suppress(OSError):  # the harness no longer cares
                said.send(b"exit %d" % os.waitstatus_to_exitcode(status))
            said.close()


def main() -> None:
    """Serve until the other end of the socket is gone; the kernel then kills all that is left in this pid namespace."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(OUTER_PROC, False)
    requests = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    poll.register(woken, select.POLLIN)
    requests.send(b"ready " + outer_pid())
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if woken in ready:
            os.read(woken, 4096)
            reap()
        if requests.fileno() in ready:
            request, descriptors, _, _ = socket.recv_fds(
                requests, LARGEST_REQUEST_BYTES, 4, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
            )
            if not request:
                sys.exit()
            if request.startswith(b'{"adopt"'):
                adopt(request, descriptors)
            else:
                start(request, descriptors)


if __name__ == "__main__":
    main()
