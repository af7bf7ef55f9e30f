"""Helpers of launchers that are forked on simulated hosts (see host_warmth.py): forked, too, by their agent.

A controller, the sensors and all others that `own_process.boot` starts are Pythons that import what their agent has imported, a
fifth of a second of CPU for each, a third of what a host costs a test. Such a helper has the parent, the streams, descriptors,
environment, signals and command line that it would have had.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from robust_run.launcher.agent.workers.workers import Worker

BOOT = re.compile(r"import gc, sys; .* from ([\w.]+) import (\w+); gc\.freeze\(\); .*?\); (.+)")
"""What `own_process.boot` makes: module, name, call."""
IMPORTED = (
    "robust_run.launcher.start.controller_process",
    "robust_run.health.sensors.process",
    "robust_run.health.sensors.every",
    "robust_run.health.sensors.runner",
    "robust_run.health.sensors.numbers.telling",
)
"""What helpers of every job import; what one of them needs later it imports then."""
AT_START = ("PYTHONPATH", "LD_PRELOAD")
"""Variables that Python or the system read before anything is imported."""


def fork_helpers() -> None:
    """Have this process fork its helpers from now on; all other programs are started as ever."""
    from robust_run.launcher.agent.workers import workers

    as_ever = workers.start

    def start(
        argv: tuple[str, ...],
        env: Mapping[str, str],
        setup: Callable[[], None],
        *,
        rank: int = -1,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        keep: tuple[int, ...] = (),
    ) -> Worker:
        found = BOOT.fullmatch(argv[2]) if argv[:2] == (sys.executable, "-c") else None
        if found is None or any(env.get(name) != os.environ.get(name) for name in AT_START):
            return as_ever(argv, env, setup, rank=rank, stdin=stdin, stdout=stdout, stderr=stderr, keep=keep)
        pid = os.fork()
        if pid == 0:
            _be_helper(found, argv, env, setup, (stdin, stdout, stderr), keep)
        return workers.Worker(pid, lambda: workers._exit_code_of(pid), rank, os.path.basename(argv[0]))

    workers.start = start


def _be_helper(
    program: re.Match[str],
    argv: tuple[str, ...],
    env: Mapping[str, str],
    setup: Callable[[], None],
    streams: tuple[int | None, ...],
    keep: tuple[int, ...],
) -> NoReturn:
    code = 1
    try:
        gc.freeze()  # what our agent has is never to be closed here
        _leave_the_agent(env, setup, streams, keep)
        from robust_run.forking import command_line

        command_line.show(argv, env)
        sys.argv, sys.orig_argv = ["-c", *argv[3:]], list(argv)
        module, name, call = program.groups()
        exec(call, {"sys": sys, name: getattr(importlib.import_module(module), name)})
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)


def _leave_the_agent(
    env: Mapping[str, str], setup: Callable[[], None], streams: tuple[int | None, ...], keep: tuple[int, ...]
) -> None:
    """Be as a program is that the agent starts: nothing of the agent's is open, handled or known."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    setup()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, stream in enumerate(streams):
        if stream is not None:
            os.dup2(nothing if stream == subprocess.DEVNULL else stream, number)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            with suppress(OSError):  # the listing's own
                os.close(int(name))
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - those of the agent may be locked by its threads
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(env)
    random.seed()
