"""Stories of jobs of several roles: what happens, and what the core does."""

from __future__ import annotations

from typing import Any

from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.spec import RoleSpec, RolesSpec
from robust_run.orchestrator.model.state import JobState
from robust_run.orchestrator.model.words import (
    Action,
    Begun,
    Changed,
    Event,
    Finish,
    NodeOffered,
    RankReady,
    SayLine,
    StartMember,
    StopMember,
    WakeAt,
    WorldEnded,
    WorldRuns,
)
from robust_run.orchestrator.rules.core import step

TRAINER = MemberName("trainer", 0)


def rollout(index: int) -> MemberName:
    """Return a name."""
    return MemberName("rollout", index)


def role(name: str, **more: Any) -> RoleSpec:
    """Return a role; where it has several members, each is a world."""
    if more.get("members", 1) > 1 or more.get("most", 1) > 1:
        more = {"restart": "alone", "most": more.get("members", 1), "fewest": more.get("members", 1), **more}
    return RoleSpec(name=name, command=(f"{name}.py",), **more)


class Story:
    """A job that things happen to; what it does is kept."""

    def __init__(self, *roles: RoleSpec, slots: int = 1000, devices: int = 0) -> None:
        self.spec = RolesSpec(name="job", roles=roles)
        self.state = JobState()
        self.now_s = 0.0
        self.did: list[Action] = []
        self.told: list[tuple[Event, float]] = []
        self.tell(NodeOffered(node="here", slots=slots, devices=devices), Begun())

    def tell(self, *events: Event, after_s: float = 0.0) -> list[Action]:
        """Let things happen; return what was done."""
        self.now_s += after_s
        found: list[Action] = []
        for event in events:
            self.told.append((event, self.now_s))
            found += step(self.spec, self.state, event, self.now_s)
        self.did += found
        return found

    def runs(self, *names: MemberName, attempt: int = 0) -> list[Action]:
        """Members' workers run."""
        return self.tell(*(WorldRuns(member=n, serial=self.serial(n), attempt=attempt) for n in names))

    def ends(self, name: MemberName, code: int, after_s: float = 0.0, why: str = "") -> list[Action]:
        """A member's launcher ends."""
        return self.tell(WorldEnded(member=name, serial=self.serial(name), code=code, sentence=why), after_s=after_s)

    def ready(self, name: MemberName, rank: int = 0, attempt: int = 0, address: str = "here:1") -> list[Action]:
        """A rank says that it is ready."""
        event = RankReady(member=name, serial=self.serial(name), rank=rank, attempt=attempt, address=address)
        return self.tell(event)

    def serial(self, name: MemberName) -> int:
        """Return which launcher of a member is the newest."""
        return self.state.members[name].serial

    def standing(self, name: MemberName) -> str:
        """Return how a member stands."""
        return self.state.members[name].standing


def started(actions: list[Action]) -> list[str]:
    """Return who was started."""
    return [str(action.member) for action in actions if isinstance(action, StartMember)]


def stopped(actions: list[Action]) -> list[str]:
    """Return who was told to end."""
    return [str(action.member) for action in actions if isinstance(action, StopMember)]


def finish(actions: list[Action]) -> Finish | None:
    """Return the end of the job, if it came."""
    return next((action for action in actions if isinstance(action, Finish)), None)


def acts(actions: list[Action]) -> list[Action]:
    """Return what was done to anybody, without what was said and told."""
    return [action for action in actions if not isinstance(action, (Changed, SayLine, WakeAt))]
