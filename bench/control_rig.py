"""One real controller process and the fleets of simulated agents around it, as `bench/control_plane.py` drives them."""

from __future__ import annotations

import json
import math
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from fleet_agent import Plan, id_of

from robust_run.launcher.controller.config import ControllerConfig
from robust_run.launcher.model.job import JobSpec, ManyNodes, OutputStreams, Std

HERE = os.path.dirname(os.path.abspath(__file__))
BOOT = "import sys; from robust_run.launcher.start.controller_process import main; main(int(sys.argv[1]))"
TOKEN = "a token of this bench"
LARGEST_FLEET = 5000
TICKS = os.sysconf("SC_CLK_TCK")


class BenchError(Exception):
    """A run that gives no figures. The message says why."""


@dataclass
class Process:
    """A child with its lines of standard output."""

    child: subprocess.Popen[bytes]
    rest: bytes = b""
    seen: dict[str, Any] = field(default_factory=dict)

    def send(self, **command: Any) -> None:
        """Pass a command on."""
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(command).encode() + b"\n")
        self.child.stdin.flush()

    def read(self) -> bool:
        """Take what it has written; False at its end."""
        assert self.child.stdout is not None
        data = os.read(self.child.stdout.fileno(), 1 << 20)
        *lines, self.rest = (self.rest + data).split(b"\n")
        if lines:
            self.seen = json.loads(lines[-1])
        return bool(data)


class Rig:
    """A controller and its simulated agents."""

    def __init__(self, folder: str, agents: int, nproc: int, boot: str) -> None:
        self.nodes = agents
        self.started_at_s: dict[str, float] = {}
        self.deadline_s = time.monotonic() + 60 + agents / 50
        self._folder = folder
        self._boot = boot
        self._run_path = os.path.join(folder, "run")
        os.mkdir(self._run_path, 0o700)
        listener = socket.create_server(("127.0.0.1", 0), backlog=1)
        self.port = listener.getsockname()[1]
        self._config = _config(self._run_path, agents, nproc, self.port)
        self.controller = self._start_controller(listener)
        self._earlier_cpu_s = 0.0
        fleets = max(2, math.ceil((agents + 1) / LARGEST_FLEET))
        sizes = [(agents + 1) // fleets + (number < (agents + 1) % fleets) for number in range(fleets)]
        self.fleets = [self._start_fleet(sum(sizes[:n]), size, nproc, n) for n, size in enumerate(sizes)]

    @property
    def journal(self) -> str:
        """Path of the journal."""
        return os.path.join(self._run_path, "journal.jsonl")

    # --- processes

    def _start_controller(self, listener: socket.socket) -> subprocess.Popen[bytes]:
        """Start the controller as an agent does: what it is charged with is in memory, never on its command line."""
        memory = os.memfd_create("config")
        os.write(memory, msgspec.json.encode(msgspec.structs.replace(self._config, listener=listener.fileno())))
        with open(os.path.join(self._folder, "controller.log"), "ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-c", self._boot, str(memory)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                pass_fds=(memory, listener.fileno()),
            )  # fmt: skip
        os.close(memory)
        listener.close()
        return child

    def _start_fleet(self, first: int, size: int, nproc: int, number: int) -> Process:
        plan = Plan(
            first=first, agents=size, nproc=nproc, nodes=self.nodes, port=self.port, source=f"127.0.1.{number + 1}",
            token=TOKEN,
        )  # fmt: skip
        child = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "simulated_agents.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        process = Process(child)
        assert child.stdin is not None
        child.stdin.write(msgspec.json.encode(plan) + b"\n")
        child.stdin.flush()
        return process

    def restart_controller(self) -> float:
        """Kill the controller and start the next one; return when."""
        self._earlier_cpu_s += self.cpu_s
        killed_at_s = time.monotonic()
        self.controller.kill()
        self.controller.wait()
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        self._config = msgspec.structs.replace(self._config, resume=True)
        self.controller = self._start_controller(listener)
        return killed_at_s

    def close(self) -> None:
        """End all processes."""
        for child in (self.controller, *(fleet.child for fleet in self.fleets)):
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()

    # --- what is seen

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the controller so far."""
        with open(f"/proc/{self.controller.pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    @property
    def waited_s(self) -> float:
        """Seconds that the controller could have run and had no core: what a busy machine did to the figures."""
        with open(f"/proc/{self.controller.pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9

    @property
    def rss_mib(self) -> float:
        """Most memory the controller has had."""
        with open(f"/proc/{self.controller.pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024

    def total(self, name: str) -> int:
        """Return a count over all agents."""
        return sum(fleet.seen.get(name, 0) for fleet in self.fleets)

    def most(self, name: str) -> float:
        """Return the largest of a figure over all agents."""
        return float(max(fleet.seen.get(name, 0.0) for fleet in self.fleets))

    def heard(self, what: str, attempt: int) -> int:
        """Return how many agents got an order of an attempt."""
        return sum(fleet.seen.get(what, {}).get(str(attempt), [0])[0] for fleet in self.fleets)

    def tell_all(self, **command: Any) -> None:
        """Pass a command on to all fleets."""
        for fleet in self.fleets:
            fleet.send(**command)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until something is so. Raises BenchError."""
        while not condition():
            left_s = self.deadline_s - time.monotonic()
            if left_s <= 0 or self.controller.poll() is not None:
                why = "too long" if left_s <= 0 else f"the controller ended with {self.controller.returncode}"
                seen = [fleet.seen for fleet in self.fleets]
                raise BenchError(f"{what}: {why}\n{self.log()}\n{seen}")
            self.look(min(left_s, 1.0))

    def look(self, timeout_s: float) -> None:
        """Take what the fleets say."""
        readable, _, _ = select.select([fleet.child.stdout for fleet in self.fleets], [], [], timeout_s)
        for fleet in self.fleets:
            if fleet.child.stdout in readable and not fleet.read() and fleet.child.wait() != 0:
                raise BenchError("simulated agents failed")

    def rest(self, duration_s: float) -> None:
        """Let time pass."""
        until_s = time.monotonic() + duration_s
        while (left_s := until_s - time.monotonic()) > 0:
            self.look(left_s)

    def log(self) -> str:
        """The end of what the controller printed."""
        with open(os.path.join(self._folder, "controller.log"), encoding="utf-8", errors="replace") as file:
            return "".join(file.readlines()[-15:])


def _config(run_path: str, agents: int, nproc: int, port: int) -> ControllerConfig:
    spec = JobSpec(
        argv=("python", "train.py"),
        script="train.py",
        is_python=True,
        nproc=nproc,
        run_id="run",
        rdzv_id="bench",
        log_dir=os.path.dirname(run_path),
        streams=OutputStreams(redirects=(Std(),) * nproc, tee=(Std(),) * nproc, shown=(True,) * nproc),
        many=ManyNodes(fewest=agents, most=agents, host="127.0.0.1", port=port, standby=1),
    )
    return ControllerConfig(
        spec=spec,
        token=TOKEN,
        run_path=run_path,
        run_memory=run_path,
        listener=-1,
        address=f"127.0.0.1:{port}",
        host_agent=id_of(0),
        host="gpu-0",
        guard=os.getpid(),
    )


# --- one run --------------------------------------------------------------------------------------------------------
