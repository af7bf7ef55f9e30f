"""From a checked command line to an exit code: puts the parts of a job together and speaks the last word."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from robust_run.clock import SystemClock
from robust_run.errors import RobustRunError
from robust_run.launcher.agent import Agent
from robust_run.launcher.core import Policy
from robust_run.launcher.evidence import hand_up_error_file
from robust_run.launcher.guard import guard_is_gone, hold_signals, run_guarded
from robust_run.launcher.incidents import IncidentBook
from robust_run.launcher.journal import Journal
from robust_run.launcher.node import Node
from robust_run.launcher.output.files import FileSink
from robust_run.launcher.output.route import OutputRouter
from robust_run.launcher.output.sinks import BoundedWriter, open_console
from robust_run.launcher.process_tree import become_subreaper
from robust_run.launcher.run_directory import RunDirectory
from robust_run.launcher.types import Event, Finish, JobSpec, JobStarted, Std
from robust_run.launcher.warm import client as warm_process
from robust_run.report import summary

if TYPE_CHECKING:
    from robust_run.launcher.warm.given import WarmStart

#: How long a reader of our output that has stopped reading may hold up our exit.
DRAIN_S = 5.0


def launch(spec: JobSpec, env: Mapping[str, str]) -> int:
    """Run a job to its end and return the launcher's exit code. Raises UserError and PlatformError before anything runs."""
    mask = hold_signals(spec.end_signals)
    try:
        run_directory = RunDirectory.create(spec.log_dir, spec.run_id)
        try:
            offer = warm_process.look(spec, env)
            return run_guarded(
                lambda lifeline: run_agent(_with_note(spec, offer.note), env, run_directory, lifeline, mask),
                spec.end_signals,
                mask,
                elsewhere=lambda lifeline: offer.hand_over(spec, env, run_directory, lifeline, mask),
            )
        finally:
            run_directory.remove_temporary()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _with_note(spec: JobSpec, note: str) -> JobSpec:
    return msgspec.structs.replace(spec, notes=(*spec.notes, note)) if note else spec


def run_agent(
    spec: JobSpec,
    env: Mapping[str, str],
    run_directory: RunDirectory,
    lifeline: int,
    mask: set[int],
    given: WarmStart | None = None,
) -> int:
    """Be the agent of a job, in a process of its own, and return the exit code. `given`: it was forked from a warm process.

    `mask` is the signal mask for workers; the signals the agent handles are held until it can.
    """
    clock = SystemClock()
    started_at_s = clock.monotonic_s()
    console_out, console_err = open_console(1, 2)
    complain = _Complaint(console_err)
    files = FileSink(on_error=complain)
    router = OutputRouter(
        spec.streams,
        spec.role,
        console_out=console_out,
        console_err=console_err,
        files=files,
        clock=clock,
        console_is_terminal=Std(out=os.isatty(1), err=os.isatty(2)),
    )
    agent: Agent | None = None

    def tell(event: Event) -> None:
        if agent is not None:
            agent.tell(event)

    try:
        become_subreaper()
        node = Node(spec, env, clock, run_directory, router, complain, tell, mask, given)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # the agent's group is not the terminal's, and it writes to it
        host = socket.gethostname()
        journal = Journal(run_directory.journal, clock, on_error=complain)
        journal.open_with(spec, host)
        book = IncidentBook(node, host)
        agent = Agent(_policy(spec), node, journal, book)
        agent.tell(JobStarted())
        _greet(spec, node)
        finish = agent.run(lifeline)
        node.end_helpers()
        _say_goodbye(spec, node, book, finish, agent.state.trail.restarts, clock.monotonic_s() - started_at_s)
        journal.wait_durable(DRAIN_S)
        return finish.exit_code
    except RobustRunError as error:
        router.say(f"robust-run: {error}")
        return error.exit_code
    except RuntimeError as error:
        if "thread" not in str(error):
            raise
        os.write(2, f"robust-run: {error}; is the process limit (ulimit -u) reached?\n".encode())
        return 1
    finally:
        files.stop()
        console_out.drain(DRAIN_S)
        console_err.drain(DRAIN_S)
        if guard_is_gone(lifeline):  # it was killed, so nobody else will
            run_directory.remove_temporary()


class _Complaint:
    """Says once that the run directory cannot be written; called from any thread."""

    def __init__(self, console: BoundedWriter) -> None:
        self._console = console
        self._said = False

    def __call__(self, path: str, error: OSError) -> None:
        """Say it, the first time."""
        if not self._said:
            self._said = True
            why = error.strerror or error
            line = f"robust-run: cannot write {path}: {why}; the job goes on, what cannot be written is left out\n"
            self._console.offer(line.encode(errors="surrogateescape"))


def _policy(spec: JobSpec) -> Policy:
    return Policy(
        nproc=spec.nproc,
        max_restarts=spec.max_restarts,
        progress_after_s=spec.progress_after_s,
        restart_grace_s=spec.restart_grace_s,
        shutdown_timeout_s=spec.shutdown_timeout_s,
    )


def _greet(spec: JobSpec, node: Node) -> None:
    ranks = f"{spec.nproc} workers" if spec.nproc > 1 else "1 worker"
    logs = (
        "no logs kept"
        if node.run_directory.temporary
        else f"logs in {node.run_directory.shown(node.run_directory.path)}"
    )
    node.say(f"{ranks} of {spec.script} started, {logs}")
    for note in spec.notes:
        node.say(note)


def _say_goodbye(spec: JobSpec, node: Node, book: IncidentBook, finish: Finish, restarts: int, lived_s: float) -> None:
    match finish.outcome:
        case "done" if restarts:
            node.say(summary.done_line(spec.nproc, restarts, lived_s))
        case "stopped":
            node.say(f"{finish.reason} after {summary.duration(lived_s)}")
        case "failed":
            folder = node.run_directory.shown(node.run_directory.path)
            for line in summary.failure_lines(book.incidents[-1], restarts + 1, lived_s, folder):
                node.say(line)
            if book.culprit is not None:
                error_file = node.run_directory.error_file(book.incidents[-1].attempt, book.culprit.rank)
                hand_up_error_file(error_file, finish.exit_code, os.environ.get("TORCHELASTIC_ERROR_FILE"))
