"""What a process remembers between two saves, and the order in which things are done."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from robust_run.checkpoint import random_states, together
from robust_run.checkpoint.gathering import Gathered, gather
from robust_run.checkpoint.rules.cadence import AT_EVERY_CALL
from robust_run.checkpoint.rules.encoding import pack_plain
from robust_run.checkpoint.rules.settings import (
    LEAVE,
    MEMORY,
    REPLAY,
    Settings,
    attempt_of,
    checked_step,
    settings_of,
)
from robust_run.checkpoint.streams import Due, Stream
from robust_run.checkpoint.types import Values
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.newest import written_by
from robust_run.ckpt_io.rules.keeping import KeepNewest
from robust_run.errors import UserError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from robust_run.checkpoint.background import Way
    from robust_run.checkpoint.memory import Memory

KEEPER_S = 15.0
"""How long a keeper may take for an answer: it is there within a second, but machines may be busy."""


class Session:
    """What one process remembers; a fork begins its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.name = secrets.token_hex(8)
        """Tells what this process wrote from what earlier ones did."""
        self.streams: dict[str, Stream] = {}
        self.memory: Memory | None = None
        self.in_memory: str | None = None
        """Which stream memory has: the first that is saved or loaded; None: there was none yet."""
        self.is_memory_off = False
        """It failed on a rank, which was said there."""
        self.kept_step = -1
        """The last step that memory has on this rank, as far as was copied."""
        self.told_apart = self.told_alone = False
        """What was said: that memory has one stream of several; that memory is all there is."""

    def stream(self, folder: str) -> Stream:
        """Return what goes to a folder."""
        return self.streams.setdefault(place_of(folder), Stream(folder))


_session: Session | None = None


def here() -> Session:
    """Return this process's."""
    global _session  # noqa: PLW0603 - one a process
    if _session is None or _session.pid != os.getpid():
        _session = Session()
    return _session


def place_of(folder: str) -> str:
    """Return what names a folder, however it is written."""
    return os.path.abspath(folder) if folder and "://" not in folder else folder


class Kept(NamedTuple):
    """A step that memory has, if it takes it, and how it gets to storage."""

    stream: Stream
    settings: Settings
    values: Values
    gathered: Gathered
    way: Way | None
    """None: storage is not due."""

    def remove_old(self) -> None:
        """Remove what --ckpt-keep has no more room for, once storage has this step. Rank 0 does; for the others it is nothing."""
        from robust_run.checkpoint import storage

        if self.values.keeping is not None and self.values.rank == 0:
            self.stream.say_once(storage.remove_old(self.settings.folder, self.values.keeping), say)

    def done(self) -> None:
        """Say that the save is over. What is due after the next one depends on it: all ranks say so, or none."""
        if self.way in ("here", "background"):
            self.stream.stored_at_s = time.monotonic()
        self.stream.last_step = self.values.step


def save(
    state: dict[str, Any], *, step: int, folder: str | None, every: int | str | None, keep: int | None = None
) -> None:
    """See `robust_run.checkpoint.save`."""
    checked_step(step)
    if os.environ.get(REPLAY):
        return
    kept = take_step(state, step, settings_of(folder, every, os.environ, keep))
    if kept.way == "here":
        from robust_run.checkpoint import storage  # torch.distributed.checkpoint takes a second to import

        storage.save(kept.settings.folder, kept.values, kept.gathered.tensors)
        kept.remove_old()
    kept.done()


def take_step(state: dict[str, Any], step: int, settings: Settings) -> Kept:
    """Copy a step into memory, and find out how it gets to storage. All that is left is to write it, where its way is `here`.

    All ranks take part. When it returns the state may change, unless it is written yet. Raises as `save`, but for storage.
    """
    session = here()
    stream = session.stream(settings.folder)
    if step < stream.last_step:
        raise UserError(
            f"step {step} comes after step {stream.last_step}: give steps that count up, over restarts too; "
            "what has the highest one is the newest"
        )
    gathered = gather(state)
    stream.check_objects(state, step)
    values = _values_of(gathered, step, place_of(settings.folder), _keeping(session, stream, settings))
    agreed = stream.agree(settings)
    _say_what_is_odd(stream, step, os.environ)
    is_beside_memory = _is_in_memory(session, settings, agreed.has_memory, values)
    failed = is_beside_memory and not _save_in_memory(session, settings, values, gathered)
    due = Due(now=False, memory_failed=failed)
    if settings.folder:
        due = stream.is_due(settings, step, is_beside_memory=is_beside_memory, memory_failed=failed)
    session.is_memory_off = session.is_memory_off or due.memory_failed
    way = _way(session, stream, settings, values) if due.now or stream.is_put_off else None
    stream.is_put_off = way == "later"
    return Kept(stream, settings, values, gathered, way)


def _way(session: Session, stream: Stream, settings: Settings, values: Values) -> Way:
    """Return who writes a step to storage: the keepers, in the background, where all of it is in memory; or we, where we must."""
    assert stream.agreed is not None, "storage is due"
    is_asked_for = settings.is_said and settings.every == AT_EVERY_CALL
    if stream.agreed.has_memory and session.in_memory == values.stream and not is_asked_for:
        from robust_run.checkpoint import background

        held = session.memory
        return background.ask(
            held.client if held is not None and session.kept_step == values.step else None,
            values.step,
            is_left_out=held is not None and held.left_out == values.step,
        )
    return "here"


