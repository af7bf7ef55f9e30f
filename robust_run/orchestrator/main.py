"""`robust-run --roles FILE`: from a checked command line to an exit code."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from robust_run.clock import SystemClock
from robust_run.errors import RobustRunError, UserError
from robust_run.launcher.model.world import World
from robust_run.launcher.records.memory_folders import remove_tree
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.start.options.options import Options
from robust_run.launcher.start.options.run_output import resolve_log_dir, resolve_run_id
from robust_run.orchestrator.guarding import bereft
from robust_run.orchestrator.guarding.guard import FAULT, Guard
from robust_run.orchestrator.guarding.words import FromGuard, Link, Over
from robust_run.orchestrator.journal import has_begun, is_done
from robust_run.orchestrator.leader import Leader
from robust_run.orchestrator.machine import node_has
from robust_run.orchestrator.meeting import several
from robust_run.orchestrator.model.node_words import Several
from robust_run.orchestrator.model.spec import RolesSpec
from robust_run.orchestrator.model.succession_words import FEWEST_NODES
from robust_run.orchestrator.nodes.follower import Follower
from robust_run.orchestrator.nodes.searching import SILENT
from robust_run.orchestrator.nodes.under_slurm import ANEW, Start, UnderSlurm, hold_signals, patience_s, run_of
from robust_run.orchestrator.roles_file import load
from robust_run.orchestrator.rules import labels
from robust_run.slurm.rules.role_needs import fragile
from robust_run.slurm.rules.surroundings import read as step_of
from robust_run.terminal import plain

if TYPE_CHECKING:
    from robust_run.orchestrator.succession.coming_back import Earlier

FOR_ALL_UNDER_SLURM = "--on-sigterm node does nothing under Slurm, which says what its SIGTERM is about"
FOR_ALL_OF_FEW = (
    f"--on-sigterm node needs {FEWEST_NODES} nodes with --roles; SIGTERM to the node that leads ends this job"
)


def launch_roles(options: Options, world: World, env: Mapping[str, str]) -> int:
    """Run a job of several roles to its end and return its exit code. Raises UserError and PlatformError."""
    spec = load(options.roles or "")
    step = step_of(env) if "SLURM_JOB_ID" in env else None
    if step is None:
        return _launch(options, world, env, spec, None)
    slurm = UnderSlurm(options, step, env)
    mask = hold_signals()
    try:
        return _launch(options, world, slurm.inner(world, options), spec, slurm, mask)
    except UserError as error:
        if step.task and "step has" in str(error):
            return error.exit_code  # the first task says it for all
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _launch(  # noqa: C901, PLR0912
    options: Options,
    world: World,
    env: Mapping[str, str],
    spec: RolesSpec,
    slurm: UnderSlurm | None,
    mask: Iterable[int] = (),
) -> int:
    step = slurm.step if slurm is not None else None
    where, listener = several(options, world, env, step, say=_say)
    has = node_has(env, labels.parse(options.node_label or ""), step)
    log_dir, notes = resolve_log_dir(options, world)
    for note in notes:
        _say(note)
    run_id, goes_on = (options.run_id, False)
    if slurm is not None and log_dir is not None:
        run_id, goes_on = run_of(options, spec, slurm.step, log_dir)
        if goes_on and is_done(os.path.join(log_dir, run_id)):
            _say(f"the run in {os.path.join(log_dir, run_id)} is done; another --run-id starts a new one")
            return 0
    patient_s = patience_s(options.wait_for_nodes, is_under_slurm=slurm is not None)
    start = Start(has=has, token=world.random_hex(16), slurm=slurm, patience_s=patient_s, listener=listener)
    has_voters = where is not None and where.nodes >= FEWEST_NODES
    may_come_back = has_voters and slurm is None and not options.found
    where, earlier = _coming_back(where, log_dir) if may_come_back else (where, None)
    is_alone_told = options.on_sigterm == "node" and slurm is None
    if options.on_sigterm == "node" and not (has_voters and slurm is None):
        _say(FOR_ALL_UNDER_SLURM if slurm is not None else FOR_ALL_OF_FEW)
    if where is not None and not where.is_leader:
        if log_dir is None:
            raise UserError("--roles over several nodes needs a --log-dir: what members print is kept there")
        if has_voters:
            part = _Part(where, start, log_dir, env, earlier=earlier, is_alone_told=is_alone_told)
            code, _ = _guarded(part.take, slurm, mask)
        else:
            code, _ = _guarded(
                lambda end: _ended(_follow(where, log_dir, start, env, Link(end, FromGuard)), end), slurm, mask
            )
        if slurm is not None and code == SILENT:
            slurm.follow_up_lost()
        return code
    if not goes_on:
        run_id = resolve_run_id(msgspec.structs.replace(options, run_id=run_id), None, log_dir, world)
    run_directory = RunDirectory.create(log_dir, run_id or "")
    if run_directory.memory != run_directory.path:
        remove_tree(run_directory.memory)  # of members alone: each has its own
    if step is not None and (fragility := fragile(step.het_nodes)):
        _say(fragility)
    if goes_on:
        _say(f"goes on with the run in {run_directory.path}")
    try:
        if has_voters and where is not None:
            path, clean = run_directory.path, run_directory.remove_temporary
            part = _Part(where, start, log_dir, env, spec, path, is_alone_told=is_alone_told)
            code, has_left = _guarded(lambda end: part.take(end, clean), slurm, mask)
        else:
            code, has_left = _guarded(lambda end: lead(spec, run_directory, env, end, where, start), slurm, mask)
        if not (has_left or (has_voters and code == SILENT)):  # the others go on without this node
            _follow_up(run_directory, slurm, code)
    finally:
        run_directory.remove_temporary()
    return code


def _follow_up(run_directory: RunDirectory, slurm: UnderSlurm | None, code: int) -> None:
    """The job is over: leave its page, and say to Slurm what is to become of it."""
    if not run_directory.temporary:
        draw_page(run_directory.path)
    if slurm is not None:
        slurm.follow_up(run_directory.path, code)


def _led_on(slurm: UnderSlurm | None) -> Callable[[str, int, bool], None]:
    """Return what the node does that leads in the end, in the place of the one that founded the job."""

    def led(folder: str, code: int, first_is_here: bool) -> None:
        draw_page(folder)
        if slurm is not None and not first_is_here:
            slurm.follow_up(folder, code)

    return led


def _guarded(work: Callable[[socket.socket], int], slurm: UnderSlurm | None, mask: Iterable[int]) -> tuple[int, bool]:
    """Do it below a guard; return the exit code, and whether the job goes on without this node.

    A SIGTERM that came before there was a guard ends the job before it has begun.
    """
    if slurm is not None:
        if signal.sigtimedwait({signal.SIGTERM}, 0) is not None:
            return 128 + signal.SIGTERM, False
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    guard = Guard(work)
    return guard.run(), guard.has_left


def draw_page(run: str) -> None:
    """Leave the page of a job that is over; where that fails, the job has ended as it has."""
    said = ""
    try:
        from robust_run.orchestrator.people.pages import write_ended  # it may be of another version by now, or be gone

        page = write_ended(run)
        said = f"page: {os.path.relpath(page)}" if page else ""
    except Exception as error:
        said = f"the page of the job cannot be drawn: {error}; robust report {run} tries again"
    with suppress(OSError):
        if said:
            _say(said)


def _coming_back(where: Several | None, log_dir: str | None) -> tuple[Several | None, Earlier | None]:
    """Return where nodes meet, and the run that went on while this node was away, in which it founds nothing; None: none did."""
    if log_dir is None or where is None:
        return where, None
    from robust_run.orchestrator.succession import coming_back

    earlier = asyncio.run(coming_back.find(log_dir, where, _say))
    if earlier is None:
        return where, None
    _say(f"{where.name} comes back to the run in {earlier.folder}, which went on")
    return msgspec.structs.replace(where, is_leader=False, taken=""), earlier


class _Part:
    """A node's part in a job that another node leads on when its leader is lost. `spec`, `folder`: if founded here."""

    def __init__(
        self,
        where: Several,
        start: Start,
        log_dir: str | None,
        env: Mapping[str, str],
        spec: RolesSpec | None = None,
        folder: str = "",
        *,
        earlier: Earlier | None = None,
        is_alone_told: bool,
    ) -> None:
        from robust_run.orchestrator.succession.door import listen
        from robust_run.orchestrator.succession.log import begin_again
        from robust_run.orchestrator.voter_process import Here

        self._where = where
        self._here = Here(env, start, log_dir, spec, folder, _led_on(start.slurm), is_alone_told, earlier)
        self._listener = start.listener or listen(where)
        self._has_left = False
        if folder:
            begin_again(os.path.join(folder, "voters"), where.name)

    def take(self, end: socket.socket, clean: Callable[[], None] = lambda: None) -> int:
        """Take part, in a process of its own; return its exit code."""
        return _ended(self._run(Link(end, FromGuard)), end, clean, lambda: self._has_left)

    async def _run(self, link: Link) -> int:
        from robust_run.orchestrator.voter_process import House

        house = House(self._where, self._here, SystemClock(), link, self._listener)
        try:
            return await house.run()
        finally:
            self._has_left = house.has_left


