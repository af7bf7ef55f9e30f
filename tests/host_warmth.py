"""Launchers on simulated hosts (see hosts.py) that are forked from one process which has imported torch, outside of all hosts.

A launcher that is started from nothing imports torch in each rank and in its own warm process, 1.5 s of CPU each time, and a job
of three nodes has five of those. Here one process for each process of tests imports it, stops before its program as any warm
process does, and forks a launcher into a host's namespaces and cgroup when it is asked to. The launcher is the product's from its
command line on: guard, agent and all others have the parents they always have. Only the agent's own warm process and that of its
store are forks, as they are in a job that a per-user warm process has taken (`robust_run.launcher.start.warm.handover`), and so
are its helpers (see helper_forks.py). A launcher that is to have no warm process comes from one that has imported nothing but
what launchers and helpers import, and has none; so do `robust` commands that are typed on a host.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from robust_run.launcher.agent.warm.warm_handoff import WarmHandoff

TESTS = str(Path(__file__).parent)
WANTED = "TEST_WARM_HOSTS"
"""In the environment while launchers on hosts are to be forked."""
PRELOAD = ("torch", "torch.distributed", "torch._dynamo")
START_S = 500.0
COMMAND = (sys.executable, "-c", "from robust_run.robust_cli import main; main()")
"""What starts `robust`."""
OF_COMMANDS = (
    "robust_run.robust_cli",
    "robust_run.launcher.operator.code.commands",
    "robust_run.launcher.operator.code.remote",
    "robust_run.launcher.operator.reading.client",
)
NAMESPACES = ("net", "uts", "ipc", "mnt", "pid")
LARGEST_BYTES = 1 << 20
ANY_PID = 1
"""What stands for the pid of the per-user warm process, which there is none of."""


class Zygote:
    """The process outside of all hosts, as the harness holds it."""

    def __init__(self, env: Mapping[str, str], *, warm: bool) -> None:
        from robust_run.launcher.agent.warm.start_up import start_environment

        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.settimeout(START_S)
        env = {
            **env,
            **start_environment(env, "host_warmth:serve", (str(theirs.fileno()), *PRELOAD[: None if warm else 0])),
        }
        env["PYTHONPATH"] += os.pathsep + TESTS  # taken off the path before anything is forked
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", "raise AssertionError('the warm process ran its program')"],
            cwd="/",
            env=env,
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        atexit.register(self.close)
        said = self._ours.recv(LARGEST_BYTES)
        assert b'"preloaded"' in said, f"nothing can be forked for hosts: {said!r}"

    def fork(self, request: Mapping[str, object], descriptors: Sequence[int]) -> tuple[int, int]:
        """Fork a launcher; return its pid as the harness and as its host sees it. It waits for a byte on the last descriptor."""
        socket.send_fds(self._ours, [json.dumps(request).encode()], descriptors)
        outer, _, inner = self._ours.recv(64).partition(b" ")
        return int(outer), int(inner)

    def close(self) -> None:
        """End it. What it forked lives as long as the hosts."""
        self._ours.close()
        self._process.kill()
        self._process.wait()


_by_environment: dict[tuple[bool, tuple[tuple[str, str], ...]], Zygote] = {}


def is_wanted(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a launcher with these variables on top of ours is to be forked: not where it loads something of its own."""
    own = argv[0] != sys.executable or {"PYTHONPATH", "LD_PRELOAD"} & set(env)
    return bool(os.environ.get(WANTED)) and not own


def is_command(argv: Sequence[str]) -> bool:
    """Whether this is a `robust` command."""
    return tuple(argv[: len(COMMAND)]) == COMMAND


def zygote_for(argv: Sequence[str], env: Mapping[str, str]) -> Zygote:
    """Return the process to fork a launcher with this whole environment from: all that torch's import reads is the same."""
    from robust_run.launcher.start.warm.key import variables_read_at_import

    # What a run that is resumed is to have, its journal says.
    warm = not {"--no-warm", "--resume"} & set(argv) and not is_command(argv)
    read = variables_read_at_import(env, omp_threads_defaulted=False) if warm else {}
    key = warm, tuple(sorted(read.items()))
    if key not in _by_environment:
        _by_environment[key] = Zygote(env, warm=warm)
    return _by_environment[key]


# --- in that process


def serve(descriptor: str, *modules: str) -> None:
    """Import these, then fork a launcher for each request. Returns in workers only. Called at the start of Python."""
    import functools
    import importlib

    import container
    import helper_forks
    import kept_frozen

    sys.path.remove(TESTS)
    sys.path_importer_cache.pop(TESTS, None)
    for name in (__name__, container.__name__, helper_forks.__name__, kept_frozen.__name__):  # no program is to find us
        sys.modules.pop(name, None)
    kept_frozen.keep_frozen()
    from robust_run.launcher.agent.warm import process
    from robust_run.launcher.agent.warm.huge_pages import collapse
    from robust_run.launcher.start.warm import daemon

    own = ("robust_run.cli", "robust_run.launcher.start.many.node_of_many")
    for name in (*daemon.OF_AGENTS, *own, *helper_forks.IMPORTED, *(() if modules else OF_COMMANDS)):
        importlib.import_module(name)
    control = socket.socket(fileno=int(descriptor))
    os.set_inheritable(control.fileno(), False)
    process.WarmProcess(control, 0, niceness=0).preload(modules)  # a test waits for it, on a machine that is busy
    for _ in collapse():
        pass
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, LARGEST_BYTES, 8)
        if not request:
            os._exit(0)
        between = os.fork()
        if between == 0:
            break
        for each in descriptors:
            os.close(each)
        os.waitpid(between, 0)
    ours = functools.partial(_be_launcher, enter_pod=container.enter, fork_helpers=helper_forks.fork_helpers)
    ours(control, descriptors, modules, **json.loads(request))


