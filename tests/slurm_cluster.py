"""A real Slurm on the hosts of one machine (see hosts.py), for tests and benches: munged, slurmctld, one slurmd per node.

    with SlurmCluster(tmp_path, 4) as slurm:
        job = slurm.sbatch(SCRIPT, "-N4")
        slurm.wait_running(job)
        slurm["node-2"].power_off()

Host 0 is the login node, where slurmctld runs too; the others are compute nodes. `slurm["node-2"]` is a host with all that
hosts can do; `boot`, `heal`, `stop_slurmd` and `start_slurmd` are those acts that concern Slurm. All state is below `tmp_path`
and in the hosts' own /run: any number of clusters can be up at once, and nothing of one is left when its hosts are gone.

To try things by hand: tests/slurm_shell.py.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from host_process import HostProcess
from hosts import Cluster, Host, supported
from jobs import wait_for
from slurm_conf import Knobs, gpu_file, gres_conf, slurm_conf

TOOLS = ("slurmctld", "slurmd", "srun", "munged")
DAEMONS = frozenset({"slurmctld", "slurmscriptd", "slurmd", "munged"})
#: Daemons that need longer than this are broken.
UP_S = 120.0
CALL_S = 120.0
USABLE = {"idle", "mixed", "allocated", "completing"}
MARKS = "*~#$@!%^+-"
"""What sinfo may put behind a state."""


class SlurmCluster:
    """A login node and compute nodes, from `with` to its end."""

    def __init__(
        self,
        tmp_path: Path,
        nodes: int = 4,
        knobs: Knobs | None = None,
        *,
        names: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = Path(tmp_path) / "slurm"
        """Configuration, logs and state of the daemons."""
        self.knobs = knobs or Knobs()
        self.hosts = Cluster(nodes + 1, Path(tmp_path))
        self.names = list(names or (f"node-{number}" for number in range(1, nodes + 1)))
        """The nodes as Slurm calls them; a host's own name is always `node-1`, `node-2`, ..."""
        assert len(self.names) == nodes, f"{nodes} nodes and {len(self.names)} names"
        self.env = {"SLURM_CONF": str(self.folder / "slurm.conf"), **(env or {})}
        self._slurmd: dict[str, HostProcess] = {}

    def __enter__(self) -> SlurmCluster:
        self.hosts.__enter__()
        try:
            self._write_configuration()
            self._start_daemons()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hosts.__exit__(kind, error, trace)

    def __getitem__(self, name: str) -> Host:
        """Return the host of a compute node, by its name in Slurm."""
        return self.hosts[1 + self.names.index(name)]

    @property
    def login(self) -> Host:
        """Where people submit, and slurmctld runs."""
        return self.hosts[0]

    @property
    def nodes(self) -> list[Host]:
        """The compute nodes."""
        return list(self.hosts)[1:]

    # Commands

    def start(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **more: Any) -> HostProcess:
        """Start a process on the login node: `slurm.start(["srun", "-N4", "hostname"])`."""
        return self.login.start(argv, env={**self.env, **(env or {})}, **more)

    def run(self, *argv: str, check: bool = True, on: Host | None = None, **more: Any) -> str:
        """Run a command to its end, on the login node unless told otherwise; return its standard output."""
        env = {**self.env, **more.pop("env", {})}
        more.setdefault("timeout_s", CALL_S)
        return (on or self.login).run(list(argv), check=check, env=env, **more).stdout.strip()

    def ask(self, *argv: str) -> str:
        """Return what a question to slurmctld says, asked until it is answered: on a busy machine MessageTimeout may pass."""
        answer: str = wait_for(lambda: self.run(*argv, check=False), f"an answer to {argv}", CALL_S)
        return answer

    def sbatch(self, script: str, *options: str, env: Mapping[str, str] | None = None) -> int:
        """Submit the text of a batch script; return the number of its job."""
        path = self.folder / f"batch-{time.monotonic_ns()}.sh"
        path.write_text(script if script.startswith("#!") else f"#!/bin/bash\n{script}\n")
        said = self.run("sbatch", "--parsable", *options, str(path), env=env or {})
        return int(said.partition(";")[0])

    def job(self, number: int | str) -> dict[str, str]:
        """Return what `scontrol show job` says: `slurm.job(7)["JobState"]`; `7+1`: of a component of a heterogeneous job."""
        words = self.ask("scontrol", "--oneliner", "show", "job", str(number)).split()
        return {name: value for name, equals, value in (word.partition("=") for word in words) if equals}

    def wait_state(self, number: int, *states: str, timeout_s: float = 150.0) -> str:
        """Wait until a job is in one of these states (`RUNNING`, `PENDING`, `COMPLETED`, ...); return it."""

        def reached() -> str | None:
            state = self.job(number)["JobState"]
            if state not in states:
                time.sleep(0.2)  # asking is what loads slurmctld
                return None
            return state

        found: str = wait_for(reached, f"job {number} to be {'/'.join(states)}", timeout_s)
        return found

    def state(self, name: str) -> str:
        """Return a node's state in one lower-case word: `idle`, `allocated`, `down`, `drained`, ..."""
        return self.ask("sinfo", "-h", "-N", "-p", "main", "-n", name, "-o", "%T").rstrip(MARKS)

    # Nodes

    def boot(self, name: str) -> None:
        """Switch a node on that lost power, with its slurmd."""
        self[name].power_on()
        self._resolve_from_files(self[name])
        self.start_slurmd(name)

    def heal(self, name: str) -> None:
        """Plug a node in again. Left alone, slurmctld would look at a node that is down only after 45 s."""
        self[name].heal()
        self._resume(name)

    def stop_slurmd(self, name: str) -> None:
        """End only the daemon; the steps on the node go on."""
        self._slurmd[name].kill()
        self._slurmd[name].wait(CALL_S)

    def start_slurmd(self, name: str) -> None:
        """Start the daemon, if it does not run."""
        running = self._slurmd.get(name)
        if running is None or running.poll() is not None:
            path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
            env = {"SLURM_CONF": self.env["SLURM_CONF"], "PATH": path}
            self._slurmd[name] = self[name].start(["slurmd", "-D", "-N", name], env=env, cwd="/")

    def reset(self) -> None:
        """Bring everything back for the next test: no jobs, every node up, plugged in, idle and empty."""
        self.run("scancel", "--signal=KILL", "--full", "--user=root", check=False)
        self.run("scancel", "--user=root", check=False)
        for name in self.names:
            host = self[name]
            host.thaw()
            host.heal()
            if host._init is None:
                self.boot(name)
            self.start_slurmd(name)
            self._resume(name)
        wait_for(lambda: not self._queue(), "the queue to be empty", CALL_S)
        self._wait_usable({"idle"})
        for name in self.names:
            wait_for(lambda name=name: not self.left_on(self[name]), f"{name} to be empty", CALL_S)  # type: ignore[misc]

    def left_on(self, host: Host) -> list[str]:
        """Return what runs on a host but Slurm's own daemons, as `pid command`."""
        found = []
        for pid in host.pids():
            with suppress(OSError):
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if name not in DAEMONS:
                    found.append(f"{pid} {words or name}")
        return found

    def running(self, word: str) -> list[str]:
        """Return the compute nodes that run a command with this in it."""
        return [name for name in self.names if any(word in line for line in self.left_on(self[name]))]

    def logs(self) -> str:
        """Return the last lines of the daemons' logs."""
        return "\n".join(
            f"{path.name}: {line}"
            for path in sorted(self.folder.glob("*.log"))
            for line in path.read_text(errors="replace").splitlines()[-12:]
        )

    # Inside

    def _write_configuration(self) -> None:
        (self.folder / "state").mkdir(parents=True)
        nodes = [(name, self[name].name, self[name].address) for name in self.names]
        login = (self.login.name, self.login.address)
        (self.folder / "slurm.conf").write_text(slurm_conf(self.folder, login, nodes, self.knobs))
        (self.folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
        if self.knobs.gpus:
            (self.folder / "gres.conf").write_text(gres_conf(self.folder, self.knobs.gpus))
        for number in range(self.knobs.gpus):
            os.mknod(self.folder / gpu_file(number), stat.S_IFCHR | 0o666, os.stat(os.devnull).st_rdev)
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))

    def _start_daemons(self) -> None:
        for host in self.hosts:
            self._resolve_from_files(host)
        names = ("key-file", "munge.key"), ("socket", "munge.sock"), ("log-file", "munged.log"), ("seed-file", "seed")
        places = [f"--{option}={self.folder / name}" for option, name in names]
        argv = ["munged", "--foreground", "--force", "--num-threads=2", "--pid-file=/run/munged.pid", *places]
        path = {"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
        munged = self.login.start(argv, env=path, cwd="/")
        self._wait_up(munged, lambda: (self.folder / "munge.sock").exists())
        slurmctld = self.start(["slurmctld", "-D"], env=path, cwd="/")
        self._wait_up(slurmctld, lambda: "is UP" in self.run("scontrol", "ping", check=False))
        for name in self.names:
            self.start_slurmd(name)
        self._wait_usable(USABLE)

    def _resolve_from_files(self, host: Host) -> None:
        # There is no name server in here, and asking for one costs time.
        host.run(["mount", "--bind", str(self.folder / "nsswitch.conf"), "/etc/nsswitch.conf"])

    def _wait_up(self, process: HostProcess, condition: Any) -> None:
        def up() -> Any:
            assert process.poll() is None, f"{process.args[0]} ended: {process.err} {self.logs()}"
            return condition()

        wait_for(up, f"{process.args[0]}: {process.err} {self.logs()}", UP_S)

    def _resume(self, name: str) -> None:
        if "down" in self.state(name) or "drain" in self.state(name):
            self.run("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)

    def _queue(self) -> str:
        asked = self.login.run(["squeue", "-h", "-o", "%A"], check=False, timeout_s=CALL_S, env=self.env)
        jobs = asked.stdout.strip() if asked.returncode == 0 else "unknown"
        if jobs:
            self.run("scancel", "--signal=KILL", "--full", "--user=root", check=False)
            time.sleep(0.2)
        return jobs

    def _wait_usable(self, states: set[str]) -> None:
        resumed: set[str] = set()

        def usable() -> bool:
            lines = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T", check=False).splitlines()
            bad = [line.split()[0] for line in lines if line.split()[-1].rstrip(MARKS) not in states or "*" in line]
            for name in set(bad) - resumed:
                if any(word in self.state(name) for word in ("down", "drain", "fail")):
                    resumed.add(name)
                    self.run("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
            if bad:
                time.sleep(0.1)
            return bool(lines) and not bad

        wait_for(usable, f"all nodes to be {'/'.join(sorted(states))}: {self.logs()}", UP_S)


def why_not() -> str:
    """Return why this machine cannot have a Slurm of its own; empty if it can."""
    search = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if missing := [tool for tool in TOOLS if not shutil.which(tool, path=search)]:
        return f"a Slurm of our own needs {', '.join(missing)}, not found in PATH"
    return supported()


def need_slurm() -> None:
    """Skip the test that calls this where there can be no Slurm."""
    if reason := why_not():
        import pytest

        pytest.skip(reason)
