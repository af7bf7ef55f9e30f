"""Resume point selection: from what the nodes of an attempt see of a folder to the one checkpoint that all start from. Pure.

It is the newest that all nodes see whole, by the uuid of its manifest. What else there is:

- Nodes that see an older state of a shared folder look again, by name, as long as a cache of their file system can be the reason
  (`DELAY_S` after the checkpoint was made), and no longer than the training that would be lost. Then an older one is taken.
- A node that cannot look at a URL now is asked again for half a minute (`TROUBLE_S`) before the others decide without it.
- A node that sees no checkpoint at all where others do has a folder of its own (rank 0 alone saves and loads, say): the others
  decide, and its ranks are told the same, so that a rank that needs it fails loudly instead of beginning anew.
- Nodes that have no checkpoint in common each save their own: the newest step of which each of them has one. Where there is no
  such step, the attempt fails: one of them would start from what is not there.
- Known to be damaged, or its parts not all there on any node: passed over at once.
- **Nothing is thrown away unknowingly.** From the beginning means that all nodes looked, none saw a checkpoint, and no earlier
  attempt of the job started from one or is known to have saved one. Where there are some and none can be used, or no node could
  look, the attempt fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from robust_run.ckpt_io.seen import SeenCheckpoint, is_url
from robust_run.launcher.core.resume.looks import (
    ANSWER_S,
    DELAY_S,
    MOST_OF_ALL,
    NAMED,
    NOTHING_S,
    CheckpointSituation,
    Choosing,
    ResumeCandidate,
    called,
)
from robust_run.launcher.model.resume_events import PassedOver

if TYPE_CHECKING:
    from robust_run.launcher.core.resume.parts import HeldWhole

#: A folder that cannot be read is looked at again for so long.
TROUBLE_S = 30.0
#: The same at a URL from which the job has started before: its store fails over, and no attempt could start without it.
OUTAGE_S = 300.0
#: Nodes that disagree look again for so long at least.
LEAST_S = 2.0
#: From one look to the next, growing.
AGAIN_S, AGAIN_MOST_S = 0.1, 2.0


class ResumeWait(msgspec.Struct, frozen=True):
    """Decide again at this time, or when the next node answers."""

    until_s: float
    why: str = ""


class Again(msgspec.Struct, frozen=True, kw_only=True):
    """Ask these nodes again."""

    nodes: tuple[str, ...]
    names: tuple[str, ...] = ()
    """Besides those that nodes were asked for before: what was looked at once stays known."""
    most: int = 0
    after_s: float = 0.0
    why: str = ""
    """For people, if it takes long."""


class ResumeChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The resume point."""

    seen: SeenCheckpoint | None
    """None: the beginning, or what is in memory."""
    memory: HeldWhole | None = None
    is_own: bool = False
    """Each node has a checkpoint of its own of that step."""
    passed_over: tuple[PassedOver, ...] = ()
    unsure: tuple[str, ...] = ()
    apart: frozenset[str] = frozenset()
    """Nodes that do not see it."""


class Nothing(msgspec.Struct, frozen=True, kw_only=True):
    """There is no telling."""

    reason: str
    may_pass: bool = True


Next = ResumeWait | Again | ResumeChoice | Nothing


def decide(choosing: Choosing, now_s: float, now_unix_s: float, host: Callable[[str], str]) -> Next:
    """Return what follows from what nodes have said so far. `host` names a node for people."""
    now = CheckpointSituation(choosing, now_s, now_unix_s, host)
    if now.awaited and now.waited_s < ANSWER_S:
        due = [node for node, asked in choosing.asked.items() if asked.look is None]
        why = f"{now.names(due)} has not said yet which checkpoints {_where(choosing)}" if due else ""
        return ResumeWait(choosing.began_s + ANSWER_S, why)
    if not now.seers:
        return _nothing_seen(now)
    top = next((each for each in now.usable if each.whole or each.unlooked), None)
    if top is None:
        return _none_usable(now)
    if top.unlooked:
        return Again(nodes=tuple(sorted(top.unlooked)), names=tuple(sorted(top.names)))
    return _agree(now, top)


# --- there is nothing to choose from --------------------------------------------------------------------------------


