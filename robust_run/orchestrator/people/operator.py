"""What an operator asks of a job of several roles, whether its leader answers or only its journal is left. No terminal."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TypeVar

import msgspec

from robust_run.errors import PlatformError, UserError
from robust_run.launcher.control.errors import ProtocolError
from robust_run.launcher.operator.reading.runs import looked_in, not_here, runs_folder
from robust_run.orchestrator.course import files as course
from robust_run.orchestrator.journal import NAME, read, spec_of
from robust_run.orchestrator.people.views.whole import view_of
from robust_run.orchestrator.rules import core
from robust_run.orchestrator.rules.course_points import idle_of
from robust_run.report.files import read_regular
from robust_run.roles.client import Connection, Place, channel_of, connected
from robust_run.roles.view_words import RolesView
from robust_run.roles.wire import Frames, WorkerHalf
from robust_run.roles.words import (
    OPERATOR,
    Answer,
    AskCall,
    Challenge,
    CodeCall,
    Holds,
    LookCall,
    Me,
    Refused,
    RollbackCall,
    ToWorker,
    UpdateCall,
    Welcome,
)
from robust_run.version import __version__

_Kind = TypeVar("_Kind")

#: The job's page for workers, in its run directory.
PLACE_NAME = "roles.place"
_LARGEST_PLACE_BYTES = 64 << 10
#: A leader that runs answers in a moment; one that is started again takes longer.
ANSWER_S = 10.0


def find_run(run: str, log_dir: str, env: dict[str, str]) -> str:
    """Return the run directory of a job of several roles. Raises UserError for what is no name, PlatformError: there is none."""
    if "\0" in run:
        raise UserError(f"{run!r} is no name of a run")
    folder = runs_folder(log_dir, env)
    if run:
        for path in (run, os.path.join(folder, run)):
            if sign_of(path):
                return os.path.abspath(path)
        raise PlatformError(
            next(filter(None, map(not_here, (run, os.path.join(folder, run)))), "")
            or f"{run!r} is no run of several roles: there is no {NAME} in it; robust status shows other runs"
        )
    try:
        found = [path for path in (os.path.join(folder, name) for name in os.listdir(folder)) if sign_of(path)]
    except OSError:
        found = []
    if not found:
        raise PlatformError(
            f"no run of several roles in {looked_in(log_dir, env)}; name a run directory or give --log-dir"
        )
    return max(found, key=lambda path: os.stat(sign_of(path)).st_mtime)


def sign_of(path: str) -> str:
    """Return the file that says that this is the run directory of a job of several roles; empty: it is none. That is the journal,
    or where the leader is: on a disk of a node's own, where it has not led.
    """
    files = (os.path.join(path, name) for name in (NAME, PLACE_NAME))
    return next((each for each in files if os.path.isfile(each)), "")


def look(run: str) -> RolesView:
    """Return how a job is: from its leader, else from its journal. Raises PlatformError."""
    try:
        view = _ask(run, LookCall(number=1)).view
    except (OSError, ProtocolError):
        view = None
    if view is not None:
        return view
    return by_journal(run)


def by_journal(run: str) -> RolesView:
    """Return how a job is by what it left. Raises PlatformError."""
    if not os.path.exists(os.path.join(run, NAME)):
        raise PlatformError(f"no leader answers, and its journal is not in {run}; ask on another node of the job")
    spec = spec_of(run)
    if spec is None:
        raise PlatformError(f"the first line of {run}/{NAME} is not written yet; ask again")
    past, _ = read(os.path.join(run, NAME))
    view = view_of(spec, core.replay(spec, past), is_led=False)
    idle = idle_of(course.read(run).points)
    roles = tuple(msgspec.structs.replace(role, idle=idle.get(role.name)) for role in view.roles)
    return msgspec.structs.replace(view, roles=roles)


def ask(run: str, call: AskCall) -> None:
    """Ask for something. Raises UserError for what cannot be, PlatformError where nobody answers."""
    try:
        answer = _ask(run, call)
    except (OSError, ProtocolError) as error:
        raise _nobody(run, error) from error
    if answer.error:
        raise UserError(answer.error)


def answer_to(run: str, call: CodeCall | UpdateCall | RollbackCall) -> Answer:
    """Return what the leader answers about code. Raises PlatformError where nobody does."""
    try:
        return _ask(run, call)
    except (OSError, ProtocolError) as error:
        raise _nobody(run, error) from error


def _nobody(run: str, error: OSError | ProtocolError) -> PlatformError:
    """Return what is said where no leader answers: mostly, the job is over. Raises PlatformError where nothing is known of it."""
    if by_journal(run).phase == "over":
        return PlatformError(f"the job in {run} is over; robust roles {run} says how it ended")
    why = getattr(error, "strerror", None) or error
    return PlatformError(f"the leader of {run} does not answer ({why}); robust roles {run} says how it was left")


def _ask(run: str, call: LookCall | AskCall | CodeCall | UpdateCall | RollbackCall) -> Answer:
    try:
        place = msgspec.json.decode(read_regular(os.path.join(run, PLACE_NAME), _LARGEST_PLACE_BYTES), type=Place)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError(f"{run}/{PLACE_NAME}: {error}") from error
    with closing(connected(place, ANSWER_S)) as connection:
        me = Me(role=OPERATOR, index=0, rank=0, serial=0, attempt=0)
        half, frames = WorkerHalf(place.secret, me, __version__, channel=channel_of(connection)), Frames(ToWorker)
        connection.sendall(frames.frame(half.hello))
        proof, key_in, key_out = half.answer(_next(connection, frames, Challenge))
        connection.sendall(frames.frame(proof))
        frames.trust(key_in, key_out)
        connection.sendall(frames.frame(Holds()))
        _next(connection, frames, Welcome)
        connection.sendall(frames.frame(call))
        return _next(connection, frames, Answer)


def _next(connection: Connection, frames: Frames, kind: type[_Kind]) -> _Kind:
    """Return the next message of a kind. Raises ProtocolError for a refusal, OSError."""
    while True:
        message = frames.next()
        if isinstance(message, kind):
            return message
        if isinstance(message, Refused):
            raise ProtocolError(message.why)
        if message is None:
            data = connection.recv(1 << 18)
            if not data:
                raise ConnectionResetError("it hung up")
            frames.feed(data)
