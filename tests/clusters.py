"""One robust-run job on several simulated hosts (see hosts.py): starts it, follows its journal, and checks what must hold.

    with Cluster(3, tmp_path) as cluster:
        job = start_all(cluster, write(tmp_path, TRAIN), tmp_path=tmp_path, options=["--nnodes", "2", "--standby", "1"])
        job.wait_for_steps(attempt=0, ranks=2)
        cluster[1].power_off()
        job.wait_for_incident()

Hosts share the run directory; every launcher gets the same run id. Ranks of one attempt and pids are as the journal has them:
pids are those of their host.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import host_ground as ground
import host_warmth
from host_process import HostProcess
from hosts import Cluster, Host
from jobs import wait_for

#: A wait that takes longer than this in a test is stuck.
PATIENCE_S = 200.0
#: Of a job that is to lose no node: a busy machine may hold an agent up for longer than the usual lease of 3 s.
PATIENT = ("--rdzv-conf", "keep_alive_max_attempt=20")
PORT = 29400
TOKEN = "a token that all hosts of a test know"

STEPS = """
    import atexit, gc, os, select, signal, socket, sys, time
    atexit.register(gc.freeze)
    RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    STEPS_DIR, DONE = os.environ["TEST_STEPS"], os.environ["TEST_STEPS"] + "/done"
    _file = open(f"{STEPS_DIR}/{ATTEMPT}-{RANK}-{socket.gethostname()}-{os.getpid()}", "a", buffering=1)


    def step():
        print(f"{time.monotonic():.4f}", file=_file)


    def pause(seconds):
        select.select([], [], [], seconds)
"""
"""Worker code that defines `step()`, which notes the time in a file per worker, and `pause(seconds)`.

Python looks for garbage once more as it ends: among torch's objects that takes 0.4 s of CPU, a quarter of what importing them
did. What is frozen is left out.
"""

TRAIN = f"""{STEPS}

    while not os.path.exists(DONE):
        step()
        pause(0.005)
"""
"""A training that needs no network: it steps until it is told that it is done."""

ALL_REDUCE = f"""{STEPS}

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    done = torch.zeros(1)
    while not done:
        done = torch.tensor([float(os.path.exists(DONE))])
        dist.all_reduce(done)
        step()
        pause(0.005)
    dist.destroy_process_group()
"""
"""The same with collectives of gloo."""


@dataclass(frozen=True)
class Worker:
    """What one worker left in the folder of steps. Times are of the harness's monotonic clock."""

    attempt: int
    rank: int
    host: str
    pid: int
    """As its host has it."""
    times: list[float]


