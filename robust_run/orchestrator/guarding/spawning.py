"""One launcher below a guard: started, so that it ends in good order when the guard is gone."""

from __future__ import annotations

import os
import signal
import subprocess

from robust_run.launcher.agent.workers.process_tree import PR_SET_PDEATHSIG, prctl
from robust_run.orchestrator.guarding.words import Known, Spawn
from robust_run.process_start import started_at

#: Exit code of a launcher whose guard was gone before it began.
ORPHAN = 70


def spawn(order: Spawn) -> Known:
    """Start a launcher; return what is known of it. One that cannot be started has ended, and says why. Never raises."""
    guard = os.getpid()
    try:
        output = os.open(order.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            process = subprocess.Popen(
                order.argv,
                env=order.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: _end_with(guard),  # noqa: PLW1509 - one thread
            )
        finally:
            os.close(output)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Known(name=order.name, code=1, why=getattr(error, "strerror", None) or str(error))
    process.returncode = 0  # its end is collected by the guard, with all others
    return Known(name=order.name, pid=process.pid, started_at=started_at(process.pid))


def _end_with(guard: int) -> None:
    """In a launcher, before it is one: it ends in good order when the guard is gone."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != guard:
        os._exit(ORPHAN)  # it is gone already
