"""Events and orders about node checks and the recovery ladder: what is asked of agents, what they answer, what the core decides.

Results are much, and for the controller alone (`CheckAnswer`); the journal gets what they say (`Diagnosed`, `StandbyChecked`).
No behaviour.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.health.checks.types import CheckJudgement, CheckName, CheckProgramOrder, NodeFacts, Said

# --- orders to an agent ---------------------------------------------------------------------------------------------


class TellFacts(msgspec.Struct, frozen=True, tag="tell_facts", kw_only=True):
    """Say what a plan of checks must know of this node."""

    number: int
    """Of the question: an answer names it."""


class OpenPlace(msgspec.Struct, frozen=True, tag="open_place", kw_only=True):
    """Listen for the processes of one round of checks; then deliver `PlaceOpened`."""

    number: int


class RunChecks(msgspec.Struct, frozen=True, tag="run_checks", kw_only=True):
    """Have a runner carry out these orders, at the same time; what it says is delivered as `ChecksSaid`. One at a time: what an
    earlier one does is ended."""

    number: int
    orders: tuple[CheckProgramOrder, ...]
    to_come: tuple[CheckName, ...] = ()
    """What is planned for this node afterwards: its runner stays for that."""


class EndChecks(msgspec.Struct, frozen=True, tag="end_checks", kw_only=True):
    """End what runs of checks here."""


CheckOrder = TellFacts | OpenPlace | RunChecks | EndChecks

# --- what an agent answers: delivered, not reported -----------------------------------------------------------------


class FactsTold(msgspec.Struct, frozen=True, tag="facts_told", kw_only=True):
    """What this node has."""

    number: int
    facts: NodeFacts


class PlaceOpened(msgspec.Struct, frozen=True, tag="place_opened", kw_only=True):
    """This node listens for a round of checks; port 0: it cannot."""

    number: int
    address: str = ""
    port: int = 0


class ChecksSaid(msgspec.Struct, frozen=True, tag="checks_said", kw_only=True):
    """What a runner said since."""

    number: int
    said: tuple[Said, ...] = ()
    is_over: bool = False
    """All is carried out, and all that was started for it has ended."""
    problem: str = ""
    """Why it could not be started."""


CheckAnswer = FactsTold | PlaceOpened | ChecksSaid

# --- events ---------------------------------------------------------------------------------------------------------


class Diagnosed(msgspec.Struct, frozen=True, tag="diagnosed", kw_only=True):
    """The checks that the ladder wanted after this attempt are over."""

    attempt: int
    judgement: CheckJudgement
    took_s: float = 0.0
    at_unix_s: float = 0.0


class StandbyChecked(msgspec.Struct, frozen=True, tag="standby_checked", kw_only=True):
    """A node that no attempt needed was checked before it is counted on."""

    node: str
    name: str
    admitted: bool
    rule: str
    sentence: str
    at_unix_s: float = 0.0


class ReplayStepped(msgspec.Struct, frozen=True, tag="replay_stepped", kw_only=True):
    """All ranks of a node made the steps that a replay asks for."""

    attempt: int
    node: str = ""


CheckEvent = Diagnosed | StandbyChecked | ReplayStepped

# --- actions --------------------------------------------------------------------------------------------------------

RungName = Literal["diagnose", "evict", "reattempt", "rollback", "swap", "replay", "stop", "settled"]


class Diagnose(msgspec.Struct, frozen=True, tag="diagnose", kw_only=True):
    """Check these nodes, by themselves and against each other; then tell `Diagnosed`."""

    attempt: int
    nodes: tuple[str, ...]
    checks: tuple[CheckName, ...] = ()
    """Empty: all."""
    seconds: float = 3.0


class Decided(msgspec.Struct, frozen=True, tag="decided", kw_only=True):
    """What the ladder decided, and why: for the journal and for people. See `health.ladder.types.LadderDecision`."""

    attempt: int
    number: int
    episode: int
    rung: RungName
    rule: str
    sentence: str
    nodes: tuple[str, ...] = ()
    over_evicted: tuple[str, ...] = ()
    version: str = ""


CheckAction = Diagnose | Decided
