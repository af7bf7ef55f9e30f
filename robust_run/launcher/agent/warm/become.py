"""Turns a warm process into a worker: everything a process inherits or is told at its start, in a process that has started.

Order matters: the environment first, because the time zone and the thread counts follow it; the CPUs before the thread
counts; the scheduling before anything takes long; the command line last, because it is how others see that it is done.

What stays different from a worker that was started from nothing, on purpose:

- Modules that were preloaded are in `sys.modules`, and what importing them did is done: warning filters, logging handlers,
  variables set in the environment. The program's own `import torch` would have done the same, somewhat later. (What `known.LATE`
  sets is taken back.)
- Objects made by the preload are frozen (`gc.get_freeze_count() > 0`): thawing them would copy their memory into every worker
  at the first full collection.
- Workers share the seed of `hash(str)`, so that sets of strings have one order on all ranks of an attempt.
- I/O priority and cgroup are those of the warm process, which are those of the agent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

from robust_run.errors import PlatformError
from robust_run.forking import command_line
from robust_run.launcher.agent.warm import frozen
from robust_run.launcher.agent.warm.identity import Identity, frozen_changes

#: What the modules preloaded after this one found. Differences to it were made by their imports, and are kept.
AT_START = dict(os.environ)


#: Signals of a worker that are reset to their default state in any case: SIGQUIT, SIGTERM, SIGTTIN, SIGTTOU. SIGINT has
#: Python's own handler.
RESET_SIGNALS = (3, 15, 21, 22)


class CannotBecome(PlatformError):  # noqa: N818 - reads as what it says
    """This process cannot be that worker; nothing of the user's has run. Start the worker from nothing."""


def become(identity: Identity) -> None:
    """Take on an identity, once, before `run`. Raises CannotBecome, after which the process is good for nothing but to end.

    Expects what belongs to the standby and not to the worker to be done: own session, descriptors 0, 1, 2 in place and no
    others inherited, one thread.
    """
    for what, step in _STEPS:
        try:
            step(identity)
        except CannotBecome:
            raise
        except Exception as error:
            raise CannotBecome(f"cannot take on {what}: {type(error).__name__}: {error}") from error


def _check_variables(identity: Identity) -> None:
    if names := frozen_changes(AT_START, identity.env):
        raise CannotBecome(f"the imports may have read {', '.join(names)}, which this worker has otherwise")


def _take_environment(identity: Identity) -> None:
    """Set every variable, for C code too; what the preloaded modules changed stays changed, as if imported now."""
    env = with_changes(AT_START, os.environ, identity.env)
    os.environ.clear()
    os.environ.update(env)
    import time

    time.tzset()


def with_changes(before: Mapping[str, str], after: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` with the changes that imports made to `before`, where `env` had what they changed. Pure."""
    result = dict(env)
    for name in {*before, *after}:
        was, now = before.get(name), after.get(name)
        if was != now and env.get(name) == was:
            if now is None:
                result.pop(name, None)
            else:
                result[name] = now
    return result


def _take_place(identity: Identity) -> None:
    os.chdir(identity.cwd)
    os.umask(identity.umask)


def be_scheduled_as(pid: int) -> None:
    """Be scheduled as a child of another process is. A priority once lowered cannot be raised without privilege: OSError."""
    policy, niceness = os.sched_getscheduler(pid), os.getpriority(os.PRIO_PROCESS, pid)
    if policy & os.SCHED_RESET_ON_FORK:  # an agent's, see `start.priority`
        policy, niceness = policy & ~os.SCHED_RESET_ON_FORK, max(niceness, 0)
    if os.sched_getscheduler(0) != policy:
        os.sched_setscheduler(0, policy, os.sched_getparam(pid))
    if os.getpriority(os.PRIO_PROCESS, 0) != niceness:
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    wanted = _oom_score(pid)
    if wanted and wanted != _oom_score(os.getpid()):
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(wanted)


def _oom_score(pid: int) -> str:
    """Return the process's adjustment, empty where the system does not say."""
    try:
        with open(f"/proc/{pid}/oom_score_adj", encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""


def _take_cpus(identity: Identity) -> None:
    if identity.cpus:
        os.sched_setaffinity(0, identity.cpus)


def _take_signals(_: Identity) -> None:
    """Have the handlers that Python starts with. Other signals are as the agent had them at the start (nohup)."""
    import signal

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in RESET_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _take_thread_counts(identity: Identity) -> None:
    frozen.adjust_threads(AT_START, identity.env, identity.cpus)


_STEPS: tuple[tuple[str, Callable[[Identity], None]], ...] = (
    ("its variables", _check_variables),
    ("its environment", _take_environment),
    ("its folder and umask", _take_place),
    ("its scheduling", lambda identity: be_scheduled_as(identity.agent_pid)),
    ("its CPUs", _take_cpus),
    ("its signal handlers", _take_signals),
    ("its thread counts", _take_thread_counts),
    ("random numbers of its own", lambda _: frozen.reseed()),
    ("its thread's number", lambda _: frozen.renew_threading()),
    ("its multiprocessing", lambda _: frozen.renew_multiprocessing()),
    ("its temporary folder", lambda identity: frozen.renew_tempfile(AT_START, identity.env)),
    ("its standard streams", lambda _: frozen.renew_streams()),
    ("changed code", lambda _: frozen.forget_folders()),
    (
        "its command line",
        lambda identity: command_line.show([sys.orig_argv[0], "-u", *identity.argv], identity.env),
    ),
)
