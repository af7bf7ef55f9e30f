"""Checkpoints that are passed over, and why: the words of `core.resume.choosing` for what is rare. Pure.

Imported where there is something to say.
"""

from __future__ import annotations

from collections.abc import Iterator

from robust_run.launcher.core.resume.looks import NAMED, CheckpointSituation, ResumeCandidate, called
from robust_run.launcher.model.resume_events import PassedOver


def passed_over(
    now: CheckpointSituation, chosen: ResumeCandidate | None, own: set[str] | None = None
) -> list[PassedOver]:
    """Return what is newer than what was chosen, the newest first, and why it was not taken; of None: all there is."""
    newer = [
        each
        for each in sorted(now.candidates, key=lambda each: each.seen.age, reverse=True)
        if chosen is None or (each is not chosen and each.seen.age > chosen.seen.age)
    ]
    over = [
        PassedOver(step=each.seen.step, uuid=each.seen.uuid, name=each.seen.name, why=_why_not(now, each))
        for each in newer
    ]
    if own is not None and chosen is not None:
        over = list(_steps_passed_over(now, newer, own, chosen.seen.step or 0))
    ruined: dict[str, PassedOver] = {}
    for look in dict.fromkeys(now.views[node] for node in now.seers):
        for seen in look.seen:
            if not seen.uuid and (chosen is None or seen.created_s > chosen.seen.created_s):
                ruined.setdefault(seen.name, PassedOver(name=seen.name, why=seen.fault or "its manifest is damaged"))
    known = {each.name for each in over}
    over += [each for name, each in ruined.items() if name not in known]
    return [*_gone(now, chosen), *over] if chosen is not None else over


def _gone(now: CheckpointSituation, chosen: ResumeCandidate) -> Iterator[PassedOver]:
    """Yield what was there and would be newer than what was chosen, the newest first."""
    there = {each.seen.uuid for each in now.candidates}
    known = [each for each in (now.choosing.saved, now.choosing.last) if each is not None and each.uuid]
    for step, uuid, name in sorted({(each.step or 0, each.uuid, each.name) for each in known}, reverse=True):
        if uuid not in there and step > (chosen.seen.step or 0):
            yield PassedOver(step=step, uuid=uuid, name=name, why="it is not there any more")


def _steps_passed_over(
    now: CheckpointSituation, newer: list[ResumeCandidate], own: set[str], step: int
) -> Iterator[PassedOver]:
    """Yield the steps after one, where nodes have checkpoints of their own: each once, and who has none of it."""
    by_step: dict[int, list[ResumeCandidate]] = {}
    for each in newer:
        if (each.seen.step or 0) > step:
            by_step.setdefault(each.seen.step or 0, []).append(each)
    for newer_step, found in by_step.items():
        bad = next((each for each in found if each.seen.uuid in now.choosing.avoid or each.faults), None)
        lacking = [node for node in now.views if node in own and not any(node in each.seers for each in found)]
        lacks = f"{now.names(lacking)} {'has' if len(lacking) == 1 else 'have'} none of it" if lacking else ""
        first = bad or found[0]
        why = lacks or _why_not(now, first)
        yield PassedOver(step=newer_step, uuid=first.seen.uuid, name=first.seen.name, why=why)


def _why_not(now: CheckpointSituation, candidate: ResumeCandidate) -> str:
    known = now.choosing.avoid.get(candidate.seen.uuid)
    if known is not None:
        return known.why
    if candidate.faults:
        node, fault = next(iter(candidate.faults.items()))
        return f"{now.host(node)}: {fault}" if now.choosing.of > 1 else fault
    if candidate.seen.written_by in now.choosing.untrusted:
        return "code that was rolled back wrote it"
    seers = candidate.seers
    missing = [node for node in now.views if node not in seers]
    if missing:
        return f"{now.names(missing)} {'does' if len(missing) == 1 else 'do'} not see it"
    return "another was chosen"


def nothing_in_common(now: CheckpointSituation, deciding: list[str]) -> str:
    """Return what each node has, the nodes with the same together."""
    nodes: dict[str, list[str]] = {}
    for node in deciding:
        has = [
            called(each.seen.step, each.seen.name) + _flaw(now, each, node)
            for each in now.candidates
            if node in each.seers
        ]
        more = f" and {len(has) - NAMED} more" if len(has) > NAMED else ""
        nodes.setdefault(", ".join(has[:NAMED]) + more, []).append(node)
    said = [
        f"{now.names(group)} {'has' if len(group) == 1 else 'have'} {has or 'none'}" for has, group in nodes.items()
    ]
    more = f"; and {len(said) - NAMED} more" if len(said) > NAMED else ""
    return (
        f"the nodes have no checkpoint and no step in common in {now.choosing.folder} ({'; '.join(said[:NAMED])}{more}); give "
        "--ckpt-dir a folder that all of them see, or move away what is not of this job"
    )


def _flaw(now: CheckpointSituation, candidate: ResumeCandidate, node: str) -> str:
    known = now.choosing.avoid.get(candidate.seen.uuid)
    flaw = known.why if known is not None else candidate.faults.get(node, "")
    return f" ({flaw})" if flaw else ""
