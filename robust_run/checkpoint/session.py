"""What a process remembers between two saves, and the order in which things are done."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import Any

from robust_run.checkpoint import random_states, together
from robust_run.checkpoint.cadence import AT_EVERY_CALL
from robust_run.checkpoint.encoding import pack_plain, unpack_plain
from robust_run.checkpoint.gathering import Gathered, gather
from robust_run.checkpoint.settings import (
    FOLDER,
    MEMORY,
    REPLAY,
    RESUME,
    Generation,
    Settings,
    attempt_of,
    checked_step,
    generation_of,
    settings_of,
    step_of,
)
from robust_run.checkpoint.streams import Due, Stream
from robust_run.checkpoint.types import Values
from robust_run.ckpt_io.errors import CheckpointError, MemoryUnavailable, PeerFailed
from robust_run.ckpt_io.newest import written_by
from robust_run.errors import UserError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from robust_run.checkpoint.background import Way
    from robust_run.checkpoint.memory import Memory

KEEPER_S = 15.0
"""How long a keeper may take for an answer: it is there within a second, but machines may be busy."""


class _Session:
    """Of one process; a fork begins its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
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


_session: _Session | None = None


def _here() -> _Session:
    global _session  # noqa: PLW0603 - one a process
    if _session is None or _session.pid != os.getpid():
        _session = _Session()
    return _session


def place_of(folder: str) -> str:
    """Return what names a folder, however it is written."""
    return os.path.abspath(folder) if folder and "://" not in folder else folder


def save(state: dict[str, Any], *, step: int, folder: str | None, every: int | str | None) -> None:
    """See `robust_run.checkpoint.save`."""
    checked_step(step)
    if os.environ.get(REPLAY):
        return
    settings = settings_of(folder, every, os.environ)
    session = _here()
    stream = session.stream(settings.folder)
    if step < stream.last_step:
        raise UserError(
            f"step {step} comes after step {stream.last_step}: give steps that count up, over restarts too; "
            "what has the highest one is the newest"
        )
    gathered = gather(state)
    values = _values_of(gathered, step, place_of(settings.folder))
    agreed = stream.agree(settings)
    is_beside_memory = _is_in_memory(session, settings, agreed.has_memory, values)
    failed = is_beside_memory and not _save_in_memory(session, settings, values, gathered)
    due = Due(now=False, memory_failed=failed)
    if settings.folder:
        due = stream.is_due(settings, step, is_beside_memory=is_beside_memory, memory_failed=failed)
    session.is_memory_off = session.is_memory_off or due.memory_failed
    if due.now or stream.is_put_off:
        _store(session, stream, settings, values, gathered)
    stream.last_step = step


def _store(session: _Session, stream: Stream, settings: Settings, values: Values, gathered: Gathered) -> None:
    """Have a step in storage: by the keepers, in the background, where all of it is in memory; at once, where the call asks."""
    assert stream.agreed is not None, "storage is due"
    way: Way = "here"
    is_asked_for = settings.is_said and settings.every == AT_EVERY_CALL
    if stream.agreed.has_memory and session.in_memory == values.stream and not is_asked_for:
        from robust_run.checkpoint import background

        held = session.memory
        way = background.ask(
            held.client if held is not None and session.kept_step == values.step else None,
            values.step,
            is_left_out=held is not None and held.left_out == values.step,
        )
    stream.is_put_off = way == "later"
    if way == "here":
        from robust_run.checkpoint import storage  # torch.distributed.checkpoint takes a second to import

        storage.save(settings.folder, values, gathered.tensors)
    if not stream.is_put_off:
        stream.stored_at_s = time.monotonic()


def load(state: dict[str, Any], *, folder: str | None) -> int | None:
    """See `robust_run.checkpoint.load`."""
    if not isinstance(state, dict):
        raise UserError(f"the state is a {type(state).__name__}: give the dict that is saved")
    where = os.environ.get(FOLDER, "") if folder is None else folder
    values = _load_any(state, os.environ.get(RESUME, ""), where, is_named=folder is not None)
    if values is None:
        return None
    _, world_size = together.rank_and_size()
    if values.world_size == world_size:
        random_states.put(unpack_plain(values.random))
    _here().stream(where).last_step = values.step
    return values.step


def _load_any(state: dict[str, Any], resume: str, folder: str, *, is_named: bool) -> Values | None:
    """Load what the launcher names, if it is of this stream; else the newest of the folder that is no newer than that."""
    generation = generation_of(resume)
    if generation is not None:
        values = _load_from_memory(_here(), generation, resume, state, place_of(folder) if is_named else None)
        if values is not None:
            return values
    from robust_run.checkpoint import storage

    if resume and generation is None and (not is_named or os.path.dirname(place_of(resume)) == place_of(folder)):
        return storage.load(resume, state)
    for url in storage.newest_first(folder, most_step=step_of(os.environ) if resume else None) if folder else ():
        try:
            return storage.load(url, state)
        except CheckpointError as error:  # on all ranks, or on none
            say(f"checkpoint {url} is passed over: {error}")
    return None


