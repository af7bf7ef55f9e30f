"""Health view of a job's nodes: what is wrong, and what no sensor can see. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from robust_run.launcher.core.diagnosis import blindness
from robust_run.launcher.core.state import JobState, Member

#: What lasts is said again within an hour; what only happened is news for as long.
SHOWN_S = 3700.0
#: Sensors of one node that are named.
MOST_SENSORS = 3


class FindingView(msgspec.Struct, frozen=True, kw_only=True):
    """Something a sensor says of a node, and has not taken back."""

    node: str
    name: str
    """What it is: `network.link_down`."""
    text: str
    at_unix_s: float
    """When it was last said."""
    rung: str = ""
    """What its rule asks for."""


class BlindView(msgspec.Struct, frozen=True, kw_only=True):
    """A node of which something is not watched any more."""

    node: str
    text: str
    """Which sensors have stopped, and why."""
    at_unix_s: float
    """When the newest of them was last said to."""


def findings(state: JobState, now_unix_s: float) -> tuple[FindingView, ...]:
    """Return what sensors said lately and did not take back, of hosts that are not evicted, but for those that hang."""
    return tuple(
        FindingView(
            node=sign.name,
            name=sign.event.name,
            text=f"{sign.event.subject}: {sign.event.detail}" if sign.event.subject else sign.event.detail,
            at_unix_s=sign.at_unix_s,
            rung=sign.rung,
        )
        for sign in state.health.active.values()
        if now_unix_s - sign.at_unix_s <= SHOWN_S
        and sign.name not in state.evicted
        and not sign.event.name.endswith(blindness.STOPPED)
    )


def blind(state: JobState, members: Iterable[Member]) -> tuple[BlindView, ...]:
    """Return what is not watched any more on those of the members that are here, one for each, while the job lasts."""
    if state.finish is not None:
        return ()
    known = blindness.of_nodes(state.health)
    found = []
    for member in members:
        signs = known.get(member.info.id, ())
        if not signs or not member.present or member.info.name in state.evicted:
            continue
        said = [blindness.words(sign.event) for sign in signs[-MOST_SENSORS:]]
        more = f"; and {len(signs) - len(said)} more" if len(signs) > len(said) else ""
        at_unix_s = max(sign.at_unix_s for sign in signs)
        found.append(BlindView(node=member.info.name, text="; ".join(said) + more, at_unix_s=at_unix_s))
    return tuple(found)
