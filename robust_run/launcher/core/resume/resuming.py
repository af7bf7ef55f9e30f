"""Resume point of an attempt: asked for when nodes are gathered, and told to all of them in the order to start. Pure.

Which checkpoint it is, is `core.resume.choosing`'s to say; here is what that means for the job. Imported where nodes were given a
folder of checkpoints (--ckpt-dir).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from robust_run.ckpt_io.seen import below
from robust_run.launcher.core.membership import is_usable, name_of
from robust_run.launcher.core.resume.looks import called
from robust_run.launcher.core.state import JobState, MemoryHolder
from robust_run.launcher.model.actions import Action, Say
from robust_run.launcher.model.events import AttemptEnded, AttemptStarted
from robust_run.launcher.model.job import Placement
from robust_run.launcher.model.resume_events import (
    LookForCheckpoints,
    PartsElsewhere,
    PassedOver,
    ResumeChosen,
    ResumePoint,
    SavedCheckpoint,
)

if TYPE_CHECKING:
    from robust_run.launcher.core.diagnosis.judge import AttemptJudgement

#: Names of exceptions that a worker raises where a checkpoint cannot be read: ours, and torch's around them.
OURS, OF_TORCH = "robust_run.ckpt_io.", "torch.distributed.checkpoint.api.CheckpointException"
#: Sources of what keepers hold.
IN_MEMORY = ("memory", "peer")
DAMAGED, NO_POINT = "damaged_checkpoint", "no_resume_point"


def folder_of(state: JobState, layout: Iterable[Placement]) -> str:
    """Return the folder of checkpoints that the nodes of a world were given; empty: none was."""
    return next(filter(None, (state.members[each.node].info.ckpt_dir for each in layout)), "")


def look(state: JobState, attempt: int, nodes: tuple[str, ...], of: int, folder: str) -> LookForCheckpoints:
    """Return the question to nodes of an attempt."""
    return LookForCheckpoints(
        attempt=attempt,
        nodes=nodes,
        of=of,
        folder=folder,
        avoid=tuple(state.passed_over),
        untrusted=_rolled_back(state),
        holders=holders(state) if state.asks_memory and attempt == state.attempt else (),
    )


def holders(state: JobState) -> tuple[str, ...]:
    """Return nodes without ranks in the newest attempt whose keepers may have what it needs; those that may be ill last."""
    there = [node for node in state.memory_at if node not in state.places and state.members[node].present]
    return tuple(sorted(there, key=lambda node: not is_usable(state, node)))


def look_again(state: JobState, node: str) -> LookForCheckpoints:
    """Return the same for a node that was away, or whose controller was."""
    return look(state, state.attempt, (node,), len(state.layout), state.looks_in)


def _rolled_back(state: JobState) -> tuple[str, ...]:
    if not state.code.records:
        return ()
    from robust_run.launcher.core import ledger_queries as queries

    use = queries.use(state.code)
    return use.rolled_back if use is not None else ()


def remember(state: JobState) -> None:
    """Keep what the attempt before says of the next one's start, before it is forgotten."""
    point = state.resume
    if point is not None and point.source == "storage":
        state.last_point = point
    if state.has_memory:
        _remember_memory(state)
    if (state.looks_in or state.has_memory) and state.progress.steps:
        base = 0 if point is None or not point.source else point.step
        state.reached_step = None if base is None else base + state.progress.steps


def _remember_memory(state: JobState) -> None:
    is_memory = state.resume is not None and state.resume.source in IN_MEMORY
    state.last_memory = state.resume if is_memory else None
    state.held_by = tuple(
        MemoryHolder(node=each.node, name=name_of(state, each.node), first_rank=each.first_rank, nproc=each.nproc)
        for each in state.layout
    )


def saved(state: JobState, found: SavedCheckpoint) -> None:
    """Keep that there was a checkpoint: where none is seen any more, none was saved yet is not the reason.

    The newer one counts: of a later time, as after a rollback, or of a later step, as after a clock was set back.
    """
    known = state.last_saved
    is_later_step = known is not None and (found.step or 0) > (known.step or 0)
    if known is None or is_later_step or found.created_unix_s > known.created_unix_s:
        state.last_saved = found


def chosen(state: JobState, event: ResumeChosen, *, saves_plain_files: bool = False) -> list[Action]:
    """Take in where the attempt starts from; what people want to know of it is said. See `JobPolicy.saves_plain_files`."""
    state.resume, state.elsewhere = event.point(), event.elsewhere
    if event.source == "storage" and event.uuid:
        state.started_from[event.uuid] = None
    if state.has_memory and (event.step is not None or not event.source):
        state.began_at[event.attempt] = event.step or 0
    news = [each for each in event.passed_over if (each.uuid or each.name) not in state.told_over]
    state.told_over.update(each.uuid or each.name for each in news)
    unsure = [each for each in event.unsure if each not in state.told_over]
    state.told_over.update(unsure)
    # Without a folder that was looked at, the program may have files of its own: where it starts is not ours to say.
    is_unknown = (saves_plain_files or not state.looks_in) and not event.passed_over
    if not event.source and (event.attempt == 0 or is_unknown):
        return []
    state.resume = msgspec.structs.replace(state.resume, is_beginning=not event.source)
    return [Say(text=sentence(event, news, unsure))]