def _keeping(session: Session, stream: Stream, settings: Settings) -> KeepNewest | None:
    """Return what is to become of older checkpoints; None: they stay."""
    if not settings.keep or not settings.folder:
        return None
    return KeepNewest(
        most=settings.keep,
        session=session.name,
        began_step=stream.began_step,
        leave=(*stream.leave, *filter(None, os.environ.get(LEAVE, "").split(","))),
        job=os.environ.get("ROBUST_JOB", ""),
    )


def _values_of(gathered: Gathered, step: int, stream: str, keeping: KeepNewest | None) -> Values:
    rank, world_size = together.rank_and_size()
    return Values(
        step=step,
        stream=stream,
        rank=rank,
        world_size=world_size,
        tensors=gathered.saved,
        tree=gathered.tree,
        random=pack_plain(random_states.take()),
        keeping=keeping,
        written_by=written_by(os.environ.get("ROBUST_JOB", ""), os.environ.get("ROBUST_CODE_VERSION", "")),
    )


def _say_what_is_odd(stream: Stream, step: int, env: Mapping[str, str]) -> None:
    """Say once, on rank 0, what a program may not have meant."""
    if stream.last_step or together.rank_and_size()[0]:
        return
    if 0 < stream.found_step >= step:
        stream.say_once(
            f"step {step} is saved to {stream.folder}, which has step {stream.found_step} already, and nothing was loaded: "
            "checkpoint.load(state) before the loop goes on from there; to begin anew, give another folder",
            say,
        )
    if MEMORY not in env and "ROBUST_JOB" in env:
        stream.say_once(
            "checkpoints go to storage alone: with --ckpt-memory auto, robust-run takes memory where the script's own text "
            "mentions robust_run.checkpoint; --ckpt-memory 4G (what a node may use) takes it for this program, too",
            say,
        )


# --- memory


def memory_of(session: Session, folder: str) -> Memory:
    """Return the connection to the keeper. Raises MemoryUnavailable."""
    from robust_run.checkpoint.memory import Memory
    from robust_run.checkpoint.places import Places
    from robust_run.ckpt_io.memory.client import MemoryClient

    if session.memory is None:
        rank, world_size = together.rank_and_size()
        attempt = attempt_of(os.environ)
        client = MemoryClient.connect(folder, rank=rank, world_size=world_size, attempt=attempt, timeout_s=KEEPER_S)
        session.memory = Memory(client, rank, world_size, attempt, Places(say))
    return session.memory


#: What can go wrong in the tier: its own errors, sockets and mappings, and torch's where it copies. What a program's own handler
#: of a signal raises meanwhile is none of it.
_FAULTS = (
    CheckpointError, OSError, RuntimeError, ValueError, TypeError, BufferError, MemoryError, LookupError, ArithmeticError,
)  # fmt: skip


def _is_in_memory(session: Session, settings: Settings, has_memory: bool, values: Values) -> bool:
    """Whether memory takes this stream: the first one, where every rank has memory and none is known to have failed."""
    if not has_memory:
        if settings.memory and not session.is_memory_off:
            session.is_memory_off = True
            say(f"rank {values.rank} keeps no checkpoints in memory: another rank has no memory for them")
        return False
    if session.in_memory is None:
        session.in_memory = values.stream
    if session.in_memory != values.stream:
        if not session.told_apart and values.rank == 0:
            say(f"memory keeps what goes to {session.in_memory!r} alone; {values.stream!r} goes to storage")
        session.told_apart = True
        return False
    return not session.is_memory_off


def _save_in_memory(session: Session, settings: Settings, values: Values, gathered: Gathered) -> bool:
    """Copy a state into memory; False: it failed, which is said once, and memory is left alone from then on."""
    try:
        if memory_of(session, settings.memory).save(values, gathered.tensors):
            session.kept_step = values.step
    except _FAULTS as error:  # no fault of the tier may end a training
        _give_up(session, settings, values, error)
        return False
    _say_what_is_missing(session, settings, values)
    return True


def _give_up(session: Session, settings: Settings, values: Values, error: BaseException) -> None:
    session.is_memory_off = True
    with suppress(Exception):
        if session.memory is not None:
            session.memory.close()
    session.memory = None
    goes_on = f"to {settings.folder} only" if settings.folder else "nowhere: give robust-run --ckpt-dir"
    say(f"rank {values.rank} keeps no checkpoints in memory from step {values.step} on, they go {goes_on}: {error}")


def _say_what_is_missing(session: Session, settings: Settings, values: Values) -> None:
    if not settings.folder and not session.told_alone and values.rank == 0:
        session.told_alone = True
        say(
            "checkpoints are kept in memory alone, which ends with the job and with a node that nobody has copies of; "
            "robust-run --ckpt-dir DIR keeps one in a folder every 10 minutes, too"
        )


def say(text: str) -> None:
    """Say something on stderr; never fails."""
    with suppress(Exception):
        print(f"robust-run: {text}"[:500], file=sys.stderr, flush=True)
