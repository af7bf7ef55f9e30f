"""From a fork of a per-user warm process to the agent of a job. Runs in that fork, which has one thread and all the modules.

The fork first becomes what the guard would have forked: its streams, environment, folder, scheduling and signals. When the
guard has said Go, two more forks are made while there is still one thread: the job's own warm process and the process of its
store. Then it is an agent like any other.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import msgspec

from robust_run.errors import PlatformError
from robust_run.forking import command_line
from robust_run.launcher.agent.warm import become
from robust_run.launcher.agent.warm.identity import unarmed
from robust_run.launcher.agent.warm.messages import LARGEST_BYTES, packet_socketpair, send
from robust_run.launcher.agent.warm.process import WarmProcess
from robust_run.launcher.agent.warm.warm_handoff import WarmHandoff
from robust_run.launcher.agent.workers import store_process
from robust_run.launcher.agent.workers.environment import worker_argv
from robust_run.launcher.agent.workers.helper_signals import leave_the_end_to_the_agent
from robust_run.launcher.agent.workers.process_tree import PR_SET_PDEATHSIG, become_subreaper, prctl, read_status
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.start.guard import hold_signals
from robust_run.launcher.start.main import run_agent
from robust_run.launcher.start.warm.lease import Go, TakeJob, WarmAgentEnded, WarmLeaseReady, WarmRefusal

#: Exit code of a fork that did not become an agent.
NOT_BEGUN = 75

#: Counted or kept at import, and brought up to date in each worker: what was there at the import must not be forgotten.
KEPT_FROM_IMPORT = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TMPDIR", "TEMP", "TMP")


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a warm process has been given."""

    job: TakeJob
    connection: int
    """Descriptor of the connection to the guard."""
    guard_pid: int
    daemon_pid: int
    modules: tuple[str, ...]


def become_agent(taken: Taken) -> None:
    """Run the job and end. Returns only in a process that has become one of its workers.

    No descriptor but those in `taken` and the standard streams may be open.
    """
    connection = socket.socket(fileno=taken.connection)
    after_imports = dict(os.environ)
    try:
        _take_place(taken)
        send(connection, WarmLeaseReady(pid=os.getpid()))
    except Exception as error:
        _refuse(connection, str(error) if isinstance(error, PlatformError) else f"{type(error).__name__}: {error}")
    data, descriptors = b"", list[int]()
    with suppress(OSError):  # it was too slow for the guard, which has hung up
        data, descriptors, _, _ = socket.recv_fds(connection, LARGEST_BYTES, 4)
    if not data or not isinstance(msgspec.json.decode(data, type=Go), Go):
        os._exit(NOT_BEGUN)
    *streams, lifeline = descriptors
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
        os.close(descriptor)
    exit_code = _run(taken, connection, lifeline, after_imports)
    if exit_code is not None:
        _say_last_word(connection, exit_code)


def fail(error: BaseException) -> None:
    """End a fork that cannot go on: it must not run on in its parent's code."""
    import traceback

    traceback.print_exception(error)
    sys.stderr.flush()
    os._exit(70)


def _say_last_word(connection: socket.socket, exit_code: int) -> None:
    """Tell the guard the exit code, and end."""
    sys.stdout.flush()
    sys.stderr.flush()
    with suppress(OSError):  # the guard was killed, and nobody wants to know
        send(connection, WarmAgentEnded(exit_code=exit_code))
    os._exit(exit_code)


def _refuse(connection: socket.socket, reason: str) -> None:
    try:
        send(connection, WarmRefusal(reason))
    finally:
        os._exit(NOT_BEGUN)


