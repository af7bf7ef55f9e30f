"""The words of code updates of roles: what is asked for, what members say, what they are told. No behaviour.

A role has a ledger of versions as a job of one world has (`launcher.model.code_events`); numbers are the role's. Each launcher of
a member has its own ledger below that, with other numbers: it puts a version in place, proves it and rolls it back as ever.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.launcher.model.code_events import CodeVersion, Ledger
from robust_run.orchestrator.model.names import MemberName

Fate = Literal["", "pending", "probation", "trusted", "rolled_back", "refused"]
"""What became of a version at one member, says its launcher. refused: it cannot have it."""


class RoleCode(msgspec.Struct, kw_only=True):
    """The versions of one role, and how the newest spreads. Changed in place by `updates.rules`."""

    ledger: Ledger = Ledger()
    is_rolling: bool = False
    """Members are put on the version that runs, one after the other. Else each takes it up when it fails."""
    due_s: float = 0.0
    """When what waits for failures spreads without them; 0: never."""
    wake_s: float = 0.0
    """The next moment that was asked for."""


class CodeSeen(msgspec.Struct, frozen=True, kw_only=True, tag="code_seen"):
    """A launcher has captured the code that it was started with."""

    member: MemberName
    serial: int
    version: CodeVersion


class CodeFate(msgspec.Struct, frozen=True, kw_only=True, tag="code_fate"):
    """What became of a version at a member."""

    member: MemberName
    serial: int
    number: int
    fate: Fate
    why: str = ""
    begins: bool = False
    """Its workers are ended for it, and begin anew: those that are ready now may be the old ones."""


class CodeLost(msgspec.Struct, frozen=True, kw_only=True, tag="code_lost"):
    """The code of a version cannot be had any more: who had it is gone."""

    role: str
    number: int
    why: str


class UpdateAsked(msgspec.Struct, frozen=True, kw_only=True, tag="update_asked"):
    """A version that was checked, and whose code is here, is to reach the members of a role."""

    role: str
    version: CodeVersion
    now: bool = False
    """One after the other, at once. Else when they fail."""
    due_s: float = 0.0


class TakeBackAsked(msgspec.Struct, frozen=True, kw_only=True, tag="take_back_asked"):
    """An earlier version of a role is wanted back."""

    role: str
    to: int = 0
    """0: the one that was trusted before."""
    why: str = ""


class UpdateMember(msgspec.Struct, frozen=True, kw_only=True, tag="update_member"):
    """Have a member's launcher put a version in place."""

    member: MemberName
    serial: int
    version: CodeVersion
    now: bool = False
    """End its attempt for it; else at its next failure."""
