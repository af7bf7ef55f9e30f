"""A standby worker: a fork of the warm process that waits to become a worker, and then becomes one."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from typing import NoReturn

import msgspec

from robust_run.launcher.process_tree import PR_SET_PDEATHSIG, prctl
from robust_run.launcher.warm.become import CannotBecome, become
from robust_run.launcher.warm.messages import LARGEST_BYTES, CannotPromote, Promote, Promoted, StandbyReady, send
from robust_run.launcher.warm.run import run

#: How long the agent may take to adopt us after the process between has ended. It takes microseconds.
ADOPTION_S = 5.0


def stand_by(gate: socket.socket, agent_pid: int) -> NoReturn:
    """Wait for a promotion and run the user's program; never returns to the warm process's code."""
    os.setsid()
    _wait_for_adoption(agent_pid)
    send(gate, StandbyReady(pid=os.getpid()))
    data, descriptors, _, _ = socket.recv_fds(gate, LARGEST_BYTES, 3)
    if not data:
        os._exit(0)
    promotion = msgspec.json.decode(data, type=Promote)
    try:
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        become(promotion.identity)
        _count_steps(promotion.steps_file)
    except CannotBecome as error:
        send(gate, CannotPromote(str(error)))
        os._exit(0)
    except BaseException as error:
        send(gate, CannotPromote(f"{type(error).__name__}: {error}"))
        os._exit(0)
    send(gate, Promoted())
    gate.close()
    run(promotion.identity)
    sys.exit(0)


def _wait_for_adoption(agent_pid: int) -> None:
    """Die with the agent from now on. Asked for before the adoption, the end of the process between would kill us."""
    give_up_at_s = time.monotonic() + ADOPTION_S
    while os.getppid() != agent_pid:
        if time.monotonic() > give_up_at_s:
            os._exit(0)
        time.sleep(0.0002)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent_pid:
        os._exit(0)


def _count_steps(path: str) -> None:
    """Count optimizer steps as in a worker that was armed at its start; without it the program runs all the same."""
    if not path:
        return
    from importlib.util import module_from_spec, spec_from_file_location

    from robust_run.tracer.arming import ARM_FOLDER

    spec = spec_from_file_location("robust_run_arm", os.path.join(ARM_FOLDER, "sitecustomize.py"))
    if spec is None or spec.loader is None:
        return
    arm = module_from_spec(spec)
    spec.loader.exec_module(arm)
    arm.count_steps_in(path)
