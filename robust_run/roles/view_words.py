"""What people are shown of a job of several roles. No behaviour."""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.roles.queue_words import Counts


class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    """A member, as people are shown it."""

    name: str
    state: str
    generation: int = 0
    ready: bool = False
    pid: int = 0
    """Of its launcher; 0: none runs, or it is not known."""
    starts: int = 0
    """Launchers of it there were."""
    restarts: int = 0
    """How often its workers were started after the first time."""
    nodes: tuple[str, ...] = ()
    run: str = ""
    """Its run directory, below that of the job: what `robust status` is given."""
    sentence: str = ""
    """Why it ended last, or waits."""
    idle: float | None = None
    """Share of its time that it waited at queues, since its workers came; None: not known."""


class RoleView(msgspec.Struct, frozen=True, kw_only=True):
    """A role, as people are shown it."""

    name: str
    restart: str
    wanted: int
    fewest: int
    most: int
    members: tuple[MemberView, ...]
    idle: float | None = None
    """Mean of its members."""
    code: str = ""
    """How the newest version of its code stands, and with how many members; empty: it has the one that it began with."""
    acts: tuple[str, ...] = ()
    """What was done last for its demand, and why."""


class WaitStep(msgspec.Struct, frozen=True, kw_only=True):
    """One worker in a chain of waits across roles."""

    worker: str
    """As queues know it: `rollout/3:0`."""
    does: Literal["waits", "works", "rests", "is_away"]
    """waits: at a queue. works: on items. rests: it does nothing that queues know of. is_away: its member does not run."""
    for_s: float = 0.0
    """For how long; of one that rests or is away, since it last did what it is waited for."""
    queue: str = ""
    """Where it waits; of one that works, where its items are from."""
    what: str = ""
    """What it waits for: `an item` or `room`; of one that is away, how its member stands."""
    items: int = 0
    """How many it works on."""


class WaitChain(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that has waited for long at a queue, whom it waits for, and so on: each waits for the next."""

    steps: tuple[WaitStep, ...]
    end: str = ""
    """What comes after the last of them, where that is nobody."""
    circle: int | None = None
    """The last of them waits for this one: from it on, they wait for each other. None: there is no circle."""
    hint: str = ""
    """What to do about it, where the queue itself is the reason."""


class RolesView(msgspec.Struct, frozen=True, kw_only=True):
    """A job of several roles, as people are shown it."""

    name: str
    phase: str
    """new, going, restarting, ending, over."""
    is_led: bool
    """Whether its leader answers; else this is what its journal says."""
    code: int = 0
    sentence: str = ""
    roles: tuple[RoleView, ...] = ()
    queues: dict[str, Counts] = {}
    waits: tuple[str, ...] = ()
    """Long waits across roles, a line each: who waits, and for whom."""
    chains: tuple[WaitChain, ...] = ()
    """The same, step by step."""
    queue_items: int = 0
    """So many items fit into a queue, but for kept ones."""
    queue_bytes: int = 0
    """And so many bytes, of all."""
    node: str = ""
    """The node that leads: its run directory is this one."""
