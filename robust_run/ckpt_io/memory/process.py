"""The keeper's process: one for each node, a child of its agent, so that what it holds outlives every worker.

    python -m robust_run.ckpt_io.memory.process FD

FD is its end of a socketpair to the agent. It ends when the agent's end closes, and dies with the agent.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys

from robust_run.health.sensors.process import die_with_parent
from robust_run.own_process import boot

_BOOT = boot("robust_run.ckpt_io.memory.process", "main(int(sys.argv[1]))")


def command(descriptor: int) -> tuple[str, ...]:
    """Return what starts the process, with the descriptor of its socket.

    No file of the folder it is started in can take the place of a module.
    """
    return (sys.executable, "-c", _BOOT, str(descriptor))


def main(descriptor: int) -> None:
    """Serve, then go at once: no thread is waited for."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):  # workers may save a last step; the agent ends us
        signal.signal(number, signal.SIG_IGN)
    if not die_with_parent(os.getppid()):
        return
    _allow_descriptors()
    from robust_run.ckpt_io.memory.agent_protocol import KeeperNote
    from robust_run.ckpt_io.memory.keeper.serving import Loop

    code = 0
    loop = Loop(socket.socket(fileno=descriptor))
    try:
        loop.serve()
    except OSError as error:
        loop.tell(KeeperNote(text=f"the memory keeper cannot run: {error}"))
        code = 1
    os._exit(code)


def _allow_descriptors() -> None:
    """Each buffer and each worker takes one."""
    with contextlib.suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main(int(sys.argv[1]))