def lead(
    spec: RolesSpec,
    run_directory: RunDirectory,
    env: Mapping[str, str],
    end: socket.socket,
    where: Several | None = None,
    start: Start = ANEW,
) -> int:
    """Lead a job, in a process of its own; return its exit code. Another end of the process is a fault: it is tried again."""
    return _ended(
        _lead(spec, run_directory.path, env, Link(end, FromGuard), where, start), end, run_directory.remove_temporary
    )


def _ended(
    work: Coroutine[None, None, int],
    end: socket.socket,
    clean: Callable[[], None] = lambda: None,
    has_left: Callable[[], bool] = lambda: False,
) -> int:
    """Do the work of a process below the guard, and tell the guard that it is over."""
    link = Link(end, FromGuard)
    try:
        code = asyncio.run(work)
    except RobustRunError as error:
        _say(str(error))
        code = error.exit_code
    except EOFError:
        return FAULT  # the guard was killed before its first word
    try:
        link.send(Over(code=code, has_left=has_left()))
    except OSError:  # it is gone, and cannot clean up any more
        clean()
    return code


async def _follow(where: Several, log_dir: str, start: Start, env: Mapping[str, str], link: Link) -> int:
    return await Follower(where, log_dir, start, env, SystemClock(), link).run()


async def _lead(
    spec: RolesSpec, folder: str, env: Mapping[str, str], link: Link, where: Several | None, start: Start
) -> int:
    said = bereft.first_word(link)
    left = bereft.Bereft(said)
    if left.was_any and not has_begun(folder):
        _say(f"{folder} was removed while the job ran: what it has decided is not known any more, and it is ended")
        return bereft.end_what_runs(link, left, SystemClock())
    leader = Leader(spec, folder, env, SystemClock(), link, where, start)
    leader.guard_said = said
    finish = await leader.run()
    if finish.sentence:
        leader.say(f"{spec.name} {'is done' if finish.code == 0 else 'ended'}: {finish.sentence}")
    return finish.code


def _say(text: str) -> None:
    print(f"robust-run: {plain(text)}", file=sys.stderr, flush=True)
