"""`robust-run --resume RUN_DIR`: goes on with a job whose controller, or whole launcher, is gone.

The job is taken from the first line of its journal. What runs elsewhere is not touched: agents of other nodes come back to the
controller, and their workers train on.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from robust_run.clock import SystemClock
from robust_run.errors import PlatformError, UserError
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.model.node_events import NodeJoined
from robust_run.launcher.model.world import World, absolute
from robust_run.launcher.operator.reading.place import read_place
from robust_run.launcher.records.journal import GONE_S, Journal, JournalEntry, in_force
from robust_run.launcher.records.journal_reading import read
from robust_run.launcher.records.memory_folders import remove_dead_memory
from robust_run.launcher.records.outcome import told
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.start import main
from robust_run.launcher.start.options.many_nodes import parse_node_name, resolve_tls
from robust_run.launcher.start.options.notify_use import resolve_notify
from robust_run.launcher.start.options.options import Options
from robust_run.launcher.start.options.rendezvous import parse_host, parse_http_port

if TYPE_CHECKING:
    from robust_run.launcher.agent.signals import Scheduler


def resume(options: Options, world: World, env: Mapping[str, str], scheduler: Scheduler | None = None) -> int:
    """Continue the run that --resume names and return the launcher's exit code.

    Raises UserError if it is over, or a controller of it is alive; PlatformError for a journal that cannot be used.
    """
    assert options.resume is not None
    path = RunDirectory.resume(absolute(options.resume, world)).path
    try:
        header, entries = read(os.path.join(path, "journal.jsonl"))
    except OSError as error:
        raise PlatformError(f"--resume: cannot read the journal in {path!r}: {error.strerror}") from error
    known = list(in_force(entries))
    _check_not_over(path, known)
    spec = with_options(header.job, path, options, world)
    if spec.many is None or spec.many.controller_standby == 0:
        _check_nobody_controls(path)
    _enter(header.cwd)
    remove_dead_memory()
    if spec.many is None:
        folder, name = os.path.split(path)
        return main.resume(spec, env, RunDirectory.join(folder, name, os.getpid()), scheduler)
    from robust_run.launcher.start.many.joining import Resumed
    from robust_run.launcher.start.many.main import launch_many

    here = _agent_here(known, spec.many.node_name or socket.gethostname())
    return launch_many(spec, env, Resumed(run_path=path, agent=here), scheduler)


def with_options(job: JobSpec, path: str, options: Options, world: World) -> JobSpec:
    """Return the job with what may be said anew (see `options.RESUMABLE`), in this run directory. Raises UserError."""
    folder, name = os.path.split(path)
    job = msgspec.structs.replace(job, run_id=name, log_dir=folder, notes=())
    if "http-port" in options.given:
        job = msgspec.structs.replace(job, http_port=parse_http_port(options.http_port))
    if options.http_host:
        job = msgspec.structs.replace(job, http_host=parse_host("--http-host", options.http_host))
    if options.prometheus_dir:
        job = msgspec.structs.replace(
            job, prometheus_dir=absolute(options.prometheus_dir, world), http_port=job.http_port or 0
        )
    if options.notify:
        job = msgspec.structs.replace(job, notify=resolve_notify(options.notify, world))
    many = job.many
    if many is None:
        return job
    many = msgspec.structs.replace(many, node_name=parse_node_name(options.node_name))
    if options.token_file:
        many = msgspec.structs.replace(many, token_file=absolute(options.token_file, world))
    if options.tls_cert or options.tls_key or options.tls_ca:
        cert, key, ca = resolve_tls(options, many.is_host, world)
        many = msgspec.structs.replace(
            many, tls_cert=cert or many.tls_cert, tls_key=key or many.tls_key, tls_ca=ca or many.tls_ca
        )
    # Its place in the first attempt is history; the node of that rank may not have been given up yet.
    return msgspec.structs.replace(job, many=msgspec.structs.replace(many, node_rank=None))


def _check_not_over(path: str, entries: Sequence[JournalEntry]) -> None:
    finish = told(path, entries)
    if finish is not None:
        why = f" ({finish.reason})" if finish.reason else ""
        raise UserError(f"--resume {path!r}: the job is over: {finish.outcome}{why}; start it again without --resume")


def _check_nobody_controls(path: str) -> None:
    """Raise UserError if a controller of the run is alive; the one to come looks again, see `Journal.claim`."""

    def refuse(file: str, error: OSError) -> None:
        raise PlatformError(f"--resume: cannot write {file!r}: {error.strerror}")

    journal = Journal(os.path.join(path, "journal.jsonl"), SystemClock(), on_error=refuse)
    try:
        if not journal.claim(GONE_S):
            raise UserError(f"--resume {path!r}: {controller_of(path)}; robust status says how the job is")
    finally:
        journal.close()


def controller_of(path: str) -> str:
    """Return the words for a controller of this run that is alive."""
    try:
        place = read_place(path)
    except PlatformError:
        place = None
    who = f" (pid {place.pid} on {place.host})" if place is not None else ""
    return f"a controller of this run is alive{who}"


def _enter(folder: str) -> None:
    """Go where the job was started. Raises PlatformError."""
    try:
        if folder:
            os.chdir(folder)
    except OSError as error:
        raise PlatformError(
            f"--resume: the job was started in {folder!r}, which cannot be entered: {error.strerror}"
        ) from error


def _agent_here(entries: Sequence[JournalEntry], host: str) -> str:
    """Return the id of the job's agent that lives on this machine, empty if there is none."""
    from robust_run.launcher.start.many.presence import is_alive

    nodes = [entry.event.node for entry in entries if isinstance(entry.event, NodeJoined)]
    return next((node.id for node in nodes if node.name == host and is_alive(node.id)), "")
