"""An agent that died on a node that lives: another one is started there, by an `srun` of the node that controls the job.

Also what an eviction means to the cluster: the node is drained where this user may, else the admin's command is said.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping

from robust_run.launcher.agent.node import Node
from robust_run.launcher.model.job_parts import SlurmUse
from robust_run.launcher.model.links import ControllerLink
from robust_run.launcher.model.node_events import NodeReadmitted
from robust_run.launcher.records.folds.evicted import EvictedNow
from robust_run.launcher.records.journal import JournalEntry, Terms
from robust_run.slurm.node_state import answers, is_down, slurmd_at
from robust_run.slurm.rules.deaths import MARKS_OF_DEATHS, Deaths
from robust_run.slurm.rules.invitation import JOIN, invitation
from robust_run.slurm.rules.scrub import for_srun
from robust_run.slurm.rules.surroundings import gpus_of
from robust_run.slurm.scontrol import Answer, fields
from robust_run.slurm.scontrol_client import ScontrolClient

LOOK_S = 1.0
MOST_TRIES = 3
"""For each node: what dies again and again does so for a reason."""
HELD_UP_S, PATIENCE_S = 3.0, 15.0
"""Looks further apart than this mean that this process stood still, as in a job that is suspended: then all agents look dead
until they have been heard again."""
MOST_READ = 8 << 20
DRAIN = "ROBUST_SLURM_DRAIN"
"""0: evicted nodes are not drained, the command is not said either."""


class Reviver:
    """Follows the journal where the controller writes it."""

    def __init__(
        self, aside: ScontrolClient, node: Node, link: ControllerLink, loop: asyncio.AbstractEventLoop
    ) -> None:
        assert node.spec.slurm is not None
        self._aside = aside
        self._node = node
        self._link = link
        self._loop = loop
        self._use: SlurmUse = node.spec.slurm
        self._offset = 0
        self._deaths = Deaths()
        self._terms = Terms()
        self._looked_at_s = loop.time()
        self._not_before_s = 0.0
        self._tries: dict[str, int] = {}
        self._drained: set[str] = set()
        self._reads_first = True
        self._look()

    def _look(self) -> None:
        now_s = self._loop.time()
        if now_s - self._looked_at_s > HELD_UP_S:
            self._not_before_s = now_s + PATIENCE_S
        self._looked_at_s = now_s
        if self._link.is_led_from_here:
            self._read()
            if now_s >= self._not_before_s and not self._reads_first and self._use.revive != "never":
                for node, name in self._deaths.due():
                    self._revive(node, name)
        self._loop.call_later(LOOK_S, self._look)

    def _read(self) -> None:
        """Take in what the journal has more. What was evicted before this node led was seen to by the one that did."""
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
            if not any(mark in line for mark in MARKS_OF_DEATHS):
                continue
            try:
                self._take(msgspec.json.decode(line, type=JournalEntry))
            except msgspec.MsgspecError:
                continue
        if self._reads_first and not data[len(whole) :]:
            self._reads_first = False

    def _take(self, entry: JournalEntry) -> None:
        if not self._terms.hold(entry.term):
            return
        is_ours = not self._reads_first or entry.term == self._link.term
        for name in self._deaths.take(entry):
            if is_ours:
                self._evicted(name, self._deaths.evicted.now[name])
        if isinstance(entry.event, NodeReadmitted):
            self._readmitted(entry.event.name)

    # --- an agent that died

    def _revive(self, node: str, name: str) -> None:
        tries = self._tries.get(name, 0)
        if tries >= MOST_TRIES:
            return
        self._tries[name] = tries + 1
        self._aside.ask(("show", "node", "-o", name), lambda answer: self._know_node(node, name, answer))

    def _know_node(self, node: str, name: str, answer: Answer) -> None:
        said = fields(answer.text) if answer.ok else {}
        if "State" not in said or is_down(said):
            return
        where = slurmd_at(said, name)
        self._aside.run(lambda: answers(*where), lambda lives: self._start(node, name) if lives else None)

    def _start(self, node: str, name: str) -> None:
        """Start an agent. Its srun is a process of this node, spared when attempts end, and ends with this agent."""
        spec = self._node.spec
        if spec.many is None or not self._deaths.is_alone(node) or not self._is_first(node):
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

    def _is_first(self, node: str) -> bool:
        """Whether no controller has replaced this agent yet: another one may have done so, and been lost before it was seen."""
        try:
            mark = os.path.join(self._node.run_directory.path, f"replaced-{node}")
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        except FileExistsError:
            return False
        except OSError:
            return True  # a full disk is no reason to go without a node
        return True

    # --- a node that was evicted

    def _evicted(self, name: str, why: EvictedNow) -> None:
        """Drain it, unless the list of earlier jobs says so: one of them has drained it."""
        if why.listed:
            return
        self._drain(name, why.reason or f"evicted by {why.by}")

    def _drain(self, name: str, reason: str) -> None:
        if self._aside.env.get(DRAIN) == "0":
            return
        why = " ".join(f"robust-run: job {self._use.job}: {reason}".split())[:200].replace('"', "'")
        command = f'scontrol update NodeName={name} State=DRAIN Reason="{why}"'

        def told(answer: Answer) -> None:
            if answer.ok:
                self._drained.add(name)
                self._node.say(f"{name} is drained: {why}")
            else:
                self._node.say(f"an administrator may want to look at {name}: {command}")

        self._aside.ask(("update", f"NodeName={name}", "State=DRAIN", f"Reason={why}"), told)

    def _readmitted(self, name: str) -> None:
        """An administrator may look at it by now, so it is theirs to be taken back from Slurm's drain."""
        if name in self._drained:
            self._drained.discard(name)
            self._node.say(f"{name} is readmitted, and still drained: scontrol update NodeName={name} State=RESUME")


def srun_line(use: SlurmUse, name: str, script: str, env: Mapping[str, str]) -> list[str]:
    """Return the command that starts an agent on a node of the job, with nothing left to what variables or the site say. Pure."""
    gpus = gpus_of(env)
    return [
        "srun",
        f"--jobid={use.number or use.job}",
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
