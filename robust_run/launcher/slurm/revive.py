"""An agent that died on a node that lives: another one is started there, by an `srun` of the node that controls the job.

Also what an eviction means to the cluster: the node is drained where this user may, else the admin's command is said.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Mapping

from robust_run.launcher.events import NodeEvicted, NodeJoined, NodeLeft, NodeLost, NodeReturned
from robust_run.launcher.journal import Entry
from robust_run.launcher.node import Node
from robust_run.launcher.slurm.aside import Aside
from robust_run.launcher.slurm.joining import JOIN, invitation
from robust_run.launcher.slurm.scontrol import Answer, fields
from robust_run.launcher.slurm.scrub import for_srun
from robust_run.launcher.slurm.surroundings import gpus_of
from robust_run.launcher.superior import Superior
from robust_run.launcher.types import SlurmUse

LOOK_S = 1.0
MOST_TRIES = 3
"""For each node: what dies again and again does so for a reason."""
CONNECT_S = 2.0
SLURMD_PORT = "6818"
MOST_READ = 8 << 20
DRAIN = "ROBUST_SLURM_DRAIN"
"""0: evicted nodes are not drained, the command is not said either."""


class Reviver:
    """Follows the journal where the controller writes it."""

    def __init__(self, aside: Aside, node: Node, superior: Superior, loop: asyncio.AbstractEventLoop) -> None:
        assert node.spec.slurm is not None
        self._aside = aside
        self._node = node
        self._superior = superior
        self._loop = loop
        self._use: SlurmUse = node.spec.slurm
        self._offset = 0
        self._names: dict[str, str] = {}
        self._gone: set[str] = set()
        self._tries: dict[str, int] = {}
        self._drained: set[str] = set()
        self._reads_first = True
        self._look()

    def _look(self) -> None:
        if self._superior.is_led_from_here:
            self._read()
            for name in sorted(self._gone):
                self._revive(name)
        self._loop.call_later(LOOK_S, self._look)

    def _read(self) -> None:
        """Take in what the journal has more. What was there before this node led is not acted on."""
        import msgspec

        try:
            with open(self._node.run_directory.journal, "rb") as file:
                file.seek(self._offset)
                data = file.read(MOST_READ)
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            if b'"event"' not in line:
                continue
            try:
                self._take(msgspec.json.decode(line, type=Entry))
            except msgspec.MsgspecError:
                continue
        if self._reads_first and not data[len(whole) :]:
            self._reads_first = False

    def _take(self, entry: Entry) -> None:
        match entry.event:
            case NodeJoined(node=node):
                self._names[node.id] = node.name
                self._gone.discard(node.name)
            case NodeReturned(node=node):
                self._gone.discard(self._names.get(node, ""))
            case NodeLost(node=node) if node in self._names:
                self._gone.add(self._names[node])
            case NodeLeft(node=node, reason=reason) if node in self._names and "SIGKILL" in reason:
                self._gone.add(self._names[node])  # its first process was killed, nobody told it to go
            case NodeEvicted(name=name, reason=reason, by=by):
                self._gone.discard(name)
                if not self._reads_first and by != "the list":
                    self._drain(name, reason)
            case _:
                pass

    # --- an agent that died

    def _revive(self, name: str) -> None:
        self._gone.discard(name)
        tries = self._tries.get(name, 0)
        if self._use.revive == "never" or self._reads_first or tries >= MOST_TRIES:
            return
        self._tries[name] = tries + 1
        self._aside.ask(("show", "node", "-o", name), lambda answer: self._know_node(name, answer))

    def _know_node(self, name: str, answer: Answer) -> None:
        said = fields(answer.text) if answer.ok else {}
        state = said.get("State", "DOWN")
        if any(word in state for word in ("DOWN", "NOT_RESPONDING", "FAIL", "POWER", "*", "REBOOT")):
            return
        where = (said.get("NodeAddr", name), int(port) if (port := said.get("Port", SLURMD_PORT)).isdecimal() else 6818)
        self._aside.run(lambda: answers(*where), lambda lives: self._start(name) if lives else None)

    def _start(self, name: str) -> None:
        """Start an agent. Its srun is a process of this node, spared when attempts end, and ends with this agent."""
        spec = self._node.spec
        if spec.many is None:
            return
        env = {**for_srun(self._aside.env), JOIN: invitation(spec, self._use.node_id, name)}
        try:
            process = subprocess.Popen(
                srun_line(self._use, name, spec.script, self._aside.env),
                env=env,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._node.say(f"the agent on {name} died and cannot be started again: srun: {error.strerror}")
            return
        self._aside.spare(process.pid)
        self._node.say(f"the agent on {name} died and the node lives: another one is started there")

    # --- a node that was evicted

    def _drain(self, name: str, reason: str) -> None:
        if name in self._drained or self._aside.env.get(DRAIN) == "0":
            return
        self._drained.add(name)
        why = " ".join(f"robust-run: job {self._use.job}: {reason or 'evicted'}".split())[:200].replace('"', "'")
        command = f'scontrol update NodeName={name} State=DRAIN Reason="{why}"'

        def told(answer: Answer) -> None:
            if answer.ok:
                self._node.say(f"{name} is drained: {why}")
            else:
                self._node.say(f"an administrator may want to look at {name}: {command}")

        self._aside.ask(("update", f"NodeName={name}", "State=DRAIN", f"Reason={why}"), told)


def srun_line(use: SlurmUse, name: str, script: str, env: Mapping[str, str]) -> list[str]:
    """Return the command that starts an agent on a node of the job, with nothing left to what variables or the site say. Pure."""
    gpus = gpus_of(env)
    return [
        "srun",
        f"--jobid={use.job}",
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={name}",
        "--mpi=none",
        "--cpu-bind=none",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--quiet",
        *([f"--gres=gpu:{gpus}"] if gpus else []),
        sys.executable,
        "-m",
        "robust_run",
        "--standalone",
        script,
    ]


def answers(host: str, port: int) -> bool:
    """Whether a machine accepts connections. May block for a moment."""
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError:
        return False
    return True