def _nothing_seen(now: CheckpointSituation) -> Next:
    """No node sees a checkpoint: from the beginning, if all of them could look and there never was one."""
    choosing = now.choosing
    was = _was_there(choosing)
    if not now.silent and not now.troubled and not was:
        return ResumeChoice(seen=None)
    node = next(iter(now.troubled), "")
    due = [each for each, asked in choosing.asked.items() if asked.look is None]
    if node:
        trouble = f"{now.host(node)}: {now.troubled[node].trouble}"
    elif now.silent:
        trouble = (
            f"{choosing.folder or 'the agent'} did not answer on {now.names(due)}"
            if due
            else f"{now.silent} nodes did not answer"
        )
    else:
        trouble = f"{was} in {choosing.folder}, where no checkpoint is any more"
    # What was open to an earlier attempt and is refused now (an expired token, a gateway's page) may be open again soon.
    may_pass = any(look.may_pass for look in now.troubled.values())
    if node and not now.silent and not was and not may_pass:
        return Nothing(reason=_refusal(trouble), may_pass=False)
    is_outage = may_pass and bool(was) and is_url(choosing.folder)
    limit_s = NOTHING_S if now.silent else OUTAGE_S if is_outage else TROUBLE_S
    if now.waited_s >= limit_s:
        return Nothing(reason=_refusal(trouble))
    if now.silent and not node:
        return ResumeWait(choosing.began_s + limit_s, trouble)
    return Again(nodes=tuple(now.troubled or now.views), after_s=_pause_s(choosing), why=trouble)


def _where(choosing: Choosing) -> str:
    return f"are in {choosing.folder}" if choosing.folder else "it holds in memory"


def _was_there(choosing: Choosing) -> str:
    """Return how it is known that there was a checkpoint; empty: it is not."""
    if choosing.saved is not None:
        return f"an earlier attempt saved {called(choosing.saved.step, choosing.saved.name)}"
    if choosing.last is not None:
        return f"an earlier attempt started from {called(choosing.last.step, choosing.last.name)}"
    return ""


def _refusal(why: str) -> str:
    return f"it is not known which checkpoint to start from, and starting from the beginning could lose training: {why}"


def _none_usable(now: CheckpointSituation) -> Next:
    """There are checkpoints, and none that an attempt could start from."""
    if more := _more(now):
        return more
    is_seen_otherwise = now.choosing.of > 1 and any(each.faults for each in now.usable)
    if is_seen_otherwise and now.waited_s < LEAST_S:
        return Again(nodes=tuple(now.seers), after_s=_pause_s(now.choosing))
    over = _over(now, None)
    listed = "; ".join(f"{called(each.step, each.name)}: {each.why}" for each in over[:NAMED])
    more_of_them = f"; and {len(over) - NAMED} more" if len(over) > NAMED else ""
    return Nothing(
        reason=f"none of the checkpoints in {now.choosing.folder} can be started from ({listed}{more_of_them}); mend one "
        "(robust ckpt repair), or move them away to start from the beginning",
        may_pass=False,
    )


def _more(now: CheckpointSituation) -> Again | None:
    """Return the question for older ones, if nodes have some that they did not tell."""
    if now.choosing.most >= MOST_OF_ALL or not any(now.views[node].left_out for node in now.seers):
        return None
    return Again(nodes=tuple(now.seers), most=now.choosing.most * 8)


# --- nodes see different things -------------------------------------------------------------------------------------


def _agree(now: CheckpointSituation, top: ResumeCandidate) -> Next:
    """Choose the newest where all nodes see it; else wait as long as that can help, and take what is next best."""
    choosing = now.choosing
    deciding = [node for node in now.seers if node not in now.apart or node in top.whole]
    late = [*(node for node in deciding if node not in top.whole), *now.blind]
    if not late:
        return _others_can_look(now) or _chosen(now, top)
    common = next((each for each in now.usable if {*each.whole, *each.unlooked}.issuperset(deciding)), None)
    if common is not None and (unlooked := common.unlooked.intersection(deciding)):
        return Again(nodes=tuple(sorted(unlooked)), names=tuple(sorted(common.names)))
    if common is None and (more := _more(now)):
        return more
    own = _own_step(now, deciding) if common is None else None
    if not (own is not None and choosing.own) and now.waited_s < _patience_s(now, top, common):
        does = "does" if len(late) == 1 else "do"
        why = f"{now.names(late)} {does} not see {called(top.seen.step, top.seen.name)} yet, which {now.names(top.whole)} sees"
        return Again(nodes=tuple(late), names=tuple(sorted(top.names)), after_s=_pause_s(choosing), why=why)
    if common is not None:
        return _chosen(now, common)
    if own is not None:
        return own
    from robust_run.launcher.core.resume.passed_over import nothing_in_common

    return Nothing(reason=_refusal(nothing_in_common(now, deciding)))


