"""Events and records of code versions: what a version is and became, what happens to versions, what nodes are told.

The rules are in `core.code_ledger`, what they mean for a job in `core.versions`. No behaviour.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class CodeVersion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of what a job's workers run: code, arguments, variables. See `code_versions`."""

    number: int
    """From 1, the version the job was started with."""
    tree: str
    """Id of its code (see `records.code.tree_store`); empty: the user's folder as it is."""
    taken: str = ""
    """Id of what its source held before it was merged with others' changes; empty: the same."""
    parents: tuple[int, ...] = ()
    """The versions it was made from: the newest before it first, then where the change began, if that is another."""
    settings: dict[str, str] = {}
    """Arguments that differ from those the job was started with (`--set`)."""
    env: dict[str, str] = {}
    """Variables likewise (`--env`)."""
    by: str = ""
    at_unix_s: float = 0.0
    note: str = ""
    """Why, in the words of its author."""
    source: str = ""
    """`host:folder` it was captured from, or `host:folder@commit`."""
    commit: str = ""
    slower: bool = False
    """Its steps may take longer than those before: a larger batch, more accumulation."""
    again: bool = False
    """The same was rolled back, and its author holds that it was not at fault."""
    summary: str = ""
    """What changed, as a clause: `train.py +3 -1, lr=1e-4`."""
    left_out: tuple[str, ...] = ()
    """What its source has that is called code but is not taken, with the reason: `model.py is larger than 1024 KiB`."""


Fate = Literal["trusted", "pending", "probation", "merged", "rolled_back"]
"""trusted: it survived its probation, or was there first. pending: runs from the next attempt on. probation: it runs, and is
suspect. merged: part of a later one before it was proven. rolled_back: it failed, or was taken back."""


class CodeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version and what became of it."""

    version: CodeVersion
    fate: Fate
    why: str = ""
    first_attempt: int = -1
    """The first that ran it; -1: none."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All versions of a job, and which run. Changed by `core.code_ledger` alone."""

    records: tuple[CodeRecord, ...] = ()
    """By number, from 1."""
    running: int = 0
    """Of the newest attempt, and of the next where nothing is pending; 0: none was captured."""
    pending: int = 0
    due_unix_s: float = 0.0
    """When what is pending is put in place even without a failure; 0: never."""
    trusted: int = 0
    """The newest that proved itself."""
    usual_step_s: float = 0.0
    """A step of the trusted version, on the slowest node; 0: not known."""
    survived: dict[str, float] = {}
    """Nodes on which the newest attempt survived its first steps, and how long one took."""
    fewest_steps: int = -1
    """Of those nodes, as they said; -1: none has."""
    makes_steps: bool = False
    """Whether a trusted version made steps on every node: then a new one is not trusted before it has made some too."""


class CodeUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What of a version the nodes of an attempt must know."""

    number: int
    tree: str = ""
    settings: dict[str, str] = {}
    env: dict[str, str] = {}
    on_probation: bool = False
    is_only: bool = False
    """There never was another."""
    makes_steps: bool = False
    """As `Ledger` has it."""
    rolled_back: tuple[str, ...] = ()
    """Versions that are not to be trusted, nor what they wrote: `3-a1b2c3d4e5`, as ROBUST_CODE_VERSION has it."""


# --- events ---------------------------------------------------------------------------------------------------------


class CodeCaptured(msgspec.Struct, frozen=True, tag="code_captured", kw_only=True):
    """What the job was started with is on record, and kept."""

    version: CodeVersion


class UpdateStaged(msgspec.Struct, frozen=True, tag="update_staged", kw_only=True):
    """A version that was checked is to run from the next attempt on."""

    version: CodeVersion
    now: bool = False
    """End the attempt that runs for it."""
    due_unix_s: float = 0.0
    """End it then; 0: wait for a failure, however long."""


class UpdateRefused(msgspec.Struct, frozen=True, tag="update_refused", kw_only=True):
    """A user's update was not taken: for the record."""

    reason: str
    by: str = ""
    note: str = ""


class UpdateDue(msgspec.Struct, frozen=True, tag="update_due", kw_only=True):
    """The time has come for an update that no failure has come for."""

    number: int


class RollbackAsked(msgspec.Struct, frozen=True, tag="rollback_asked", kw_only=True):
    """A user wants an earlier version back, at once."""

    to: int = 0
    """0: the one that was trusted before."""
    reason: str = ""
    by: str = "operator"


class StepsSurvived(msgspec.Struct, frozen=True, tag="steps_survived", kw_only=True):
    """All ranks of a node have made so many steps of an attempt as prove a version, or lived so long as does."""

    attempt: int
    node: str = ""
    steps: int
    step_s: float = 0.0
    """Mean time of a step of the slowest rank; 0: not known."""


class NotFinite(msgspec.Struct, frozen=True, tag="not_finite", kw_only=True):
    """A parameter of a rank's model is no number any more."""

    attempt: int
    node: str = ""
    rank: int
    step: int


class CodeLacking(msgspec.Struct, frozen=True, tag="code_lacking", kw_only=True):
    """A node cannot put the version of an attempt in place."""

    attempt: int
    node: str = ""
    number: int
    message: str


# --- an order -------------------------------------------------------------------------------------------------------


class StageCode(msgspec.Struct, frozen=True, tag="stage_code", kw_only=True):
    """Have the code of a version here, for an attempt to come."""

    tree: str


CodeEvent = (
    CodeCaptured | UpdateStaged | UpdateRefused | UpdateDue | RollbackAsked | StepsSurvived | NotFinite | CodeLacking
)
