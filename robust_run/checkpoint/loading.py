"""Where a program goes on: what the launcher names, or the newest that is good, from memory or from storage."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar

from robust_run.checkpoint import random_states, together
from robust_run.checkpoint.rules.encoding import unpack_plain
from robust_run.checkpoint.rules.settings import FOLDER, MEMORY, RESUME, Generation, generation_of, step_of
from robust_run.checkpoint.session import Session, here, memory_of, place_of, say
from robust_run.checkpoint.types import Values
from robust_run.ckpt_io.errors import CheckpointError, MemoryUnavailable, PeerFailed
from robust_run.errors import UserError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from robust_run.ckpt_io.memory.client import MemoryClient


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
    stream = here().stream(os.environ.get(FOLDER, "") if folder is None else folder)
    stream.last_step = stream.began_step = values.step


class OfStream(Protocol):
    """What was found in memory."""

    @property
    def stream(self) -> str:
        """The folder that it belongs to."""


#: Checkpoints that are named where none can be loaded.
NAMED = 4
#: A folder is looked at so often before that is said.
LOOKS = 8

Found = TypeVar("Found", bound=OfStream)
FromMemory: TypeAlias = "Callable[[MemoryClient, Generation, str | None], Found | None]"
"""Finds a generation there; None: it is of another stream than the one named. All ranks take part."""


def first_good(
    folder: str | None, from_memory: FromMemory[Found], from_storage: Callable[[str], Found]
) -> Found | None:
    """Return what the launcher names, if it is of this stream; else the newest of the folder that is no newer than that.

    None: there is nothing to load. All ranks take part. Raises CheckpointError (also where there are some, and none is good),
    UserError.
    """
    resume, is_named = os.environ.get(RESUME, ""), folder is not None
    where = os.environ.get(FOLDER, "") if folder is None else folder
    generation = generation_of(resume)
    if generation is not None:
        found = _from_memory(here(), generation, resume, from_memory, place_of(where) if is_named else None)
        if found is not None:
            return found
    if resume and generation is None and (not is_named or os.path.dirname(place_of(resume)) == place_of(where)):
        return _noted(where, resume, from_storage)
    return _newest_good(where, step_of(os.environ) if resume else None, from_storage) if where else None


def _newest_good(folder: str, most_step: int | None, from_storage: Callable[[str], Found]) -> Found | None:
    """Return the newest good one of a folder. Where none is, what came meanwhile is tried: another job may save here, and remove
    what was seen.
    """
    from robust_run.checkpoint import storage

    passed_over: dict[str, str] = {}
    for _ in range(LOOKS):
        untried = [one for one in storage.newest_first(folder, most_step) if one[0] not in passed_over]
        if not untried:
            break
        for url, fault in untried:
            try:
                if fault:
                    raise CheckpointError(fault)
                return _noted(folder, url, from_storage)
            except CheckpointError as error:  # on all ranks, or on none
                say(f"checkpoint {url} is passed over: {error}")
                passed_over[url] = f"{os.path.basename(url)}: {error}"
    if passed_over:
        raise CheckpointError(_none_can_be_loaded(folder, [*passed_over.values()]))
    return None


def _none_can_be_loaded(folder: str, passed_over: list[str]) -> str:
    """Beginning anew, a program would save over what may still be mended."""
    more = f"; and {len(passed_over) - NAMED} more" if len(passed_over) > NAMED else ""
    return (
        f"none of the checkpoints in {folder} can be loaded ({'; '.join(passed_over[:NAMED])}{more}); mend one"
        " (robust ckpt repair), or move them away to begin anew"
    )


def _noted(folder: str, url: str, load_it: Callable[[str], Found]) -> Found:
    """Load a checkpoint of storage. Whether that works or not, --ckpt-keep leaves it alone in this process."""
    here().stream(folder).leave[os.path.basename(url)] = None
    return load_it(url)


def _from_memory(
    session: Session, generation: Generation, url: str, find: FromMemory[Found], stream: str | None
) -> Found | None:
    """Find a generation in memory. What cannot be loaded is noted, so that the next attempt starts elsewhere."""
    from robust_run.ckpt_io import notes
    from robust_run.ckpt_io.memory.types import generation_uuid

    uuid = generation_uuid(os.environ.get("ROBUST_JOB", ""), generation.attempt, generation.step)
    together.check_same("steps in memory", (generation.step, int(uuid[:15], 16)))
    try:
        client = together.all_or_none(lambda: memory_of(session, os.environ.get(MEMORY, "")).client)
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