def sentence(event: ResumeChosen, news: Sequence[PassedOver], unsure: Sequence[str]) -> str:
    """Return where an attempt starts from, for people, and what of it they do not know yet."""
    over = [f"{called(each.step, each.name)} is passed over: {each.why}" for each in news]
    lost_s = event.lost_s
    if not event.source and event.passed_over:
        first = event.passed_over[0]
        over = [f"{called(each.step, each.name)} is passed over: {each.why}" for each in news if each != first]
        place = f"at step 0, as {called(first.step, first.name)} cannot be used: {first.why}"
    elif not event.source:
        place = "from the beginning: there is no checkpoint yet"
    elif event.source in IN_MEMORY:
        steps, lost_s = event.steps_lost, lost_s if event.steps_lost is None else None
        lost = f", {steps} step{'' if steps == 1 else 's'} lost" if steps is not None else ""
        worlds = f" (of {event.saved_world_size} ranks, now {event.world_size})" if event.saved_world_size else ""
        place = f"at step {event.step} from memory{worlds or _from_where(event.elsewhere)}{lost}"
    else:
        place = f"at step {event.step}" if event.step is not None else f"from {called(None, event.name)}"
        place += ", each node from a checkpoint of its own" if event.point().is_own else ""
    age = f" (checkpoint of {_duration(lost_s)} before the failure)" if lost_s is not None else ""
    doubt = f", although {'; '.join(unsure)}" if unsure else ""
    return "; ".join([*over, f"attempt {event.attempt} starts {place}{age}{doubt}"])


def _duration(seconds: float) -> str:
    from robust_run.report.summary import duration  # nothing of it before the first workers

    return duration(seconds)


def _from_where(elsewhere: Sequence[PartsElsewhere]) -> str:
    """Return whose parts come from which other nodes, as a clause: the first two, and how many more there are."""
    if not elsewhere:
        return ""
    from robust_run.tracer.words import ranks_words

    said = [
        f"{each.of}'s part from its copy on {each.name}" if each.of else f"{ranks_words(each.ranks)} from {each.name}"
        for each in elsewhere
    ]
    said = list(dict.fromkeys(said))
    more = [f"{len(said) - 2} more from others"] if len(said) > 2 else []
    return "".join(f", {each}" for each in [*said[:2], *more])


def adopt(state: JobState, event: AttemptStarted) -> list[Action]:
    """Take what a node says it was told for what was chosen: the journal may have lost that. Nothing is said."""
    name = event.resumes_name
    if state.has_memory and (event.resumes_step is not None or not name):
        state.began_at[event.attempt] = event.resumes_step or 0
    if event.resumes_source in IN_MEMORY:
        from robust_run.launcher.core.resume import memory

        point = memory.point_named(name, event.resumes_step, event.resumes_uuid, event.resumes_s)
        state.resume = msgspec.structs.replace(point, source=event.resumes_source)
        return []
    state.resume = ResumePoint(
        source="storage" if name else "",
        step=event.resumes_step,
        uuid=event.resumes_uuid,
        name=name,
        address=below(state.looks_in, name) if name else "",
        created_unix_s=event.resumes_s,
    )
    if name and event.resumes_uuid:
        state.started_from[event.resumes_uuid] = None
    return []


def damaged(state: JobState, event: AttemptEnded) -> None:
    """Take in that a rank could not read what it was told to start from: no later attempt starts there."""
    found = event.damage
    if found is None or not found.uuid:
        return
    where = f"rank {found.rank} on {name_of(state, event.node)}"
    over = PassedOver(step=found.step, uuid=found.uuid, name=found.name, why=f"{where}: {found.reason}")
    state.passed_over.setdefault(found.uuid, over)
    state.found_damaged = state.found_damaged or found.uuid


def judged(state: JobState, verdict: AttemptJudgement, *, may_heal: bool) -> AttemptJudgement:
    """Return the verdict on an attempt that had nothing to start from, or whose ranks could not read what they were told to.

    It is the latter only if the attempt did nothing else: no rank made a step, and what the rank at fault shows is no exception
    of the program's own. The next attempt starts elsewhere, so that is no repetition; and as the list of checkpoints gets
    shorter each time, it ends. `may_heal`: false where the job may not be started again at all.
    """
    over = state.passed_over.get(state.found_damaged)
    draft = verdict.draft
    if state.no_point and draft.rule == "platform":
        return msgspec.structs.replace(verdict, draft=msgspec.structs.replace(draft, rule=NO_POINT))
    if over is None or state.progress.steps or draft.kind not in ("code", "crash", "unknown"):
        return verdict
    finding = draft.culprit.finding if draft.culprit is not None else None
    is_plain = finding is not None and (finding.exception.startswith(OURS) or finding.exception == OF_TORCH)
    is_own = finding is not None and finding.kind == "exception" and not is_plain and OURS not in finding.excerpt
    if is_own:
        return verdict
    if is_plain:
        state.told_over.add(over.uuid)
        text = f"{called(over.step, over.name)} cannot be read: {over.why}"
        draft = msgspec.structs.replace(
            draft, kind="crash", rule=DAMAGED, confidence="high", sentence=text, ranks=(), nodes=()
        )
    return msgspec.structs.replace(verdict, draft=draft, heals=verdict.heals or may_heal)


def reason(state: JobState) -> str:
    """Return what follows from that, as a clause."""
    over = state.passed_over[state.found_damaged]
    return f"{called(over.step, over.name)} is passed over"
