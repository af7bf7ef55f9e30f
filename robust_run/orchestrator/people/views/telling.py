"""What happens in a job of several roles, in words. Pure, but for what was told before."""

from __future__ import annotations

from collections.abc import Iterator

from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.state import UP, JobState
from robust_run.orchestrator.model.words import (
    Asked,
    Begun,
    Event,
    NodeGone,
    NodeOffered,
    WorldEnded,
    WorldFailed,
    WorldRuns,
    code_text,
)


class Teller:
    """Tells each thing once: a leader that is started again reads in members' journals what an earlier one has read."""

    def __init__(self) -> None:
        self._generations: dict[MemberName, int] = {}
        self._failures: dict[MemberName, tuple[int, int]] = {}

    def is_old(self, state: JobState, event: Event) -> bool:
        """Whether an event is the end of a launcher that had ended before, with its node for one. `state`: before the event."""
        if not isinstance(event, WorldEnded):
            return False
        member = state.members.get(event.member)
        return member is None or member.serial != event.serial or member.standing not in UP

    def words(self, state: JobState, event: Event, phase: str, *, is_said: bool) -> Iterator[str]:
        """Yield what happened. `state`: after the event. `phase`: before it. `is_said`: the end of a launcher is told already."""
        match event:
            case Begun():
                yield "the job begins"
            case NodeOffered():
                yield f"{event.node} is there"
            case NodeGone():
                yield f"{event.node} is gone" + (f": {event.why}" if event.why else "")
            case WorldRuns() if event.member in state.members:
                member = state.members[event.member]
                is_now = (member.serial, member.attempt) == (event.serial, event.attempt)
                if is_now and self._generations.get(event.member) != member.generation:
                    self._generations[event.member] = member.generation
                    yield f"{event.member} runs (generation {member.generation})"
            case WorldFailed():
                if self._failures.get(event.member, (0, -1)) < (event.serial, event.attempt):
                    self._failures[event.member] = (event.serial, event.attempt)
                    how = "begins again" if event.was_asked else "failed"
                    yield f"{event.member} {how}: {event.sentence or 'its launcher does not say why'}"
            case WorldEnded() if not is_said:
                yield (
                    f"{event.member} is done"
                    if event.code == 0
                    else f"{event.member} ended with {code_text(event.code)}"
                )
            case Asked(what="stop"):
                yield f"{event.by or 'somebody'} asks for the end of the job"
            case _:
                pass
        if state.phase != phase and state.phase in ("ending", "over"):
            how = f": {state.sentence}" if state.sentence else ""
            yield f"the job {'ends' if state.phase == 'ending' else 'is over'}{how}"