def _others_can_look(now: CheckpointSituation) -> Next | None:
    """Return a new question for nodes that cannot look at a URL now; None: there are none, or it was asked for long enough.

    A folder may be of one node alone; a URL is seen alike by all. A node that does not reach it now would not load from it
    either, and the attempt would end of that: so it is given time, as where no node sees anything.
    """
    if not is_url(now.choosing.folder) or now.waited_s >= TROUBLE_S:
        return None
    nodes = tuple(node for node, look in now.troubled.items() if look.may_pass)
    if not nodes:
        return None
    why = f"{now.names(nodes)}: {now.troubled[nodes[0]].trouble}"
    return Again(nodes=nodes, after_s=_pause_s(now.choosing), why=why)


def _patience_s(now: CheckpointSituation, top: ResumeCandidate, common: ResumeCandidate | None) -> float:
    """Return how long nodes may look again until they see the newest."""
    age_s = now.now_unix_s - top.seen.created_s
    patience_s = min(DELAY_S - age_s, DELAY_S)
    if common is not None and common is not top:
        patience_s = min(patience_s, top.seen.created_s - common.seen.created_s)
    return max(patience_s, LEAST_S)


def _pause_s(choosing: Choosing) -> float:
    return float(min(AGAIN_S * 1.5 ** min(choosing.rounds, 20), AGAIN_MOST_S))


def _own_step(now: CheckpointSituation, deciding: list[str]) -> Next | None:
    """Return the newest step of which each node has a checkpoint of its own."""
    by_node: dict[str, dict[int, ResumeCandidate]] = {node: {} for node in deciding}
    for each in now.usable:
        for node in each.seers.intersection(deciding):
            if each.seen.step is not None and node not in each.faults:
                by_node[node].setdefault(each.seen.step, each)
    steps = set.intersection(*(set(found) for found in by_node.values()))
    if not steps:
        return None
    step = max(steps)
    for node in deciding:
        if node in by_node[node][step].unlooked:
            return Again(nodes=(node,), names=tuple(sorted(by_node[node][step].names)))
    return _chosen(now, by_node[deciding[0]][step], own=set(deciding))


# --- words ----------------------------------------------------------------------------------------------------------


def _chosen(now: CheckpointSituation, chosen: ResumeCandidate, *, own: set[str] | None = None) -> ResumeChoice:
    """Return the choice. `own`: the nodes that each have one of their own of that step."""
    whole = chosen.whole if own is None else own
    apart = [node for node in now.views if node not in whole]
    unsure = [f"{now.host(node)} does not see it" for node in apart if node not in chosen.faults]
    unsure += [f"{now.host(node)}: {why}" for node, why in chosen.faults.items()]
    unsure += [f"{now.host(node)}: {look.trouble}" for node, look in now.troubled.items()]
    silent = [node for node, asked in now.choosing.asked.items() if asked.look is None]
    unsure += [f"{now.host(node)} did not say within {ANSWER_S:g} s what it sees" for node in silent]
    return ResumeChoice(
        seen=chosen.seen,
        is_own=own is not None,
        passed_over=tuple(_over(now, chosen, own)),
        unsure=tuple(unsure[:NAMED]),
        apart=frozenset(apart),
    )


def _over(now: CheckpointSituation, chosen: ResumeCandidate | None, own: set[str] | None = None) -> list[PassedOver]:
    """Return what was passed over. The words are imported where there may be something: seldom, and not before a first worker."""
    if chosen is not None and own is None and now.choosing.saved is None and now.choosing.last is None:
        is_newest = all(each is chosen or each.seen.age <= chosen.seen.age for each in now.candidates)
        if is_newest and all(seen.uuid for look in now.views.values() for seen in look.seen):
            return []
    from robust_run.launcher.core.resume.passed_over import passed_over

    return passed_over(now, chosen, own)
