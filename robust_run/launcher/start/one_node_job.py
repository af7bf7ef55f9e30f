"""The parts of a one-node job: made, started, served and put away in one process."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from robust_run.clock import Clock
from robust_run.errors import UserError
from robust_run.launcher.agent.agent import Agent
from robust_run.launcher.agent.node import Node
from robust_run.launcher.controller.controller import Controller
from robust_run.launcher.core.state import JobState, policy_of
from robust_run.launcher.core.step import replay
from robust_run.launcher.model.events import NodeEvent
from robust_run.launcher.model.job import JobSpec, NodeInfo
from robust_run.launcher.model.node_events import ControllerResumed, JobStarted, NodeJoined, NodeLost
from robust_run.launcher.model.world import as_text
from robust_run.launcher.records.incidents import IncidentBook
from robust_run.launcher.records.journal import GONE_S, Journal, events_of
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.start.console import DRAIN_S, Console, drawing, telling
from robust_run.launcher.start.one_node import OneNode, api_of
from robust_run.version import __version__

if TYPE_CHECKING:
    from robust_run.launcher.agent.checkpoint.early import EarlyCheckpoint
    from robust_run.launcher.agent.memory.folder import MemoryDir
    from robust_run.launcher.agent.places.place import OpenedPlace
    from robust_run.launcher.agent.signals import Scheduler
    from robust_run.launcher.agent.warm.warm_handoff import WarmHandoff


class OneNodeJob:
    """The parts of a one-node job: its node, its agent and its controller, all in this process."""

    def __init__(  # noqa: PLR0913, PLR0917 - what they are made of
        self,
        spec: JobSpec,
        env: Mapping[str, str],
        clock: Clock,
        run_directory: RunDirectory,
        console: Console,
        mask: set[int],
        given: WarmHandoff | None,
        opened: OpenedPlace | None,
        memory_dir: MemoryDir | None,
        *,
        early: EarlyCheckpoint | None,
        resumed: bool,
    ) -> None:
        """Put them together; nothing runs yet. Raises UserError if another launcher has the run."""
        agent: Agent | None = None

        def report(event: NodeEvent) -> None:
            if agent is not None:
                agent.report(event)

        self._spec = spec
        self._clock = clock
        self._run_directory = run_directory
        self._console = console
        self._resumed = resumed
        self._node = Node(
            spec,
            env,
            clock,
            run_directory,
            console.router,
            console.complain,
            report,
            mask,
            given,
            opened=opened,
            early=early,
        )
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # the agent's group is not the terminal's, and it writes to it
        self._host = spec.slurm.node_name if spec.slurm is not None else socket.gethostname()
        self.agent = agent = Agent(self._node, os.urandom(8).hex())
        self._link = OneNode(agent)
        agent.serve(self._link)
        self._journal = Journal(run_directory.journal, clock, on_error=console.complain)
        if not self._journal.claim(GONE_S):  # somebody may only look whether it is held
            raise UserError(f"another launcher continues the run in {run_directory.path!r}; robust status shows it")
        tells = telling(spec, run_directory, clock, console)
        self._book = IncidentBook(clock, run_directory, console.say, console.complain, tells, drawing)
        self._memory_dir = memory_dir
        self._node.spare = self._lasting_pids
        self._controller = self._link.controller = self._made_controller()

    def _lasting_pids(self) -> list[int]:
        """Return processes of ours that outlive attempts."""
        return [*self._book.notifier_pids(), *(self._memory_dir.pids() if self._memory_dir is not None else ())]

    def _made_controller(self) -> Controller:
        """Return the controller, which goes on from the journal where the job does."""
        policy = policy_of(self._spec)
        state = JobState()
        if self._resumed:
            from robust_run.launcher.records.journal_reading import past_of  # who begins a journal reads none

            past = past_of(self._journal)
            state = replay(policy, events_of(past))
            self._journal.term = state.term + 1
            self._book.load(past)
        return Controller(
            policy=policy,
            state=state,
            journal=self._journal,
            book=self._book,
            clock=self._clock,
            outbox=self._link,
            later=self._link.later,
            on_finish=self._link.finished,
        )

    def begin(self) -> None:
        """Start the first attempt; or, in a job that goes on, the next: whatever the old agent had started died with it."""
        spec, controller = self._spec, self._controller
        restart = spec.slurm.restart if spec.slurm is not None else 0
        self._link.serve_people_with(
            lambda: api_of(spec, controller, self._run_directory, self._clock, self._console, self._host)
        )
        if spec.sensors:
            self._link.keep_usage(self._run_directory, self._clock, self._console.say)
        if self._resumed:
            old = [member.info.id for member in controller.state.members.values() if member.present]
            controller.tell(ControllerResumed(term=controller.state.term + 1, host=self._host, restart=restart))
            for each in old:
                controller.tell(NodeLost(node=each, silent_s=0.0))
        else:
            self._journal.open_with(spec, self._host)
            if spec.code == "copy" or os.path.exists(self._run_directory.code_start):
                self._capture(None)
            controller.tell(JobStarted(restart=restart))
        info = NodeInfo(
            id=self.agent.node_id,
            name=self._host,
            nproc=spec.nproc,
            ckpt_dir=as_text(spec.resume_folder or ""),
            has_memory=spec.ckpt_memory is True,
            version=__version__,
        )
        controller.tell(NodeJoined(node=info))
        if not controller.state.code.records:
            self._capture(self._link)

    def _capture(self, beside: OneNode | None) -> None:
        """Keep the code that the job is started with: before its first workers where they shall run from the copy, else beside
        their first imports.
        """
        from robust_run.launcher.controller.code.staging import capture_beside, capture_now

        place, tell, now_unix_s = self._node.code.place, self._controller.tell, self._clock.unix_s()
        if beside is None:
            capture_now(place, tell, now_unix_s)
        else:
            capture_beside(place, tell, now_unix_s, beside.later)

    def greet(self) -> None:
        """Say what was started."""
        spec, node, folders = self._spec, self._node, self._run_directory
        ranks = f"{spec.nproc} workers" if spec.nproc > 1 else "1 worker"
        logs = "no logs kept" if folders.temporary else f"logs in {folders.shown(folders.path)}"
        node.say(f"{ranks} of {spec.script} {'resumed' if self._resumed else 'started'}, {logs}")
        if node.workplace.place is not None:
            node.say(node.workplace.place.sentence)
        for note in spec.notes:
            node.say(note)

    def run(self, lifeline: int, scheduler: Scheduler | None) -> None:
        """Serve until the job is over; see `agent.loop.run`."""
        from robust_run.launcher.agent.loop import run
        from robust_run.launcher.start.needed_later import AGENT, CONTROLLER, prepare_agent

        prepare_agent(self._link.later, self._spec, self._run_directory, *CONTROLLER, *AGENT)
        run(self.agent, self._node, self._link, lifeline, scheduler)

    def end(self, started_at_s: float, lifeline: int) -> int:
        """Put everything away, say the last word, and return the job's exit code."""
        finish = self._link.finish
        self._book.flush()
        if self._memory_dir is not None:
            from robust_run.launcher.agent.memory.folder import STOPPED_LIMIT_S, is_told_more

            is_stopped = finish is None or finish.outcome == "stopped"
            self._memory_dir.finish(STOPPED_LIMIT_S if is_stopped else None, lambda: is_told_more(lifeline))
        self._node.end_helpers(finish.exit_code if finish is not None else 1)
        assert finish is not None
        from robust_run.launcher.controller.last_word import say_goodbye

        lived_s = self._clock.monotonic_s() - started_at_s
        say_goodbye(
            self._console.say,
            self._run_directory,
            self._book,
            finish,
            self._controller.state,
            lived_s,
            journal_problem=self._journal.problem,
        )
        self._journal.wait_durable(DRAIN_S)
        from robust_run.launcher.start.fleet_memory import is_trifle, leave_facts

        if self._resumed or not is_trifle(finish.outcome, lived_s, len(self._book.incidents)):
            leave_facts(self._run_directory, self._console.say)
        return finish.exit_code
