"""From a checked command line to an exit code: puts the parts of a one-node job together and speaks the last word."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from robust_run.clock import Clock, SystemClock
from robust_run.errors import PlatformError, RobustRunError, UserError
from robust_run.launcher.agent.agent import Agent
from robust_run.launcher.agent.node import Node
from robust_run.launcher.agent.workers.process_tree import become_subreaper
from robust_run.launcher.controller.controller import Controller
from robust_run.launcher.core.state import JobState, policy_of
from robust_run.launcher.core.step import replay
from robust_run.launcher.model.events import NodeEvent
from robust_run.launcher.model.job import JobSpec, NodeInfo
from robust_run.launcher.model.node_events import ControllerResumed, JobStarted, NodeJoined, NodeLost
from robust_run.launcher.model.world import as_text
from robust_run.launcher.records.incidents import IncidentBook
from robust_run.launcher.records.journal import GONE_S, Journal, events_of
from robust_run.launcher.records.memory_folders import remove_dead_memory
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.start.console import DRAIN_S, Console, drawing, telling
from robust_run.launcher.start.guard import guard_is_gone, held_signals, run_guarded
from robust_run.launcher.start.one_node import OneNode, api_of
from robust_run.launcher.start.warm import client as warm_process
from robust_run.version import __version__

if TYPE_CHECKING:
    from robust_run.launcher.agent.checkpoint.early import EarlyCheckpoint
    from robust_run.launcher.agent.memory.folder import MemoryDir
    from robust_run.launcher.agent.places.place import OpenedPlace
    from robust_run.launcher.agent.signals import Scheduler
    from robust_run.launcher.agent.warm.warm_handoff import WarmHandoff


def launch(spec: JobSpec, env: Mapping[str, str], scheduler: Scheduler | None = None) -> int:
    """Run a job to its end and return the launcher's exit code. Raises UserError and PlatformError before anything runs."""
    if spec.many is not None:
        from robust_run.launcher.start.many.main import launch_many

        return launch_many(spec, env, scheduler=scheduler)
    with held_signals(spec.end_signals) as mask:
        remove_dead_memory()
        run_directory = RunDirectory.create(spec.log_dir, spec.run_id)
        try:
            # What a scheduler signals, counts and ends are the processes of a step: there, the agent is one of them.
            offer = warm_process.look(spec, env) if spec.slurm is None else warm_process.NOTHING
            return run_guarded(
                lambda lifeline: run_agent(
                    _with_note(spec, offer.note), env, run_directory, lifeline, mask, scheduler=scheduler
                ),
                spec.end_signals,
                mask,
                elsewhere=lambda lifeline: offer.hand_over(spec, env, run_directory, lifeline, mask),
            )
        finally:
            _take_away(spec, run_directory)


def resume(
    spec: JobSpec, env: Mapping[str, str], run_directory: RunDirectory, scheduler: Scheduler | None = None
) -> int:
    """Go on with a one-node job from its journal, with the attempt after the last. Raises PlatformError."""
    with held_signals(spec.end_signals) as mask:
        try:
            return run_guarded(
                lambda lifeline: run_agent(spec, env, run_directory, lifeline, mask, resumed=True, scheduler=scheduler),
                spec.end_signals,
                mask,
            )
        finally:
            _take_away(spec, run_directory)


def _take_away(spec: JobSpec, run_directory: RunDirectory) -> None:
    """Take away what lay in memory: also of an agent that was killed, and of its process that had the checkpoints."""
    run_directory.remove_temporary()
    if spec.ckpt_memory_dir is not None:
        from robust_run.launcher.agent.memory.folder import take_away

        take_away(spec.ckpt_memory_dir)


def _with_note(spec: JobSpec, note: str) -> JobSpec:
    return msgspec.structs.replace(spec, notes=(*spec.notes, note)) if note else spec


def run_agent(
    spec: JobSpec,
    env: Mapping[str, str],
    run_directory: RunDirectory,
    lifeline: int,
    mask: set[int],
    given: WarmHandoff | None = None,
    *,
    resumed: bool = False,
    scheduler: Scheduler | None = None,
) -> int:
    """Be agent and controller of a one-node job, in a process of its own, and return the exit code.

    `mask` is the signal mask for workers; the signals the agent handles are held until it can. `given`: it was forked from a
    warm process. `resumed`: the run directory holds the journal of a controller that is gone. `scheduler`: what Slurm adds, for
    a job under Slurm.
    """
    clock = SystemClock()
    started_at_s = clock.monotonic_s()
    console = Console(spec, clock)
    memory_dir: MemoryDir | None = None
    try:
        become_subreaper()
        if spec.ckpt_memory_dir is not None:  # before there are namespaces, which shall see it
            from robust_run.launcher.agent.memory.folder import opened_for

            memory_dir = opened_for(spec, env, run_directory, console.say)
        opened = None
        early = None
        if spec.image is not None or spec.setup is not None:
            from robust_run.launcher.start.place_opening import open_place

            early = _early(spec, env, clock, run_directory, mask, console)

            opened = open_place(spec, env, clock, run_directory, console, lifeline)
        try:
            job = _Job(
                spec, env, clock, run_directory, console, mask, given, opened, memory_dir, early=early, resumed=resumed
            )
        except PlatformError:  # what its workers need is not to be had
            run_directory.remove_unused()
            raise
        job.begin()
        job.greet()
        job.run(lifeline, scheduler)
        return job.end(started_at_s, lifeline)
    except RobustRunError as error:
        console.say(str(error))
        return error.exit_code
    except RuntimeError as error:
        if "thread" not in str(error):
            raise
        os.write(2, f"robust-run: {error}; is the process limit (ulimit -u) reached?\n".encode())
        return 1
    finally:
        if memory_dir is not None:
            memory_dir.close()
        console.close()
        if guard_is_gone(lifeline):  # it was killed, so nobody else will
            run_directory.remove_temporary()


def _early(
    spec: JobSpec, env: Mapping[str, str], clock: Clock, run_directory: RunDirectory, mask: set[int], console: Console
) -> EarlyCheckpoint | None:
    """Begin to fetch what the job will most likely start from, beside its image or set-up; None: there is no such thing."""
    if spec.ckpt_dir is None or "://" not in spec.ckpt_dir:
        return None
    from robust_run.launcher.agent.checkpoint import early as checkpoint_early

    if not checkpoint_early.is_wanted(spec):
        return None
    return checkpoint_early.begin(spec, env, clock, run_directory, mask, console.say)


class _Job:
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
            past = self._journal.past()
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
            if spec.code == "copy":
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
