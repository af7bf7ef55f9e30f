"""Warm processes of simulated hosts (see hosts.py), forked from one that has imported torch outside of them.

`robust warm start` on each host of each test would import torch there, once a host. So one process for each process of tests
imports it, stops before its program as any warm process does, and for each host forks a child into the host's namespaces and
cgroup, which is then what `robust warm start` leaves behind: the same code from where it begins to listen. Jobs find it in the
host's own folder, and it dies with the host.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

TESTS = str(Path(__file__).parent)
WANTED = "TEST_WARM_HOSTS"
"""In the environment while jobs on hosts are to start from warm processes."""
PRELOAD = ("torch", "torch.distributed", "torch._dynamo")
START_S = 170.0
PATIENT_S = "30"
"""So long a job waits for it: busy machines are none of a test's business."""
FOLDER = "/run/user/robust-run"
NAMESPACES = ("net", "uts", "ipc", "mnt", "pid")
LARGEST_BYTES = 1 << 20


class Elsewhere:
    """The process outside of all hosts, as the harness holds it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        from robust_run.launcher.agent.warm.start_up import start_environment

        self.env = dict(env)
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.settimeout(START_S)
        env = {**env, **start_environment(env, "host_warmth:serve", (str(theirs.fileno()),))}
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

    def begin_on(self, init_pid: int, cgroup: Path | None, log: Path) -> None:
        """Have a warm process on the host with this process 1, and wait until it takes jobs. AssertionError if it does not."""
        import msgspec

        from robust_run.launcher.agent.warm.messages import packet_socketpair
        from robust_run.launcher.start.warm import key, origins
        from robust_run.launcher.start.warm.lease import WarmConfig

        fingerprint = origins.fingerprint(self.env, PRELOAD, "/", omp_threads_defaulted=False)
        config = WarmConfig(
            folder=FOLDER,
            name=key.name_of(fingerprint),
            fingerprint=fingerprint,
            idle_limit_s=None,
            ends_with_parent=False,
        )
        ours, theirs = packet_socketpair()
        with ours, theirs, log.open("ab") as out:
            ours.settimeout(START_S)
            ours.send(msgspec.json.encode(config))
            place = {"init_pid": init_pid, "cgroup": str(cgroup or "")}
            socket.send_fds(self._ours, [json.dumps(place).encode()], [theirs.fileno(), out.fileno()])
            theirs.close()
            said = b""
            while b'"listening"' not in said:
                said = ours.recv(LARGEST_BYTES)
                assert said and b'"refused"' not in said, f"no warm process on a host: {said!r} {log.read_text()}"

    def close(self) -> None:
        """End it. What it forked lives as long as the hosts."""
        self._ours.close()
        self._process.kill()
        self._process.wait()


_by_environment: dict[tuple[tuple[str, str], ...], Elsewhere] = {}


def begin_on(env: Mapping[str, str], init_pid: int, cgroup: Path | None, log: Path) -> None:
    """Have a warm process on a host for jobs with this environment. See `Elsewhere.begin_on`."""
    from robust_run.launcher.start.warm.key import variables_read_at_import

    variables = tuple(sorted(variables_read_at_import(env, omp_threads_defaulted=False).items()))
    if variables not in _by_environment:
        _by_environment[variables] = Elsewhere(env)
    _by_environment[variables].begin_on(init_pid, cgroup, log)


# --- in that process


def serve(descriptor: str) -> None:
    """Import, then fork a warm process for each host that is named. Returns in workers only. Called at the start of Python."""
    import importlib

    sys.path.remove(TESTS)
    sys.path_importer_cache.pop(TESTS, None)
    sys.modules.pop(__name__, None)  # no program is to find us
    from robust_run.launcher.agent.warm.process import WarmProcess
    from robust_run.launcher.start.warm import daemon

    for name in daemon.OF_AGENTS:
        importlib.import_module(name)
    control = socket.socket(fileno=int(descriptor))
    os.set_inheritable(control.fileno(), False)
    WarmProcess(control, 0).preload(PRELOAD)
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, LARGEST_BYTES, 2)
        if not request:
            os._exit(0)
        between = os.fork()
        if between == 0:
            control.close()
            _enter(**json.loads(request))
            if (
                os.fork()
            ):  # the next child is the first that is of the host's processes; its orphan is adopted by process 1
                os._exit(0)
            if os.fork():
                os._exit(0)
            break
        for each in descriptors:
            os.close(each)
        os.waitpid(between, 0)
    os.setsid()
    os.makedirs(FOLDER, 0o700, exist_ok=True)
    told_by, log = descriptors
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    daemon.main(str(told_by))


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