def _enter(init_pid: int, cgroup: str) -> None:
    import ctypes

    if cgroup:
        Path(cgroup, "cgroup.procs").write_text("0")
    descriptors = [os.open(f"/proc/{init_pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in NAMESPACES]
    libc = ctypes.CDLL(None, use_errno=True)
    for descriptor in descriptors:
        if libc.setns(descriptor, 0):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(descriptor)


def _be_launcher(
    control: socket.socket,
    descriptors: list[int],
    modules: tuple[str, ...],
    *,
    enter_pod: Callable[[str], None],
    fork_helpers: Callable[[], None],
    argv: list[str],
    env: dict[str, str],
    cwd: str,
    init_pid: int,
    cgroup: str,
    pod: str,
) -> None:
    """Be `robust-run` (or `robust`) on a host, or in the container of a pod there, and end. Returns only in its workers."""
    import functools
    import random
    import signal

    from robust_run import cli, robust_cli
    from robust_run.forking import command_line
    from robust_run.launcher.agent.warm.process import WarmProcess
    from robust_run.launcher.start import guard
    from robust_run.launcher.start.warm import handover

    outer_proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    _enter(init_pid, cgroup)
    # The next child is the first that is one of the host's processes; its orphan is adopted by the host's process 1.
    if first := os.fork():
        os.waitpid(first, 0)
        os._exit(0)
    if os.fork():
        os._exit(0)
    *streams, gate = descriptors
    control.send(b"%s %d" % (os.readlink(b"self", dir_fd=outer_proc), os.getpid()))
    control.close()
    os.close(outer_proc)
    if not os.read(gate, 1):
        os._exit(0)
    os.close(gate)
    os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for each in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(
            each, signal.SIG_IGN
        )  # as Python does when it starts: an agent writes to connections that others close
    os.chdir(cwd)
    if pod:
        enter_pod(pod)
    after_imports = dict(os.environ)
    os.environ.clear()
    os.environ.update(env)
    command_line.show(argv, env)
    sys.argv, sys.orig_argv = ["robust-run", *argv[3:]], argv
    random.seed()
    guard._fork = functools.partial(_forks_agent, _be_agent if modules else guard._exit_with, fork_helpers)
    try:
        robust_cli.main() if is_command(argv) else cli.main()
    except SystemExit as error:
        os._exit(int(error.code or 0))
    except _Aside as aside:
        aside.get_ready()
        handover._start_again(after_imports, env)
        WarmProcess(aside.control, aside.agent_pid).obey()


class _Aside(BaseException):
    """Brings the agent's warm process out of the launcher's code, to where a worker's program can begin."""

    def __init__(self, control: socket.socket, agent_pid: int, is_out: int) -> None:
        self.control = control
        self.agent_pid = agent_pid
        self._is_out = is_out

    def get_ready(self) -> None:
        """Have no descriptor but the standard streams and the control, and let the agent go on."""
        _keep_open(self.control.fileno(), self._is_out)
        os.close(self._is_out)


def _keep_open(*descriptors: int) -> None:
    """Close all others; the standard streams lead nowhere."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in descriptors:
            with suppress(OSError):  # the listing's own
                os.close(int(name))
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)


def _forks_agent(
    be_agent: Callable[[Callable[[int], int], int], None],
    fork_helpers: Callable[[], None],
    agent: Callable[[int], int],
    lifeline: int,
    forward: int,
) -> int:
    """What the guard forks its agent with: one that forks its helpers."""
    pid = os.fork()
    if pid == 0:
        os.close(forward)
        os.setpgid(0, 0)
        fork_helpers()
        be_agent(agent, lifeline)
    return pid


def _be_agent(agent: Callable[[int], int], lifeline: int) -> NoReturn:
    """Be one that has two helpers that it need not start."""
    import functools

    from robust_run.launcher.start import guard
    from robust_run.launcher.start.many import node_of_many

    given = _helpers(os.getpid())
    node_of_many.Node = functools.partial(node_of_many.Node, given=given)  # type: ignore[assignment, misc]
    guard._exit_with(agent, lifeline)
    raise AssertionError("an agent went on after its end")


def _helpers(agent_pid: int) -> WarmHandoff:
    """Fork them, as `handover` does. Raises `_Aside` in the warm process, and comes back once that is out of the way."""
    from robust_run.launcher.agent.warm.messages import packet_socketpair
    from robust_run.launcher.agent.warm.warm_handoff import WarmHandoff
    from robust_run.launcher.agent.workers import store_process
    from robust_run.launcher.agent.workers.helper_signals import leave_the_end_to_the_agent
    from robust_run.launcher.agent.workers.process_tree import become_subreaper
    from robust_run.launcher.start.warm import handover

    become_subreaper()
    store_ours, store_theirs = socket.socketpair()
    warm_ours, warm_theirs = packet_socketpair()
    store_pid = handover._fork(agent_pid, leave_the_end_to_the_agent)
    if store_pid == 0:
        _keep_open(store_theirs.fileno())
        store_process.serve(store_theirs)
        os._exit(0)
    is_out, not_yet = os.pipe()
    warm_pid = handover._fork(agent_pid, leave_the_end_to_the_agent)
    if warm_pid == 0:
        raise _Aside(warm_theirs, agent_pid, not_yet)
    for sock in (store_theirs, warm_theirs):
        sock.close()
    os.close(not_yet)
    os.read(is_out, 1)
    os.close(is_out)
    store_ours.setblocking(False)
    return WarmHandoff(ANY_PID, PRELOAD, warm_pid, warm_ours, store_pid, store_ours)
