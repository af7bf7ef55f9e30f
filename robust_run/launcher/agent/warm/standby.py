"""A standby worker: a fork of the warm process that waits to become a worker, and then becomes one."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress

import msgspec

from robust_run.launcher.agent.warm.become import CannotBecome, become
from robust_run.launcher.agent.warm.messages import LARGEST_BYTES, CannotPromote, Promote, Promoted, StandbyReady, send
from robust_run.launcher.agent.warm.run import run
from robust_run.launcher.agent.workers.process_tree import PR_SET_PDEATHSIG, PR_SET_PTRACER, prctl

#: How long the agent may take to adopt us after the process between has ended. It takes microseconds.
ADOPTION_S = 5.0
#: Made now: see `process`.
_DECODER = msgspec.json.Decoder(Promote)


def stand_by(gate: socket.socket, agent_pid: int) -> None:
    """Wait for a promotion and take on the worker's identity; the user's program begins when all callers have returned.

    A standby worker that is not wanted any more, or cannot become what it is told, ends here.
    """
    os.setsid()
    _wait_for_adoption(agent_pid)
    send(gate, StandbyReady(pid=os.getpid()))
    data, descriptors, _, _ = socket.recv_fds(gate, LARGEST_BYTES, 3)
    if not data:
        os._exit(0)
    try:
        identity = _DECODER.decode(data).identity
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        become(identity)
        run(identity)
        send(gate, Promoted())
    except BaseException as error:
        text = str(error) if isinstance(error, CannotBecome) else f"{type(error).__name__}: {error}"
        send(gate, CannotPromote(text))
        os._exit(0)
    gate.close()


def _wait_for_adoption(agent_pid: int) -> None:
    """Die with the agent from now on. Asked for before the adoption, the end of the process between would kill us."""
    give_up_at_s = time.monotonic() + ADOPTION_S
    while os.getppid() != agent_pid:
        if time.monotonic() > give_up_at_s:
            os._exit(0)
        time.sleep(0.0002)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with suppress(OSError):  # only where the Yama security module is
        prctl(PR_SET_PTRACER, agent_pid)
    if os.getppid() != agent_pid:
        os._exit(0)
