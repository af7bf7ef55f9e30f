"""Playing events to the plugin for NCCL through the driver: a small language for what NCCL does in one rank.

The driver (driver.c) is a process of its own, so what goes wrong in the plugin goes wrong there, and what a rank leaves behind
can be read after its death. Numbers name handles.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from robust_run.tracer.nccl.types import Flow, NcclTrace
from robust_run.tracer.plugin import layout, reader

LIMIT_S = 120
DRIVER_SOURCE = Path(__file__).with_name("driver.c")
VERSIONS = (3, 4, 5, 6)

#: States of a step, in the order in which NCCL tells of them.
SEND = {"gpu_wait": 8, "peer_wait": 20, "send_wait": 9}
RECV = {"recv_wait": 10, "flush_wait": 11, "gpu_wait": 12}
COMM, COLL, OP, STEP, SPARE = 0, 1, 2, 3, 9

MAKE_COMM = f"comm {COMM} tp_3 0xabcdef 2 8 5"
ALL_GATHER = f"coll {COMM} {COLL} 1204 AllGather 4096 ncclBfloat16 0"


def proxy_op(
    handle: int = OP, parent: int = COLL, channel: int = 3, peer: int = 6, steps: int = 8, sends: bool = True
) -> str:
    """The part of an operation that goes to (or comes from) one peer on one channel."""
    return f"op {COMM} {handle} {parent} 0 {channel} {peer} {steps} {int(sends)}"


def steps(first: int, last: int, handle: int = OP, sends: bool = True) -> str:
    """Steps that go all the way."""
    return f"steps {COMM} {handle} {first} {last} {int(sends)}"


def step_up_to(number: int, states: Iterable[int], parent: int = OP, handle: int = STEP) -> list[str]:
    """A step that reaches some states and then no more."""
    return [f"step {COMM} {handle} {parent} {number}", *(f"state {handle} {state} 1024" for state in states)]


class Rank:
    """A process with the plugin in it, and the file that it writes."""

    def __init__(
        self, driver: str, plugin: str, version: int, path: str, environment: dict[str, str] | None = None
    ) -> None:
        self.path = path
        variables = {"PATH": os.environ.get("PATH", ""), layout.PATH_VARIABLE: path, **(environment or {})}
        self.process = subprocess.Popen(
            [driver, plugin, str(version)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=variables,
        )

    def play(self, *commands: str | list[str]) -> None:
        """Play commands, and return when they have been played."""
        lines = [line for command in commands for line in ([command] if isinstance(command, str) else command)]
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n".join([*lines, "sync", ""]))
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer == "ok\n", f"the driver said {answer!r}: {self.process.communicate(timeout=LIMIT_S)}"

    def ask(self, command: str) -> str:
        """Play one command that answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self, *commands: str) -> tuple[int, str]:
        """Play the last commands; return the exit status and what was said on standard error."""
        _, errors = self.process.communicate("\n".join([*commands, ""]), timeout=LIMIT_S)
        return self.process.returncode, errors

    def trace(self) -> NcclTrace:
        """What the file says."""
        found = reader.read(self.path)
        assert found is not None
        return found

    def flow(self) -> Flow:
        """The only flow there is."""
        flows = self.trace().flows
        assert len(flows) == 1
        return flows[0]

    def close(self) -> None:
        """End the process, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=LIMIT_S)


#: What the fixture `start_rank` gives: starts a rank (version, path, environment).
StartRank = Callable[..., Rank]


def rungs(flow: Flow) -> tuple[int, int, int, int]:
    """The four counters."""
    return flow.posted, flow.gpu_ready, flow.transmitted, flow.done


def compile_driver(compiler: str, target: str, extra: Iterable[str] = ()) -> str:
    """Compile the driver; return what went wrong, empty if nothing did."""
    argv = [compiler, "-std=gnu11", "-O1", "-g", "-pthread", *extra, "-o", target, str(DRIVER_SOURCE), "-ldl"]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return result.stderr if result.returncode else ""
