"""What a process remembers between two saves, and the order in which things are done."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import Any

from robust_run.checkpoint import random_states, together
from robust_run.checkpoint.cadence import Every, is_step_due, is_time_due
from robust_run.checkpoint.encoding import pack_plain, unpack_plain
from robust_run.checkpoint.gathering import Gathered, gather
from robust_run.checkpoint.settings import (
    FOLDER,
    MEMORY,
    REPLAY,
    RESUME,
    WARNING,
    Generation,
    Settings,
    attempt_of,
    checked_step,
    generation_of,
    settings_of,
)
from robust_run.checkpoint.types import Values
from robust_run.ckpt_io.errors import CheckpointError, PeerFailed
from robust_run.errors import UserError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from robust_run.checkpoint.memory import Memory

KEEPER_S = 15.0
"""How long a keeper may take for an answer: it is there within a second, but machines may be busy."""


class _Session:
    """Of one process; a fork begins its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.last_step = 0
        """Of the last call, or what was loaded."""
        self.stored_at_s = time.monotonic()
        self.agreed: Every | None = None
        """How often storage is written: what rank 0 was told."""
        self.memory: Memory | None = None
        self.is_memory_off = False
        """It failed, which was said."""
        self.is_warned = False
        """The job is about to be ended, and storage has what was saved then."""


_session: _Session | None = None


def _here() -> _Session:
    global _session  # noqa: PLW0603 - one a process
    if _session is None or _session.pid != os.getpid():
        _session = _Session()
    return _session


def save(state: dict[str, Any], *, step: int, folder: str | None, every: int | str | None) -> None:
    """See `robust_run.checkpoint.save`."""
    checked_step(step)
    if os.environ.get(REPLAY):
        return
    settings = settings_of(folder, every, os.environ)
    session = _here()
    if step < session.last_step:
        raise UserError(
            f"step {step} comes after step {session.last_step}: give steps that count up, over restarts too; "
            "what has the highest one is the newest"
        )
    gathered = gather(state)
    values = _values_of(gathered, step)
    if settings.memory and not session.is_memory_off:
        _save_in_memory(session, settings, values, gathered)
        _say_what_is_missing(session, settings, values)
    if settings.folder and _is_due(session, settings, step):
        from robust_run.checkpoint import storage  # torch.distributed.checkpoint takes a second to import

        storage.save(settings.folder, values, gathered.tensors)
        session.stored_at_s = time.monotonic()
    session.last_step = step


def load(state: dict[str, Any], *, folder: str | None) -> int | None:
    """See `robust_run.checkpoint.load`."""
    if not isinstance(state, dict):
        raise UserError(f"the state is a {type(state).__name__}: give the dict that is saved")
    values = _load_any(state, os.environ.get(RESUME, ""), os.environ.get(FOLDER, "") if folder is None else folder)
    if values is None:
        return None
    _, world_size = together.rank_and_size()
    if values.world_size == world_size:
        random_states.put(unpack_plain(values.random))
    session = _here()
    session.last_step = values.step
    return values.step


def _load_any(state: dict[str, Any], resume: str, folder: str) -> Values | None:
    generation = generation_of(resume)
    if generation is not None:
        return _load_from_memory(_here(), generation, resume, state)
    from robust_run.checkpoint import storage

    if resume:
        return storage.load(resume, state)
    for url in storage.newest_first(folder) if folder else ():
        try:
            return storage.load(url, state)
        except CheckpointError as error:  # on all ranks, or on none
            say(f"checkpoint {url} is passed over: {error}")
    return None


def _values_of(gathered: Gathered, step: int) -> Values:
    rank, world_size = together.rank_and_size()
    return Values(
        step=step,
        rank=rank,
        world_size=world_size,
        tensors=gathered.saved,
        tree=gathered.tree,
        random=pack_plain(random_states.take()),
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


def _save_in_memory(session: _Session, settings: Settings, values: Values, gathered: Gathered) -> None:
    """Copy a state into memory; what goes wrong there is said once, and memory is left alone from then on."""
    try:
        _memory(session, settings.memory).save(values, gathered.tensors)
    except Exception as error:  # no fault of the tier may end a training
        session.is_memory_off = True
        with suppress(Exception):
            if session.memory is not None:
                session.memory.client.close()
        session.memory = None
        goes_on = f"to {settings.folder} only" if settings.folder else "nowhere: give robust-run --ckpt-dir"
        say(f"rank {values.rank} keeps no checkpoints in memory from step {values.step} on, they go {goes_on}: {error}")


def _say_what_is_missing(session: _Session, settings: Settings, values: Values) -> None:
    if not settings.folder and not session.last_step and values.rank == 0 and not session.is_memory_off:
        say(
            "checkpoints are kept in the memory of this node alone, and a node that is lost takes its own along; "
            "robust-run --ckpt-dir DIR keeps one in a folder every 10 minutes, too"
        )


def _load_from_memory(session: _Session, generation: Generation, url: str, state: dict[str, Any]) -> Values:
    """Load from memory. What cannot be is noted, so that the next attempt starts elsewhere."""
    from robust_run.checkpoint import memory
    from robust_run.ckpt_io import notes
    from robust_run.ckpt_io.memory.types import generation_uuid

    uuid = generation_uuid(os.environ.get("ROBUST_JOB", ""), generation.attempt, generation.step)
    together.check_same("steps in memory", (generation.step, int(uuid[:15], 16)))
    try:
        client = together.all_or_none(lambda: _memory(session, os.environ.get(MEMORY, "")).client)
        return memory.load(client, generation, state)
    except PeerFailed as error:  # the rank that it befell leaves the note
        raise CheckpointError(f"step {generation.step} cannot be loaded from memory: {error}") from error
    except CheckpointError as error:
        notes.leave_damage(url, uuid, str(error))
        raise CheckpointError(f"step {generation.step} cannot be loaded from memory: {error}") from error


# --- storage


def _is_due(session: _Session, settings: Settings, step: int) -> bool:
    """Whether storage is written now, on all ranks alike: what rank 0 finds where a clock is asked."""
    if session.agreed is None:
        said = together.said_by_all((settings.folder, settings.every))
        for rank, (folder, _) in enumerate(said):
            if folder != said[0][0]:
                raise UserError(
                    f"rank 0 saves to {said[0][0]!r}, rank {rank} to {folder!r}: give all ranks the same folder"
                )
        session.agreed = said[0][1]
    every = session.agreed
    warning = "" if session.is_warned else os.environ.get(WARNING, "")
    if warning and together.first_says_yes(os.path.exists(warning)):
        session.is_warned = True
        return True
    if every.steps:
        return is_step_due(every, session.last_step, step)
    return together.first_says_yes(is_time_due(every, time.monotonic() - session.stored_at_s))


def say(text: str) -> None:
    """Say something on stderr; never fails."""
    with suppress(Exception):
        print(f"robust-run: {text}"[:500], file=sys.stderr, flush=True)
