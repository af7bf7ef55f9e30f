"""Keys and values of a job in etcd.

/robust-run/<job>/leader            LeaderRecord; on the leader's lease: it goes with it
/robust-run/<job>/ledger            Ledger; stays, so that terms grow across leaders and etcd's restarts
/robust-run/<job>/state             StateHead
/robust-run/<job>/parts/<save>/<n>  a part of a state too large for one request
/robust-run/<job>/members/<id>      a member's record
"""

from __future__ import annotations

import re

import msgspec


class LeaderLedger(msgspec.Struct, frozen=True, kw_only=True):
    """The newest term ever given out for a job's name."""

    term: int
    run_id: str
    over: bool = False
    """The leader of that term has finished the run."""


class StateHead(msgspec.Struct, frozen=True, kw_only=True):
    """A saved state, or where its parts are."""

    term: int
    position: int
    size_bytes: int
    save: str = ""
    """Name of the save whose parts make up the state; empty: it is `state`."""
    state: bytes = b""


class Keys:
    """The keys of one job. A name may contain anything: what is no letter, digit or `._-` is spelled `%XX`."""

    def __init__(self, job: str) -> None:
        quoted = re.sub(
            rb"[^A-Za-z0-9._-]", lambda found: b"%%%02X" % found[0][0], job.encode(errors="surrogateescape")
        )
        root = b"/robust-run/" + quoted + b"/"
        self.leader = root + b"leader"
        self.ledger = root + b"ledger"
        self.state = root + b"state"
        self.parts = root + b"parts/"
        self.members = root + b"members/"

    def save(self, name: str) -> bytes:
        """Return the prefix of the parts of one save."""
        return self.parts + name.encode() + b"/"

    def part(self, name: str, index: int) -> bytes:
        """Return the key of one part; keys are in the order of the parts."""
        return self.save(name) + b"%06d" % index

    def member(self, name: str) -> bytes:
        """Return the key of a member's record."""
        return self.members + name.encode()

    def member_name(self, key: bytes) -> str:
        """Return whose record a key is."""
        return key[len(self.members) :].decode("utf-8", "replace")
