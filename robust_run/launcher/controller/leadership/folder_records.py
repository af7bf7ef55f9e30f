"""The files of a shared folder by which leaders are known, and what they mean. Pure: names and contents in, meaning out.

    term-000007             a claim: who leads since then, or that the job is over. Never removed: it is the fence
    heartbeat-000007        replaced by the leader of that term as long as it leads; its content only has to change
    state-000007-000003     the state of the job's core as saved for the third time in that term
    members-000007-000012   some members' records, or all of them

Each term has files of its own, and each save a number of its own: a write that hung and lands late harms nothing newer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from robust_run.launcher.controller.leadership.types import CoordinatorRefused, LeaderRecord, SavedState

_TERM = re.compile(r"term-([0-9]{6,})")
_NUMBERED = re.compile(r"(state|members)-([0-9]{6,})-([0-9]{6,})")


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a term file."""

    record: LeaderRecord
    ttl_s: float
    over: bool = False
    """The job is finished: nobody leads in this term, or later."""


class LeaderHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a heartbeat file."""

    count: int
    resigned: bool = False
    """The leader has stopped: nobody has to wait for its lease to end."""


class FolderBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a members file."""

    whole: bool
    """Whether this is all of them, and earlier files are void."""
    members: dict[str, bytes | None]
    """By id; None: forgotten."""


def term_name(term: int) -> str:
    """Return the name of a claim."""
    return f"term-{term:06d}"


def heartbeat_name(term: int) -> str:
    """Return the name of a term's heartbeat."""
    return f"heartbeat-{term:06d}"


def numbered_name(kind: str, term: int, number: int) -> str:
    """Return the name of a state or members file."""
    return f"{kind}-{term:06d}-{number:06d}"


def newest_term(names: Iterable[str]) -> int:
    """Return the highest term claimed; 0: none."""
    return max((int(match[1]) for name in names if (match := _TERM.fullmatch(name))), default=0)


def numbered(names: Iterable[str], kind: str) -> list[tuple[int, int, str]]:
    """Return (term, number, name) of all files of a kind, in order."""
    matches = (_NUMBERED.fullmatch(name) for name in names)
    return sorted((int(match[2]), int(match[3]), match[0]) for match in matches if match and match[1] == kind)


def decoded_claim(data: bytes) -> Claim | None:
    """Return what a term file says; None: nothing that this version understands. The term is taken all the same."""
    try:
        return msgspec.json.decode(data, type=Claim)
    except msgspec.MsgspecError:
        return None


def decoded_state(data: bytes) -> SavedState | None:
    """Return what a state file holds; None: that nothing was saved. Raises CoordinatorRefused for anything else."""
    try:
        return msgspec.msgpack.decode(data, type=SavedState | None)
    except msgspec.MsgspecError as error:
        raise CoordinatorRefused(f"the saved state of the job is damaged: {error}; start the job anew") from error


def decoded_batch(data: bytes) -> FolderBatch:
    """Return what a members file holds. Raises CoordinatorRefused for anything else."""
    try:
        return msgspec.msgpack.decode(data, type=FolderBatch)
    except msgspec.MsgspecError as error:
        raise CoordinatorRefused(f"the saved members of the job are damaged: {error}; start the job anew") from error


def merged(batches: Iterable[FolderBatch]) -> dict[str, bytes]:
    """Return the members that remain after these batches, in the order they were put."""
    members: dict[str, bytes] = {}
    for batch in batches:
        if batch.whole:
            members = {}
        for name, record in batch.members.items():
            if record is None:
                members.pop(name, None)
            else:
                members[name] = record
    return members


class LeaderSign(msgspec.Struct, frozen=True):
    """What a candidate sees of the newest leader."""

    term: int
    beat: bytes | None

    @property
    def resigned(self) -> bool:
        """Whether the leader said that it has stopped."""
        return self._heartbeat.resigned

    @property
    def renewals(self) -> int:
        """How often it has renewed its lease."""
        return self._heartbeat.count

    @property
    def _heartbeat(self) -> LeaderHeartbeat:
        with suppress(msgspec.MsgspecError):
            if self.beat is not None:
                return msgspec.json.decode(self.beat, type=LeaderHeartbeat)
        return LeaderHeartbeat(count=0)


class LeaderSuspicion:
    """How long the newest leader has shown no sign of life, by the candidate's own clock alone."""

    def __init__(self) -> None:
        self._sign: LeaderSign | None = None
        self._since_s = 0.0

    def silent_s(self, sign: LeaderSign, asked_at_s: float, seen_at_s: float) -> float:
        """Return for how long nothing but this sign can have been there to see.

        It was asked for after `asked_at_s` and was known at `seen_at_s`: if this host was stopped in between, that counts
        against the suspicion.
        """
        if sign != self._sign:
            self._sign, self._since_s = sign, seen_at_s
        return max(0.0, asked_at_s - self._since_s)