def _take_place(taken: Taken) -> None:
    """Be as a child of the guard would be, but for its streams. Raises OSError and PlatformError where that is not allowed."""
    job = taken.job
    os.setsid()
    _take_signals(taken.guard_pid, job.mask)
    try:
        become.be_scheduled_as(taken.guard_pid)
    except OSError as error:
        raise PlatformError(f"it cannot be scheduled as this job is, its own priority is lower ({error})") from error
    os.chdir(job.cwd)
    os.umask(job.umask)
    os.environ.clear()
    os.environ.update(job.env)
    command_line.show(job.command_line, job.env)


def _take_signals(guard_pid: int, mask: Iterable[int]) -> None:
    """Ignore and block what the guard was started with; have Python's handler for Ctrl-C and no other."""
    status = read_status(guard_pid)
    if status is None:
        raise ProcessLookupError(f"process {guard_pid} is gone")
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if status.ignores(number):
            signal.signal(number, signal.SIG_IGN)
        elif number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
        elif signal.getsignal(number) is not None:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _run(taken: Taken, connection: socket.socket, lifeline: int, after_imports: Mapping[str, str]) -> int | None:
    """Run the agent and return its exit code; None in a worker."""
    job = taken.job
    run_directory = RunDirectory(job.run_path, job.run_memory, job.run_temporary)
    become_subreaper()  # before the forks, whose orphans must be ours
    store_ours, store_theirs = socket.socketpair()
    warm_ours, warm_theirs = packet_socketpair()
    sockets = (connection, store_ours, store_theirs, warm_ours, warm_theirs)
    log = _open_log(run_directory)

    def child(keep: socket.socket) -> None:
        for sock in sockets:
            if sock is not keep:
                sock.close()
        os.close(lifeline)
        _take_helpers_place(log)

    agent_pid = os.getpid()
    store_pid = _fork(agent_pid, lambda: child(store_theirs))
    if store_pid == 0:
        command_line.show((sys.executable, "robust-run: store"), job.env)
        store_process.serve(store_theirs)
        os._exit(0)
    warm_pid = _fork(agent_pid, lambda: child(warm_theirs))
    if warm_pid == 0:
        _start_again(after_imports, job.env)
        command_line.show(worker_argv(job.spec, 0), job.env)
        WarmProcess(warm_theirs, agent_pid).obey()
        return None
    for sock in (store_theirs, warm_theirs):
        sock.close()
    os.close(log)
    store_ours.setblocking(False)
    given = WarmHandoff(taken.daemon_pid, taken.modules, warm_pid, warm_ours, store_pid, store_ours)
    hold_signals(job.spec.end_signals)
    return run_agent(job.spec, job.env, run_directory, lifeline, set(job.mask), given)


def _fork(agent_pid: int, begin: Callable[[], None]) -> int:
    """Fork a helper that dies with the agent; return 0 in it."""
    pid = os.fork()
    if pid == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != agent_pid:
            os._exit(NOT_BEGUN)
        os.setsid()
        begin()
    return pid


def _open_log(run_directory: RunDirectory) -> int:
    try:
        return os.open(run_directory.store_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def _take_helpers_place(log: int) -> None:
    """Have none of the job's streams: who reads those must see their end when the job ends."""
    leave_the_end_to_the_agent()
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for target, descriptor in ((0, nothing), (1, log), (2, log)):
        os.dup2(descriptor, target)
    os.close(nothing)
    os.close(log)


def _start_again(after_imports: Mapping[str, str], env: Mapping[str, str]) -> None:
    """Be a process that was started with the job's environment, for `become`, which compares with it."""
    become.AT_START, now = started_anew(become.AT_START, after_imports, unarmed(env))
    os.environ.clear()
    os.environ.update(now)


def started_anew(
    before_imports: Mapping[str, str], after_imports: Mapping[str, str], env: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return what a job's warm process would have been started with, and what it would have after its imports. Pure."""
    at_start = {name: value for name, value in env.items() if name not in KEPT_FROM_IMPORT}
    at_start.update({name: before_imports[name] for name in KEPT_FROM_IMPORT if name in before_imports})
    return at_start, become.with_changes(before_imports, after_imports, at_start)
