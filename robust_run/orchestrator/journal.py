"""The journal of a job of several roles (`roles.jsonl`): what happened and what was decided; what a leader continues from."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from robust_run.errors import PlatformError
from robust_run.orchestrator.model.spec import RolesSpec
from robust_run.orchestrator.model.words import Event, Finish, JobStarted, Line
from robust_run.version import RUN_DIR_SCHEMA, __version__

NAME = "roles.jsonl"
#: Of lines that cannot be written: beyond, a leader that is killed cannot go on.
MOST_LATE_BYTES = 64 << 20
_LONGEST_LINE_BYTES = 64 << 20
#: A start that lived that long got somewhere.
LONG_S = 600.0


class Head(msgspec.Struct, frozen=True):
    """Its first line."""

    schema: int
    version: str = ""
    roles: RolesSpec | None = None


class Journal:
    """Opened for writing behind what is whole in it. `say`: told once when it cannot be written."""

    def __init__(self, folder: str, spec: RolesSpec, say: Callable[[str], None]) -> None:
        """Raises PlatformError where it is of another version, OSError."""
        self._path = os.path.join(folder, NAME)
        self._say = say
        self._is_behind = self._is_given_up = False
        self._late = bytearray()
        """What is not on record yet: it is tried again with each line."""
        self._encoder = msgspec.json.Encoder()
        self.past, self._good = read(self._path)
        """What happened so far, and when."""
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._descriptor, self._good)
        if not self._good:
            self._write(self._encoder.encode(Head(schema=RUN_DIR_SCHEMA, version=__version__, roles=spec)))

    def add(self, line: Line) -> None:
        """Put it on record."""
        self._write(self._encoder.encode(line))

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)

    def _write(self, line: bytes) -> None:
        """Write it, behind all that could not be written before it. A part of a line is no line, and does not stay."""
        if self._is_given_up:
            return
        self._late += line + b"\n"
        try:
            if os.write(self._descriptor, self._late) != len(self._late):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._good)
            self._fall_behind(error)
            return
        if self._is_behind:
            self._say(f"{self._path} is written again; nothing of it is missing")
        self._is_behind = False
        self._good += len(self._late)
        self._late.clear()

    def _fall_behind(self, error: OSError) -> None:
        if not self._is_behind:
            self._say(
                f"{self._path} cannot be written ({error.strerror}): should the leader of the job be killed before it can be, it"
                " could not go on from there; make room"
            )
        self._is_behind = True
        if len(self._late) > MOST_LATE_BYTES:
            self._is_given_up = True
            self._late.clear()


def read(path: str) -> tuple[list[tuple[Event, float]], int]:
    """Return what happened, and how many bytes of the file are whole. Raises PlatformError for one of another version."""
    lines, good = lines_of(path)
    return [(line.event, line.mono) for line in lines if line.event is not None], good


def lines_of(path: str) -> tuple[list[Line], int]:
    """Return its lines but for the first, and how many bytes of it are whole. Raises PlatformError as `read`."""
    found: list[Line] = []
    data = b""
    with suppress(FileNotFoundError), open(path, "rb") as file:
        data = file.read()
    end = data.find(b"\n") + 1
    if not end:
        return found, 0
    _check(data[:end], path)
    decoder = msgspec.json.Decoder(Line)
    while (after := data.find(b"\n", end) + 1) != 0:
        try:
            found.append(decoder.decode(data[end:after]))
        except (msgspec.MsgspecError, RecursionError):
            break
        end = after
    return found, end


def has_begun(folder: str) -> bool:
    """Whether a journal is in this run directory; its first line is written before anything is started. Raises OSError."""
    with suppress(FileNotFoundError), open(os.path.join(folder, NAME), "rb") as file:
        return file.readline().endswith(b"\n")
    return False


def is_roles_run(path: str) -> bool:
    """Whether this is the run directory of a job of several roles."""
    return bool(path) and "\0" not in path and os.path.isfile(os.path.join(path, NAME))


class Ending(msgspec.Struct, frozen=True):
    """How the newest start of a job ended, as far as it is on record."""

    finish: Finish | None = None
    """None: its leader was lost."""
    short: int = 0
    """Starts in a row that soon had too few nodes, the newest included."""


def ending(path: str) -> Ending | None:
    """Return how the newest start ended; None: there is no journal. Raises PlatformError as `read`."""
    decoder, finish, short, began_s = msgspec.json.Decoder(Line), None, 0, 0.0
    try:
        with open(path, "rb") as file:
            _check(file.readline(_LONGEST_LINE_BYTES), path)
            for text in file:
                try:
                    line = decoder.decode(text)
                except (msgspec.MsgspecError, RecursionError):
                    break
                if isinstance(line.event, JobStarted):
                    finish, began_s = None, line.at
                for action in line.actions:
                    if isinstance(action, Finish):
                        finish = action
                        short = short + 1 if action.is_short and line.at - began_s < LONG_S else 0
    except OSError:
        return None
    return Ending(finish, short)


def is_done(folder: str) -> bool:
    """Whether the job in this run directory ended well. Raises PlatformError as `read`."""
    found = ending(os.path.join(folder, NAME))
    return found is not None and found.finish is not None and found.finish.code == 0


def spec_of(folder: str) -> RolesSpec | None:
    """Return what a run was asked for; None: it is no run of several roles. Raises PlatformError as `read`."""
    path = os.path.join(folder, NAME)
    try:
        with open(path, "rb") as file:
            return _check(file.readline(_LONGEST_LINE_BYTES), path).roles
    except OSError:
        return None


def _check(first: bytes, path: str) -> Head:
    try:
        schema = msgspec.json.decode(first, type=Mapping[str, object]).get("schema")
        if schema == RUN_DIR_SCHEMA:
            return msgspec.json.decode(first, type=Head)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PlatformError(f"{path} is no journal of roles: {error}") from error
    raise PlatformError(
        f"{path} has the format {schema!r}, and this robust-run reads {RUN_DIR_SCHEMA}; use the one that wrote it"
    )
