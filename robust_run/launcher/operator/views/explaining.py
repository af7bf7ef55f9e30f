"""Explanation of an incident, from the journal. Pure.

An incident begins with its record; what the ladder decided and what checks said until the next one is about it. A decision
that an episode ended well is part of the episode's newest incident.
"""

from __future__ import annotations

import msgspec

from robust_run.decoders import json_decoder
from robust_run.health.ladder.rules import RULES
from robust_run.launcher.core.resume.resuming import sentence
from robust_run.launcher.model.actions import RecordIncident
from robust_run.launcher.model.check_events import Decided, Diagnosed
from robust_run.launcher.model.resume_events import ResumeChosen
from robust_run.launcher.operator.views.show import clean
from robust_run.launcher.records.journal import JournalEntry, Terms
from robust_run.report.types import Incident

_DECODER = json_decoder(JournalEntry)
MOST_SAID = 20


class ToldIncident(msgspec.Struct, kw_only=True):
    """One incident."""

    number: int
    attempt: int
    sentence: str
    rule: str
    confidence: str
    action: str
    reason: str
    episode: int = 0
    """Of the ladder; 0: the ladder was not asked."""
    decided: list[Decided] = []
    checks: list[str] = []
    """What checks said, a sentence each."""
    before: list[int] = []
    """Earlier incidents of the same episode."""
    resume: str = ""
    """Where the attempt after it starts from; empty: that is not known."""
    is_whole: bool = True
    """False: told by its file, as the journal does not have it; what the ladder and checks said is not known."""

    def lines(self) -> list[str]:
        """Return it in words."""
        said = [
            f"incident {self.number}, attempt {self.attempt}: {self.sentence}",
            f"  rule {self.rule}, confidence {self.confidence}",
            f"  {self.action}: {self.reason}",
        ]
        if not self.is_whole:
            said.append(
                "  this is from its file; what was decided after it is not known, as the journal does not have it"
            )
        elif not self.episode:
            said.append("  no diagnosis was made: the failure explains itself, or the job was started again at once")
        if self.before:
            said.append(f"  the same episode: incident{'s' if len(self.before) > 1 else ''} {_listed(self.before)}")
        for each in self.decided:
            what = each.rung + (f" {', '.join(each.nodes)}" if each.nodes else "")
            what += f" to {each.version}" if each.version else ""
            said.append(f"  {each.number}. {what}: {each.sentence}")
            said.append(f"     rule {each.rule}: {RULES.get(each.rule, 'unknown to this version')}")
            if each.over_evicted:
                said.append(
                    f"     over-evicted, as it is not known which one is at fault: {', '.join(each.over_evicted)}"
                )
            if each.rung == "diagnose":
                said += [f"     checks: {sentence}" for sentence in self.checks]
        if self.resume:
            said.append(f"  {self.resume}")
        return [clean(line) for line in said]


class Explaining:
    """Reads a journal from its beginning, a line at a time."""

    def __init__(self) -> None:
        self._told: list[ToldIncident] = []
        self._terms = Terms()

    @property
    def count(self) -> int:
        """How many incidents there were."""
        return len(self._told)

    def learn(self, line: bytes | msgspec.Raw) -> None:
        """Take in a line; what is none that counts changes nothing."""
        try:
            entry = _DECODER.decode(line)
        except msgspec.MsgspecError:
            return
        if not self._terms.hold(entry.term):
            return
        if isinstance(entry.action, RecordIncident):
            self._told.append(_of(len(self._told) + 1, entry.action))
        elif isinstance(entry.action, Decided) and self._told:
            self._decided(entry.action)
        elif isinstance(entry.event, Diagnosed) and self._told:
            self._told[-1].checks += _said(entry.event)
        elif isinstance(entry.event, ResumeChosen) and self._told:
            chosen = entry.event
            self._told[-1].resume = sentence(chosen, chosen.passed_over, chosen.unsure)

    def _decided(self, decided: Decided) -> None:
        newest = self._told[-1]
        if decided.rung != "settled" or newest.episode == decided.episode:
            newest.decided.append(decided)
            newest.episode = decided.episode
            newest.before = [each.number for each in self._told[:-1] if each.episode == decided.episode]
            return
        for each in reversed(self._told):
            if each.episode == decided.episode:
                each.decided.append(decided)
                return

    def of(self, number: int) -> ToldIncident | None:
        """Return an incident, None if there was none of this number."""
        return self._told[number - 1] if 0 < number <= len(self._told) else None


def of_file(incident: Incident) -> ToldIncident:
    """Return what there is to say of an incident that the journal does not have."""
    verdict, action = incident.verdict, incident.action
    return ToldIncident(
        number=incident.id,
        attempt=incident.attempt,
        sentence=verdict.sentence,
        rule=verdict.rule,
        confidence=verdict.confidence,
        action=action.name,
        reason=action.reason,
        is_whole=False,
    )


def is_of(told: ToldIncident, incident: Incident) -> bool:
    """Whether both are one: in a journal that lost lines, later incidents have the numbers of earlier ones."""
    return (told.attempt, told.rule) == (incident.attempt, incident.verdict.rule)


def _of(number: int, record: RecordIncident) -> ToldIncident:
    draft = record.verdict
    return ToldIncident(
        number=number,
        attempt=record.attempt,
        sentence=draft.sentence,
        rule=draft.rule,
        confidence=draft.confidence,
        action=record.action,
        reason=record.reason,
    )


def _said(event: Diagnosed) -> list[str]:
    judged = event.judgement
    said = [f"{each.node} ({each.confidence}, {each.rule}): {each.sentence}" for each in judged.suspects]
    said += [f"unclear among {', '.join(each.nodes)} ({each.rule}): {each.sentence}" for each in judged.ambiguous]
    said += [f"not checked: {sentence}" for sentence in judged.unchecked]
    more = [f"and {len(said) - MOST_SAID} more"] if len(said) > MOST_SAID else []
    passed = [f"nothing was found on {len(judged.passed)} node{'s' if len(judged.passed) != 1 else ''}"]
    return [*said[:MOST_SAID], *more, *(passed if judged.passed else []), f"they took {event.took_s:.0f} s"]


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