def _values_of(gathered: Gathered, step: int, stream: str) -> Values:
    rank, world_size = together.rank_and_size()
    return Values(
        step=step,
        stream=stream,
        rank=rank,
        world_size=world_size,
        tensors=gathered.saved,
        tree=gathered.tree,
        random=pack_plain(random_states.take()),
        written_by=written_by(os.environ.get("ROBUST_JOB", ""), os.environ.get("ROBUST_CODE_VERSION", "")),
    )


# --- memory


def _memory(session: _Session, folder: str) -> Memory:
    """Return the connection to the keeper. Raises MemoryUnavailable."""
    from robust_run.checkpoint.memory import Memory
    from robust_run.ckpt_io.memory.client import MemoryClient

    if session.memory is None:
        rank, world_size = together.rank_and_size()
        attempt = attempt_of(os.environ)
        client = MemoryClient.connect(folder, rank=rank, world_size=world_size, attempt=attempt, timeout_s=KEEPER_S)
        session.memory = Memory(client, rank, world_size, attempt)
    return session.memory


#: What can go wrong in the tier: its own errors, sockets and mappings, and torch's where it copies. What a program's own handler
#: of a signal raises meanwhile is none of it.
_FAULTS = (
    CheckpointError, OSError, RuntimeError, ValueError, TypeError, BufferError, MemoryError, LookupError, ArithmeticError,
)  # fmt: skip


def _is_in_memory(session: _Session, settings: Settings, has_memory: bool, values: Values) -> bool:
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


def _save_in_memory(session: _Session, settings: Settings, values: Values, gathered: Gathered) -> bool:
    """Copy a state into memory; False: it failed, which is said once, and memory is left alone from then on."""
    try:
        if _memory(session, settings.memory).save(values, gathered.tensors):
            session.kept_step = values.step
    except _FAULTS as error:  # no fault of the tier may end a training
        _give_up(session, settings, values, error)
        return False
    _say_what_is_missing(session, settings, values)
    return True


def _give_up(session: _Session, settings: Settings, values: Values, error: BaseException) -> None:
    session.is_memory_off = True
    with suppress(Exception):
        if session.memory is not None:
            session.memory.client.close()
    session.memory = None
    goes_on = f"to {settings.folder} only" if settings.folder else "nowhere: give robust-run --ckpt-dir"
    say(f"rank {values.rank} keeps no checkpoints in memory from step {values.step} on, they go {goes_on}: {error}")


def _say_what_is_missing(session: _Session, settings: Settings, values: Values) -> None:
    if not settings.folder and not session.told_alone and values.rank == 0:
        session.told_alone = True
        say(
            "checkpoints are kept in memory alone, which ends with the job and with a node that nobody has copies of; "
            "robust-run --ckpt-dir DIR keeps one in a folder every 10 minutes, too"
        )


def _load_from_memory(
    session: _Session, generation: Generation, url: str, state: dict[str, Any], stream: str | None
) -> Values | None:
    """Load from memory; None: it is of another stream. What cannot be is noted, so that the next attempt starts elsewhere."""
    from robust_run.checkpoint import memory
    from robust_run.ckpt_io import notes
    from robust_run.ckpt_io.memory.types import generation_uuid

    uuid = generation_uuid(os.environ.get("ROBUST_JOB", ""), generation.attempt, generation.step)
    together.check_same("steps in memory", (generation.step, int(uuid[:15], 16)))
    try:
        client = together.all_or_none(lambda: _memory(session, os.environ.get(MEMORY, "")).client)
        if generation.saved_by:
            from robust_run.checkpoint import spreading

            values = spreading.load(client, generation, state, stream)
        else:
            values = memory.load(client, generation, state, stream)
    except (
        PeerFailed,
        MemoryUnavailable,
    ) as error:  # the rank that it befell leaves a note; a late keeper is no damage
        raise CheckpointError(f"step {generation.step} cannot be loaded from memory: {error}") from error
    except Exception as error:
        notes.leave_damage(url, uuid, f"{type(error).__name__}: {error}")
        if isinstance(error, CheckpointError):
            raise CheckpointError(f"step {generation.step} cannot be loaded from memory: {error}") from error
        raise
    if values is not None:
        session.in_memory = values.stream
    return values


def say(text: str) -> None:
    """Say something on stderr; never fails."""
    with suppress(Exception):
        print(f"robust-run: {text}"[:500], file=sys.stderr, flush=True)
