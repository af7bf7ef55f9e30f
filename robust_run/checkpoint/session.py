"""What a process remembers between two saves, and the order in which things are done."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from robust_run.checkpoint import random_states, together
from robust_run.checkpoint.cadence import AT_EVERY_CALL
from robust_run.checkpoint.encoding import pack_plain, unpack_plain
from robust_run.checkpoint.gathering import Gathered, gather
from robust_run.checkpoint.settings import (
    FOLDER,
    LEAVE,
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
from robust_run.ckpt_io.rules.keeping import KeepNewest
from robust_run.errors import UserError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from robust_run.checkpoint.background import Way
    from robust_run.checkpoint.memory import Memory
    from robust_run.ckpt_io.memory.client import MemoryClient

KEEPER_S = 15.0
"""How long a keeper may take for an answer: it is there within a second, but machines may be busy."""


class _Session:
    """Of one process; a fork begins its own."""

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


_session: _Session | None = None


def _here() -> _Session:
    global _session  # noqa: PLW0603 - one a process
    if _session is None or _session.pid != os.getpid():
        _session = _Session()
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
    session = _here()
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


def _way(session: _Session, stream: Stream, settings: Settings, values: Values) -> Way:
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


def _keeping(session: _Session, stream: Stream, settings: Settings) -> KeepNewest | None:
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


def load(state: dict[str, Any], *, folder: str | None) -> int | None:
    """See `robust_run.checkpoint.load`."""
    if not isinstance(state, dict):
        raise UserError(f"the state is a {type(state).__name__}: give the dict that is saved")

    def from_memory(client: MemoryClient, generation: Generation, stream: str | None) -> Values | None:
        from robust_run.checkpoint import memory, spreading

        load_it = spreading.load if generation.saved_by else memory.load
        return load_it(client, generation, state, stream)

    def from_storage(url: str) -> Values:
        from robust_run.checkpoint import storage

        return storage.load(url, state)

    values = first_good(folder, from_memory, from_storage)
    if values is None:
        return None
    go_on_from(values, folder)
    return values.step


def go_on_from(values: Values, folder: str | None) -> None:
    """Be where the ranks were when this was saved, all else being loaded."""
    _, world_size = together.rank_and_size()
    if values.world_size == world_size:
        random_states.put(unpack_plain(values.random))
    stream = _here().stream(os.environ.get(FOLDER, "") if folder is None else folder)
    stream.last_step = stream.began_step = values.step


class OfStream(Protocol):
    """What was found in memory."""

    @property
    def stream(self) -> str:
        """The folder that it belongs to."""


Found = TypeVar("Found", bound=OfStream)
FromMemory: TypeAlias = "Callable[[MemoryClient, Generation, str | None], Found | None]"
"""Finds a generation there; None: it is of another stream than the one named. All ranks take part."""


def first_good(
    folder: str | None, from_memory: FromMemory[Found], from_storage: Callable[[str], Found]
) -> Found | None:
    """Return what the launcher names, if it is of this stream; else the newest of the folder that is no newer than that.

    All ranks take part. Raises CheckpointError, UserError.
    """
    resume, is_named = os.environ.get(RESUME, ""), folder is not None
    where = os.environ.get(FOLDER, "") if folder is None else folder
    generation = generation_of(resume)
    if generation is not None:
        found = _from_memory(_here(), generation, resume, from_memory, place_of(where) if is_named else None)
        if found is not None:
            return found
    from robust_run.checkpoint import storage

    if resume and generation is None and (not is_named or os.path.dirname(place_of(resume)) == place_of(where)):
        return _noted(where, resume, from_storage)
    for url in storage.newest_first(where, most_step=step_of(os.environ) if resume else None) if where else ():
        try:
            return _noted(where, url, from_storage)
        except CheckpointError as error:  # on all ranks, or on none
            say(f"checkpoint {url} is passed over: {error}")
    return None


def _noted(folder: str, url: str, load_it: Callable[[str], Found]) -> Found:
    """Load a checkpoint of storage. Whether that works or not, --ckpt-keep leaves it alone in this process."""
    _here().stream(folder).leave[os.path.basename(url)] = None
    return load_it(url)


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


def _memory(session: _Session, folder: str) -> Memory:
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
            session.memory.close()
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


def _from_memory(
    session: _Session, generation: Generation, url: str, find: FromMemory[Found], stream: str | None
) -> Found | None:
    """Find a generation in memory. What cannot be loaded is noted, so that the next attempt starts elsewhere."""
    from robust_run.ckpt_io import notes
    from robust_run.ckpt_io.memory.types import generation_uuid

    uuid = generation_uuid(os.environ.get("ROBUST_JOB", ""), generation.attempt, generation.step)
    together.check_same("steps in memory", (generation.step, int(uuid[:15], 16)))
    try:
        client = together.all_or_none(lambda: _memory(session, os.environ.get(MEMORY, "")).client)
        found = find(client, generation, stream)
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
    if found is not None:
        session.in_memory = found.stream
    return found


def say(text: str) -> None:
    """Say something on stderr; never fails."""
    with suppress(Exception):
        print(f"robust-run: {text}"[:500], file=sys.stderr, flush=True)
