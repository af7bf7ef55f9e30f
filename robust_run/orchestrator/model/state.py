"""State of a job of several roles. No behaviour but small questions."""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.orchestrator.model.demand_state import Needs
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.spec import MANY, RoleSpec
from robust_run.orchestrator.model.update_words import Fate, RoleCode

Phase = Literal["new", "going", "restarting", "ending", "over"]
"""restarting: all members are being ended, to begin again. ending: the same, for good."""

Standing = Literal["held", "waits", "starting", "running", "stopping", "pausing", "done", "given_up"]
"""held: it is not wanted now (roles of `min..max`). waits: for what it depends on, or for room. running: its launcher heals it
where needed. stopping: it was told to end. pausing: its launcher failed, and is started anew in a moment. given_up: too often."""


UP: tuple[Standing, ...] = ("starting", "running", "stopping")
"""A launcher of it runs."""


class Node(msgspec.Struct):
    """A node, and what of it is used."""

    slots: int
    devices: int = 0
    used: dict[MemberName, int] = {}
    """Workers, by member."""
    devices_used: dict[MemberName, tuple[int, ...]] = {}
    guard: str = ""
    """See `NodeOffered`."""
    cpus: int = MANY
    labels: tuple[str, ...] = ()
    cpus_used: dict[MemberName, int] = {}

    @property
    def free(self) -> int:
        """Workers that fit."""
        return self.slots - sum(self.used.values())

    @property
    def free_cpus(self) -> int:
        """CPUs that no member has asked for."""
        return self.cpus - sum(self.cpus_used.values())


class Member(msgspec.Struct, kw_only=True):
    """One member."""

    name: MemberName
    standing: Standing = "waits"
    serial: int = 0
    attempt: int = 0
    generation: int = 0
    """Grows with each attempt of each launcher; what others go by."""
    ready: dict[int, str] = {}
    """Ranks that have called `ready()` in this generation, and their addresses."""
    is_ready: bool = False
    nodes: tuple[str, ...] = ()
    failed: int = 0
    """Launchers of it that failed in a row, without `STEADY_S` of running between."""
    runs_since_s: float | None = None
    until_s: float = 0.0
    """pausing: when it is started."""
    up_s: float = 0.0
    """When its newest incarnation came, and when that became ready."""
    short_since_s: float | None = None
    """Since when no node is left for it."""
    is_finished: bool = False
    """It has ended well by itself: it is not started again, whatever becomes of the job."""
    asked_s: float | None = None
    """When its launcher was last asked to start its workers again."""
    code: int | None = None
    sentence: str = ""
    version: int = 0
    """Of its role's code, which it runs; 0: not known."""
    version_before: int = 0
    seen: int = 0
    """The newest launcher that has said which code it was started with."""
    ordered: int = 0
    """The version that its launcher was told to put in place; 0: none."""
    ordered_now: bool = False
    ordered_generation: int = 0
    begins_after: int = -1
    """The generation that was there when its workers were ended for that; -1: they were not."""
    fate: Fate = ""
    """What became of the version that was ordered, or that it was started with."""


class JobState(msgspec.Struct, kw_only=True):
    """All of it. Changed in place by `core.step`."""

    phase: Phase = "new"
    members: dict[MemberName, Member] = {}
    wanted: dict[str, int] = {}
    """Members of each role that are to run."""
    nodes: dict[str, Node] = {}
    code: int = 0
    sentence: str = ""
    """Why the job ends, once it does."""
    job_restarts: int = 0
    codes: dict[str, RoleCode] = {}
    """Versions of each role's code, once known."""
    needs: dict[str, Needs] = {}
    """Of roles with `scale = "demand"`."""
    start: str = ""
    """See `JobStarted`."""
    patience_s: float | None = None
    """See `Begun`."""
    is_short: bool = False
    """It ends because no node is left for a role."""
    last_s: float = 0.0
    """When something happened last, by the clock of who leads."""

    def of(self, role: str) -> list[Member]:
        """Return the members of a role, in order."""
        return [each for name, each in self.members.items() if name.role == role]

    def idle(self, name: MemberName) -> Standing:
        """Return how a member stands that nothing runs of."""
        return "waits" if name.index < self.wanted[name.role] else "held"

    def is_done(self, role: str) -> bool:
        """Whether all that are to run have done their work, but for those that were given up."""
        standings = [member.standing for member in self.of(role)[: self.wanted.get(role, 0)]]
        return "done" in standings and all(standing in ("done", "given_up") for standing in standings)

    def is_ready(self, role: RoleSpec) -> bool:
        """Whether what depends on a role may start: enough of its members are ready, or have done their work."""
        members = self.of(role.name)[: self.wanted.get(role.name, 0)]
        ready = sum(member.is_ready or member.standing == "done" for member in members)
        return ready >= min(role.fewest, len(members) or 1)

    def any_up(self) -> bool:
        """Whether anything runs."""
        return any(member.standing in UP for member in self.members.values())
