"""Which generation is written, if any: the newest that all nodes have and storage has not. And what is cleared up before."""

from __future__ import annotations

from contextlib import closing, suppress

import msgspec

from robust_run.checkpoint.flush import parts
from robust_run.checkpoint.flush.exchange import Exchange, NotNeededError
from robust_run.ckpt_io import address, catalog, meetings
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.finding import read_manifest
from robust_run.ckpt_io.memory.flushing.words import FlushOrder, Generation, flush_uuid
from robust_run.ckpt_io.rules.types import SavePlan
from robust_run.ckpt_io.saving import abandon, begin_save
from robust_run.errors import RobustRunError
from robust_run.store.errors import StoreError
from robust_run.store.opening import open_store
from robust_run.store.types import Store


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What a node could write."""

    generations: tuple[Generation, ...]
    stored: tuple[Generation, ...]
    """Of these, as the node of rank 0 sees it, which need not be written."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be written."""

    generation: Generation
    is_stored: bool
    """It need not be."""


def choose(order: FlushOrder, folder: str) -> Choice:
    """Return the newest generation that all nodes have. Raises CheckpointError, StoreError."""
    held = tuple(parts.generations(order.parts, order.ranks))
    if not held:
        raise CheckpointError("memory has no step of all ranks of this node")
    if order.is_last and len(order.ranks) < order.world_size:
        return _choose_together(order, folder, held)
    return Choice(generation=held[0], is_stored=_is_stored(order, folder, held[0]))


def _choose_together(order: FlushOrder, folder: str, held: tuple[Generation, ...]) -> Choice:
    is_leader = 0 in order.ranks
    stored = tuple(each for each in held if _is_stored(order, folder, each)) if is_leader else ()
    with closing(open_store(folder)) as store:
        mine = Offer(generations=held, stored=stored)
        meeting = _meeting(store, order)
        meeting.tell("offer", mine)
        try:
            offers = meeting.hear("offer", Offer, mine, lambda: _is_stored(order, folder, held[0]))
        except NotNeededError:
            # It is of an attempt that was long over when the job ended: this node was evicted, or away.
            meeting.let_others_look()
            with suppress(StoreError):
                meeting.begin()
                if not store.list(meeting_folder(order)):
                    store.remove(meeting_folder(order))
            return Choice(generation=held[0], is_stored=True)
        except BaseException:
            with suppress(StoreError):
                meeting.begin()  # nobody is to count on what was offered
            forget_meeting(order, folder)
            raise
        common = set(held).intersection(*(each.generations for each in offers))
        if not common:
            is_stored = _is_stored(order, folder, held[0])  # or something newer: nothing is lost
            _end_without_a_choice(meeting, order, folder)
            if not is_stored:
                raise CheckpointError("memory has no step that all nodes have")
            return Choice(generation=held[0], is_stored=True)
    newest = max(common)
    return Choice(generation=newest, is_stored=any(newest in each.stored for each in offers))


def say_nothing_is_held(order: FlushOrder, folder: str) -> None:
    """Tell the other nodes, at the end of a job, that there is nothing that all have. Raises CheckpointError, StoreError."""
    with closing(open_store(folder)) as store:
        meeting = _meeting(store, order)
        meeting.tell("offer", nothing := Offer(generations=(), stored=()))
        if 0 in order.ranks:
            meeting.hear("offer", Offer, nothing)
            _end_without_a_choice(meeting, order, folder)


def _meeting(store: Store, order: FlushOrder) -> Exchange:
    return Exchange(store, meeting_folder(order), order.ranks, order.world_size, order.wait_s)


def _end_without_a_choice(meeting: Exchange, order: FlushOrder, folder: str) -> None:
    if 0 in order.ranks:
        meeting.let_others_look()
        forget_meeting(order, folder)


def _is_stored(order: FlushOrder, folder: str, generation: Generation) -> bool:
    """Whether storage has it; at the end of a job, or something that was made later, of this step or a later one."""
    plan = plan_of(order.run_id, folder, generation)
    with suppress(CheckpointError, StoreError), closing(open_store(plan.url)) as store:
        if read_manifest(store, plan.url).manifest.uuid == plan.uuid:
            return True
    if not order.is_last:
        return False
    created_s = max(each.created_s for each in order.parts if (each.attempt, each.step) == generation)
    with suppress(RobustRunError):
        return any(
            found.state == "valid" and (found.step or 0) >= generation[1] and (found.created_s or 0.0) >= created_s
            for found in catalog.list_checkpoints(plan.where.root)
        )
    return False


def clear_up(order: FlushOrder, folder: str) -> None:
    """Remove what is left of earlier writes that were cut off, and of jobs whose end was, as far as that is possible."""
    if 0 not in order.ranks:
        return
    for each in order.failed:
        abandon(plan_of(order.run_id, folder, each))
    with suppress(RobustRunError):
        meetings.remove_old_meetings(address.normal(folder), catalog.GRACE_S, open_store)


def forget_meeting(order: FlushOrder, folder: str) -> None:
    """Remove what nodes have told each other of what they have. Never raises."""
    if 0 in order.ranks and len(order.ranks) < order.world_size and order.is_last:
        with suppress(RobustRunError), closing(open_store(folder)) as store:
            store.remove(meeting_folder(order))


def meeting_folder(order: FlushOrder) -> str:
    """Return where nodes of a job that is over say what they have; hidden among the checkpoints of a folder."""
    return meetings.folder_of(flush_uuid(order.run_id, order.attempt, -1))


def plan_of(run_id: str, folder: str, generation: Generation) -> SavePlan:
    """Return the plan of a generation's save: the same on every node, and each time it is tried."""
    url = address.join(address.normal(folder), f"step-{generation[1]}")
    return msgspec.structs.replace(begin_save(url), uuid=flush_uuid(run_id, *generation))
