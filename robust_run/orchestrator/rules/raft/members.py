"""Which of the voters count. Pure.

Of three voters one may be lost. If that one counted for ever, the loss of a second, hours later, would end a job that could go
on. So a leader that has not heard a voter for `LOST_S`, and has a majority, takes it out: an entry of the log says who counts
from there, and a voter goes by the newest such entry that it has, committed or not (Ongaro's thesis, section 4.1, one voter at
a time: two majorities of such neighbours always share one). Of two voters none is a majority without the other, so two are
never left: then the leader alone counts, as in a job of two nodes. Who comes back, and has the whole log again, counts again as
soon as there are three.

A node that is told to leave says so. Its voter is taken out at once, and stays until it is: otherwise two of three that leave
at the same time would take the majority with them.

What looks like a voter that is lost: one that stands still, or is cut off, for a while. Taking it out does it no harm.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from robust_run.orchestrator.model.succession_words import FEWEST_NODES, Entry
from robust_run.orchestrator.rules.raft.state import HERE_S, ReplicaState

LOST_S = 45.0

_encoder = msgspec.msgpack.Encoder()
_names = msgspec.msgpack.Decoder(tuple[str, ...])


def counting(entries: Iterable[Entry]) -> list[tuple[int, tuple[str, ...]]]:
    """Return from which entry on who counts."""
    return [(entry.index, _names.decode(entry.data)) for entry in entries if entry.what == "voters"]


def next_entry(state: ReplicaState, now_s: float) -> Entry | None:
    """Return what a leader says next of who counts; None: it stays so, or the last change is not committed yet."""
    at = state.counting[-1][0] if state.counting else 0
    is_settled = state.committed >= at and state.term_at(state.committed) == state.term
    if len(state.seats) < FEWEST_NODES or not is_settled or not state.may_act(now_s):
        return None
    voters = state.voters
    lost = {
        name
        for name, other in state.others.items()
        if other.is_leaving or now_s - max(other.acked_s, state.since_s) >= LOST_S
    }
    back = {
        name
        for name, other in state.others.items()
        if other.is_here and now_s - other.acked_s < HERE_S and other.match >= state.committed
    }
    wanted = {
        name for name in state.seats if name == state.name or ((name in back or name in voters) and name not in lost)
    }
    wanted = wanted if len(wanted) >= FEWEST_NODES else {state.name}
    out = sorted((name for name in voters if name not in wanted), key=lambda name: name not in lost)
    more = [name for name in state.seats if name in wanted and name not in voters]
    if out:
        voters = tuple(name for name in voters if name != out[0])
    elif more:
        voters = (*voters, more[0])
    else:
        return None
    return Entry(state.last + 1, state.term, "voters", "", _encoder.encode(voters))
