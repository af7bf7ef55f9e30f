"""Resume point in memory: whether an attempt can start from what keepers hold, or from the folder of checkpoints. Pure.

A generation counts if there is a whole part of it for each rank that saved it, on the rank's own node or on one that can give
it away: its own or a copy (`core.resume.parts`; with more or fewer ranks now, `core.resume.spreading`); and nothing speaks
against it: no rank found it damaged, and no code
that was rolled back made it. The newest of them and the newest checkpoint in storage compete: the higher step wins, memory on a
tie. Memory that cannot be used is as if it were not there: then storage decides alone, and what was lost is said.

Imported where nodes hold something in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from robust_run.ckpt_io.memory.types import (
    generation_address,
    generation_name,
    generation_of_name,
    generation_uuid,
    saved_by_of_name,
)
from robust_run.ckpt_io.seen import MemoryGeneration
from robust_run.launcher.core.membership import is_usable, name_of
from robust_run.launcher.core.resume import choosing as storage
from robust_run.launcher.core.resume.choosing import LEAST_S, Again, Next, Nothing, ResumeChoice, ResumeWait
from robust_run.launcher.core.resume.looks import ANSWER_S, NAMED, CheckpointSituation, Choosing, MemoryWorld
from robust_run.launcher.core.resume.parts import HeldWhole, everybody, whole
from robust_run.launcher.core.resume.passed_over import passed_over
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.resume_events import PassedOver, ResumePoint


def world_of(state: JobState, job: str, attempt: int) -> MemoryWorld | None:
    """Return what is to be known of an attempt that is about to begin; None: it is a replay, which starts from storage."""
    if state.phase != "opening" or attempt != state.attempt:
        return None
    fates = {record.version.number: record.fate for record in state.code.records}
    return MemoryWorld(
        job=job,
        world_size=sum(each.nproc for each in state.layout),
        ranks={each.node: tuple(range(each.first_rank, each.first_rank + each.nproc)) for each in state.layout},
        untrusted=frozenset(
            attempt for attempt, version in state.versions_run.items() if fates.get(version) == "rolled_back"
        ),
        began_at=state.began_at,
        held_by=state.held_by,
        last=state.last_memory,
        reach=state.memory_at,
        names={node: name_of(state, node) for node in {**state.memory_at, **state.places}},
        evicted=frozenset(node for node in state.memory_at if not is_usable(state, node)),
    )


def decide(choosing: Choosing, now_s: float, now_unix_s: float, host: Callable[[str], str]) -> Next:
    """Return what follows from what nodes have said so far, as `choosing.decide` does without memory."""
    found = storage.decide(choosing, now_s, now_unix_s, host)
    world = choosing.memory
    now = CheckpointSituation(choosing, now_s, now_unix_s, host)
    if world is None or (now.awaited and isinstance(found, ResumeWait) and now.waited_s < ANSWER_S):
        return found
    held = newest(choosing, world)
    if wait := _wait_for_holders(now, world, held):
        return wait
    if held is None:
        return _with_lost(now, world, found)
    seen = found.seen if isinstance(found, ResumeChoice) else None
    if seen is not None and _is_newer(seen.step, held) and seen.written_by not in choosing.untrusted:
        return found
    if isinstance(found, (ResumeWait, Again)) and _is_worth_waiting(now, held):
        return found
    over = tuple(each for each in passed_over(now, None) if _is_newer(each.step, held))
    over += tuple(_speaking_against(now, world, newer_than=held.step))
    unsure: tuple[str, ...] = (found.reason,) if isinstance(found, Nothing) and now.troubled else ()
    silent = [node for node, asked in choosing.asked.items() if asked.look is None]
    if silent and choosing.folder:
        unsure += (f"{choosing.folder} did not answer on {now.names(silent)}",)
    return ResumeChoice(seen=None, memory=held, passed_over=over, unsure=unsure)


def _wait_for_holders(now: CheckpointSituation, world: MemoryWorld, held: HeldWhole | None) -> ResumeWait | None:
    """Wait for nodes that may have what others lack, unless nothing newer is known than what there is without them.

    Where all ranks are where they were, other nodes have nothing newer than what is here.
    """
    choosing = now.choosing
    due = [node for node, asked in choosing.holders.items() if asked.is_due]
    if not due or now.waited_s >= ANSWER_S or _is_in_place(world):
        return None
    known = (each for each in _known(choosing) if not _why_not_used(choosing, world, *each))
    if held is not None and (held.attempt, held.step) == next(known, None):
        return None
    return ResumeWait(choosing.began_s + ANSWER_S, f"{now.names(due)} has not said yet what it holds in memory")


def _is_in_place(world: MemoryWorld) -> bool:
    """Whether all ranks of the attempt before are on the same nodes again."""
    before = {each.node: tuple(range(each.first_rank, each.first_rank + each.nproc)) for each in world.held_by}
    return before == dict(world.ranks)


def point(world: MemoryWorld, held: HeldWhole) -> ResumePoint:
    """Return a generation as a resume point."""
    return ResumePoint(
        source="peer" if held.elsewhere else "memory",
        step=held.step,
        uuid=generation_uuid(world.job, held.attempt, held.step),
        name=generation_name(held.attempt, held.step, held.saved_by),
        address=generation_address(held.attempt, held.step, held.saved_by),
        created_unix_s=held.created_s,
    )


def point_named(name: str, step: int | None, uuid: str, created_unix_s: float | None) -> ResumePoint:
    """Return the resume point that a node was told, by what it says of it."""
    known = generation_of_name(name)
    address = generation_address(known[0], step or 0, saved_by_of_name(name)) if known is not None else ""
    return ResumePoint(source="memory", step=step, uuid=uuid, name=name, address=address, created_unix_s=created_unix_s)


# --- what counts ----------------------------------------------------------------------------------------------------


def newest(choosing: Choosing, world: MemoryWorld) -> HeldWhole | None:
    """Return the newest generation that an attempt can start from."""
    for attempt, step in _known(choosing):
        if _why_not_used(choosing, world, attempt, step):
            continue
        if found := whole(choosing, world, attempt, step):
            return found
        for saved_by in _worlds(choosing, world, attempt, step):
            from robust_run.launcher.core.resume import spreading

            spread = spreading.spread(choosing, world, attempt, step, saved_by)
            if isinstance(spread, HeldWhole):
                return spread
    return None


def _worlds(choosing: Choosing, world: MemoryWorld, attempt: int, step: int) -> list[int]:
    """Return how many ranks saved a generation, where the attempt has more or fewer: one number, if nodes are to be believed."""
    found = {
        each.world_size
        for _, asked in everybody(choosing)
        for each in asked.held
        if (each.attempt, each.step) == (attempt, step)
    }
    return sorted(found - {world.world_size})


def _known(choosing: Choosing) -> list[tuple[int, int]]:
    """Return the attempt and step of all that nodes hold, the newest first: by step, and of a step the latest."""
    found = {(each.attempt, each.step) for _, asked in everybody(choosing) for each in asked.held}
    return sorted(found, key=lambda each: (each[1], each[0]), reverse=True)


def _why_not_used(choosing: Choosing, world: MemoryWorld, attempt: int, step: int) -> str:
    """Return why a generation is not to be used, though it may be whole; empty: nothing speaks against it."""
    known = choosing.avoid.get(generation_uuid(world.job, attempt, step))
    if known is not None:
        return known.why
    if attempt in world.untrusted:
        return "code that was rolled back made it"
    if any(later > attempt and began < step for later, began in world.began_at.items() if later < choosing.attempt):
        return "a later attempt began before it"
    return "" if attempt < choosing.attempt else "no attempt before made it"


# --- storage --------------------------------------------------------------------------------------------------------


def _is_newer(step: int | None, held: HeldWhole) -> bool:
    return step is not None and step > held.step


def _is_worth_waiting(now: CheckpointSituation, held: HeldWhole) -> bool:
    """Whether a newer checkpoint may be in storage, and waiting for it costs less than the training between the two."""
    choosing = now.choosing
    made = [
        each.seen.created_s
        for each in now.usable
        if _is_newer(each.seen.step, held) and each.seen.written_by not in choosing.untrusted
    ]
    if choosing.saved is not None and _is_newer(choosing.saved.step, held):
        made.append(choosing.saved.created_unix_s)
    if choosing.last is not None and _is_newer(choosing.last.step, held):
        made.append(choosing.last.created_unix_s or 0.0)
    return bool(made) and now.waited_s < max(LEAST_S, max(made) - held.created_s)


# --- words ----------------------------------------------------------------------------------------------------------


def _with_lost(now: CheckpointSituation, world: MemoryWorld, found: Next) -> Next:
    """Return what storage decides, and what was in memory and would have been newer."""
    if not isinstance(found, ResumeChoice):
        return found
    step = -1 if found.seen is None or found.seen.step is None else found.seen.step
    lost = tuple(_lost(now, world, newer_than=step))
    return msgspec.structs.replace(found, passed_over=(*lost, *found.passed_over)) if lost else found


def _lost(now: CheckpointSituation, world: MemoryWorld, newer_than: int) -> Iterator[PassedOver]:
    """Yield the newest that is not whole any more, and what speaks against others; if nothing is held, what there was."""
    choosing = now.choosing
    known = [each for each in _known(choosing) if each[1] > newer_than]
    for attempt, step in known:
        if not _why_not_used(choosing, world, attempt, step):
            yield _over(world, attempt, step, _why_not_whole(now, world, attempt, step))
            break
    yield from _speaking_against(now, world, newer_than)
    last = world.last
    if not known and last is not None and (last.step or 0) > newer_than and last.uuid not in choosing.avoid:
        yield PassedOver(step=last.step, uuid=last.uuid, name=last.name, why="no node holds it any more")


def _speaking_against(now: CheckpointSituation, world: MemoryWorld, newer_than: int) -> Iterator[PassedOver]:
    for attempt, step in [each for each in _known(now.choosing) if each[1] > newer_than][: 2 * NAMED]:
        if why := _why_not_used(now.choosing, world, attempt, step):
            yield _over(world, attempt, step, why)


def _over(world: MemoryWorld, attempt: int, step: int, why: str) -> PassedOver:
    uuid = generation_uuid(world.job, attempt, step)
    return PassedOver(step=step, uuid=uuid, name=generation_name(attempt, step), why=why)


def _why_not_whole(now: CheckpointSituation, world: MemoryWorld, attempt: int, step: int) -> str:
    """Return who lacks a part, as a clause."""
    held = {
        node: each
        for node, asked in everybody(now.choosing)
        for each in asked.held
        if (each.attempt, each.step) == (attempt, step)
    }
    for saved_by in _worlds(now.choosing, world, attempt, step):
        from robust_run.launcher.core.resume import spreading

        spread = spreading.spread(now.choosing, world, attempt, step, saved_by)
        if isinstance(spread, spreading.NotSpread) and spread.why:
            return spread.why
        gone = _gone(now, world, held)
        return f"it is of {saved_by} ranks, and {world.world_size} run now" + (f"; {gone}" if gone else "")
    if gone := _gone(now, world, held):
        return gone
    there = {rank for each in held.values() for rank in (*each.ranks, *each.copies)}
    lacking = [node for node, ranks in world.ranks.items() if not there.issuperset(ranks)]
    if lacking:
        return f"{now.names(lacking)} {'does' if len(lacking) == 1 else 'do'} not hold its part"
    return "its ranks run on other nodes now"


def _gone(now: CheckpointSituation, world: MemoryWorld, held: Mapping[str, MemoryGeneration]) -> str:
    """Return which nodes of the attempt before took their parts along, as a clause; empty: none did."""
    there = {rank for each in held.values() for rank in (*each.ranks, *each.copies)}
    gone = [
        each.name
        for each in world.held_by
        if each.node not in world.ranks
        and each.node not in held
        and not there.issuperset(range(each.first_rank, each.first_rank + each.nproc))
    ]
    if not gone:
        return ""
    names = ", ".join(dict.fromkeys(gone[:NAMED])) + (", ..." if len(gone) > NAMED else "")
    copies = ", and no other node has a copy" if _has_copies(now.choosing) else ""
    return f"{names}, which held a part of it, {'is' if len(gone) == 1 else 'are'} gone{copies}"


def _has_copies(choosing: Choosing) -> bool:
    return any(each.copies for _, asked in everybody(choosing) for each in asked.held)