@dataclass
class Launcher:
    """One `robust-run` on one host."""

    host: Host
    process: HostProcess

    @property
    def err(self) -> str:
        """What it has said so far."""
        return self.process.err

    def guard_pid(self) -> int:
        """Return the pid of the process that was started, as the harness sees it."""
        return self.process.pid

    def agent_pid(self) -> int:
        """Return the pid of the agent below it, as the harness sees it."""
        return int(wait_for(lambda: children(self.guard_pid()), f"the agent on {self.host.name}", PATIENCE_S)[0])

    def controller_pids(self) -> list[int]:
        """Return the living controller process of this node, as the harness sees it; none where there is none."""
        return [
            pid
            for agent in children(self.guard_pid())
            for pid in children(agent)
            if "robust_run.launcher.start.controller_process" in _command(pid)
        ]

    def controller_pid(self, other_than: int = 0) -> int:
        """Wait until this node has a controller process, and not that one; return its pid as the harness sees it."""
        return int(
            wait_for(
                lambda: [pid for pid in self.controller_pids() if pid != other_than],
                f"a controller on {self.host.name}:\n{self.err}",
                PATIENCE_S,
            )[0]
        )

    def kill(self) -> None:
        """SIGKILL agent and guard: all that this launcher has goes with them."""
        agent = self.agent_pid()
        for pid in (agent, self.guard_pid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def finish(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for its end; return its exit code, as `subprocess` gives it."""
        return self.process.wait(timeout_s)


@dataclass
class ClusterJob:
    """A job on the hosts of a cluster."""

    hosts: Sequence[Host]
    argv: Sequence[str]
    """Of a launcher, without what comes before the options of the job."""
    run_id: str
    log_dir: Path
    steps_dir: Path
    env: Mapping[str, str]
    launchers: list[Launcher] = field(default_factory=list)
    python: str = sys.executable
    _read: dict[str, tuple[int, list[float]]] = field(default_factory=dict)
    """Of files of steps: how far they were read, and what was there."""

    # --- launchers

    def join(self, host: Host, *options: str, env: Mapping[str, str] | None = None) -> Launcher:
        """Start a launcher on a host, with more options than the others if need be."""
        argv = [self.python, "-m", "robust_run", *options, *self.argv]
        process = host.launch(argv, {**self.env, **(env or {})})
        self.launchers.append(Launcher(host, process))
        return self.launchers[-1]

    def resume(self, host: Host, *options: str) -> Launcher:
        """Start `robust-run --resume` of the run on a host."""
        argv = [sys.executable, "-m", "robust_run", "--resume", str(self.run_dir), *options]
        process = host.launch(argv, self.env)
        self.launchers.append(Launcher(host, process))
        return self.launchers[-1]

    def on(self, host: Host) -> Launcher:
        """Return the newest launcher on a host."""
        return next(launcher for launcher in reversed(self.launchers) if launcher.host is host)

    def finish(self, timeout_s: float = PATIENCE_S) -> dict[str, int]:
        """Tell the workers that they are done and wait for the newest launcher of every host; return the exit codes."""
        (self.steps_dir / "done").touch()
        return self.wait_ended(timeout_s)

    def wait_ended(self, timeout_s: float = PATIENCE_S) -> dict[str, int]:
        """Wait for the newest launcher of every host; return the exit codes by host name. -9: it died with its host."""
        newest = {launcher.host.name: launcher for launcher in self.launchers}
        return {name: launcher.finish(timeout_s) for name, launcher in newest.items()}

    def said(self) -> str:
        """Return all that launchers have said, for a failed test."""
        return "\n".join(f"--- {each.host.name}\n{each.err}" for each in self.launchers)

    # --- the run directory

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self.log_dir / self.run_id

    def journal(self) -> list[dict[str, Any]]:
        """Return the journal's lines so far, the header first."""
        with suppress(FileNotFoundError):
            lines = (self.run_dir / "journal.jsonl").read_bytes().split(b"\n")[:-1]  # the last one may be half written
            return [_parsed(line) for line in lines if line.endswith(b"}")]
        return []

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of one kind so far."""
        return [line["event"] for line in self.journal() if line.get("event", {}).get("type") == kind]

    def actions(self, kind: str) -> list[dict[str, Any]]:
        """Return the actions of one kind so far."""
        return [line["action"] for line in self.journal() if line.get("action", {}).get("type") == kind]

    def incidents(self) -> list[dict[str, Any]]:
        """Return the incidents so far, in the order of their files."""
        return [
            json.loads(path.read_text())
            for path in sorted((self.run_dir / "incidents").glob("[0-9][0-9][0-9][0-9].json"))
        ]

    def wait_for_event(self, kind: str, count: int = 1, timeout_s: float = PATIENCE_S) -> list[dict[str, Any]]:
        """Wait until so many events of a kind are in the journal and return them."""
        found: list[dict[str, Any]] = wait_for(
            lambda: len(self.events(kind)) >= count and self.events(kind), f"{count} {kind}:\n{self.said()}", timeout_s
        )
        return found

    def wait_for_incident(self, number: int = 1, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait for an incident, counted from 1, and return it."""
        found = wait_for(lambda: self.incidents()[number - 1 :], f"incident {number}:\n{self.said()}", timeout_s)
        incident: dict[str, Any] = found[0]
        return incident

    def names(self) -> dict[str, str]:
        """Return the host names by agent id."""
        return {event["node"]["id"]: event["node"]["name"] for event in self.events("node_joined")}

    def layout(self, attempt: int) -> list[str]:
        """Return the names of an attempt's hosts by group rank; empty before its workers were ordered."""
        names = self.names()
        orders = [order for order in self.actions("start_attempt") if order["attempt"] == attempt]
        placements = max((order["placements"] for order in orders), key=len, default=[])
        return [names[placement["node"]] for placement in placements]

    # --- workers

    def workers(self) -> list[Worker]:
        """Return what every worker has noted so far."""
        skew_s = {host.name: host.skew_s if "monotonic" in host.skew else 0 for host in self.hosts}
        found = []
        for path in self.steps_dir.glob("*-*-*-*"):
            attempt, rank, rest = path.name.split("-", 2)
            if attempt == "twice":  # a rank found another one of its place alive: see `chaos_job.TRAIN`
                continue
            host, _, pid = rest.rpartition("-")
            times = self._times_in(path, skew_s.get(host, 0))
            found.append(Worker(int(attempt), int(rank), host, int(pid), times))
        return found

    def _times_in(self, path: Path, skew_s: float) -> list[float]:
        """Return the times in a file that grows; each part of it is read once."""
        read_bytes, times = self._read.get(path.name, (0, []))
        with path.open("rb") as file:
            file.seek(read_bytes)
            whole, newline, _ = file.read().rpartition(b"\n")
        if newline:
            times = [*times, *(float(word) - skew_s for word in whole.split())]
            self._read[path.name] = (read_bytes + len(whole) + 1, times)
        return list(times)

    def wait_for_steps(self, attempt: int, ranks: int, count: int = 3, timeout_s: float = PATIENCE_S) -> list[Worker]:
        """Wait until so many ranks of an attempt have made so many steps; return them by rank."""

        def stepped() -> list[Worker] | None:
            found = [each for each in self.workers() if each.attempt == attempt and len(each.times) >= count]
            return sorted(found, key=lambda each: each.rank) if len(found) >= ranks else None

        found: list[Worker] = wait_for(
            stepped, f"{ranks} ranks to step in attempt {attempt}:\n{self.said()}", timeout_s
        )
        return found

    def steps_on(self, host: Host) -> int:
        """Return how many steps workers on a host have noted so far."""
        return sum(len(worker.times) for worker in self.workers() if worker.host == host.name)

    def wait_for_more_steps(self, attempt: int, ranks: int, more: int = 20) -> list[Worker]:
        """Wait until every rank of an attempt has made so many more steps than now; return them by rank."""
        now = {each.rank: len(each.times) for each in self.workers() if each.attempt == attempt}
        return self.wait_for_steps(attempt, ranks, max(now.values(), default=0) + more)

    def assert_never_two_at_once(self) -> None:
        """Fail if a worker made a step after one of a later attempt had made its first, on whatever host."""
        workers = [worker for worker in self.workers() if worker.times]
        assert workers, "no worker has made a step"
        for attempt in sorted({worker.attempt for worker in workers}):
            begun_s = min(worker.times[0] for worker in workers if worker.attempt == attempt)
            late = [w for w in workers if w.attempt < attempt and w.times[-1] > begun_s]
            assert not late, f"attempt {attempt} began at {begun_s}, and these went on: {late!r:.500}"
        ranks = [(worker.attempt, worker.rank) for worker in workers]
        assert len(set(ranks)) == len(ranks), f"a rank had two workers in one attempt: {sorted(ranks)}"

    # --- what is left

    def left_on(self, host: Host) -> list[str]:
        """Return the processes of the job that live on a host."""
        return [f"{pid}: {_command(pid)}" for pid in host.pids() if f"TEST_JOB={self.run_id}" in _environment(pid)]

    def assert_nothing_left(self, hosts: Iterable[Host] | None = None, timeout_s: float = PATIENCE_S) -> None:
        """Fail if a process of the job, or its folder in memory, outlives it on a host that is on."""
        for host in self.hosts if hosts is None else hosts:
            if host._init:  # one that is off has nothing
                wait_for(
                    lambda host=host: not self.left_on(host),
                    f"{host.name} to be empty: {self.left_on(host)}",
                    timeout_s,
                )  # type: ignore[misc]
                memory = host.root / "dev/shm"
                wait_for(
                    lambda memory=memory: not list(memory.glob("robust-run-*")),  # type: ignore[misc]
                    f"its folder in memory to be gone from {host.name}",
                    timeout_s,
                )

    def kill_everything(self) -> None:
        """End what is left of it; the cluster's end does so too."""
        for host in self.hosts:
            for pid in host.pids():
                if f"TEST_JOB={self.run_id}" in _environment(pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


@lru_cache(maxsize=1 << 14)
def _parsed(line: bytes) -> Any:
    """Return what a line of a journal says: a test that waits reads the same lines again and again."""
    return json.loads(line)


def start_all(
    hosts: Cluster | Sequence[Host],
    *script: str,
    tmp_path: Path,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    meet_at: Host | None = None,
    launch: Sequence[Host] | None = None,
    python: str = sys.executable,
    admission: bool = False,
) -> ClusterJob:
    """Start `robust-run OPTIONS SCRIPT...` on hosts: on all, or on those of `launch`; the others may join later.

    They meet at the first of `hosts`, unless `meet_at` is another. Workers find gloo's network card and the folder for
    their steps in the environment. `admission`: standbys are checked 3 s after they came, as they are without an option; that
    is some 10 s of CPU on each, in five processes of which four import torch.
    """
    everyone = list(hosts)
    run_id = f"t{uuid.uuid4().hex[:12]}"
    log_dir, steps_dir = tmp_path / "runs", tmp_path / f"steps-{run_id}"
    steps_dir.mkdir()
    meeting = (meet_at or everyone[0]).address
    argv = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{meeting}:{PORT}", "--run-id", run_id]
    argv += ["--log-dir", str(log_dir), *options, *script]
    variables = {
        "TEST_JOB": run_id,
        "TEST_STEPS": str(steps_dir),
        "ROBUST_TOKEN": TOKEN,
        "GLOO_SOCKET_IFNAME": "eth0",
        **({} if admission else {"ROBUST_ADMISSION_CHECKS": "never"}),
        **(env or {}),
    }
    if any("wall" in host.skew for host in everyone):
        variables["PYTHONPATH"] = _sleeps_under_libfaketime(tmp_path)
    job = ClusterJob(everyone, argv, run_id, log_dir, steps_dir, variables, python=python)
    for host in everyone if launch is None else launch:
        job.join(host)
    return job


def no_warm() -> tuple[str, ...]:
    """Return the option that spares a job what its warm processes import, where launchers are not forked, which have theirs."""
    return () if os.environ.get(host_warmth.WANTED) else ("--no-warm",)


def _sleeps_under_libfaketime(tmp_path: Path) -> str:
    """Return a folder for PYTHONPATH. libfaketime takes the deadlines that Python sleeps until for wall times, and refuses."""
    folder = tmp_path / "sleeps"
    folder.mkdir(exist_ok=True)
    text = "import select, time\ntime.sleep = lambda seconds: select.select((), (), (), seconds) and None\n"
    (folder / "sitecustomize.py").write_text(text)
    return str(folder)


def reaches(host: Host, other: Host, port: int = PORT, timeout_s: float = 0.5) -> bool:
    """Whether a host's packets and their answers get through: a refused connection is an answer too."""
    dial = """
import socket, sys
wire = socket.socket()
wire.settimeout(float(sys.argv[3]))
try:
    wire.connect((sys.argv[1], int(sys.argv[2])))
except ConnectionRefusedError:
    pass
"""
    argv = [sys.executable, "-ISc", dial, other.address, str(port), str(timeout_s)]
    return host.run(argv, check=False).returncode == 0


def write(tmp_path: Path, text: str, name: str = "train.py") -> str:
    """Write a training script and return its path."""
    path = tmp_path / name
    path.write_text(textwrap.dedent(text))
    return str(path)


def children(pid: int) -> list[int]:
    """Return the living children of a process, oldest first."""
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def outside(host: Host, pid: int) -> int:
    """Return the harness's number of what a host calls `pid`; 0 if it is gone."""
    return next((each for each in host.pids() if ground.innermost_pid(each) == pid), 0)


def _environment(pid: int) -> set[str]:
    with suppress(OSError):
        return set(Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0"))
    return set()


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
