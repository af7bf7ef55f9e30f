"""Messages of etcd's version 3 gateway, as far as it is needed: JSON, with bytes as base64 and numbers as text.

Fields at their default are left out on both sides, as protobuf's JSON mapping has it.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class EtcdHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Comes with every answer."""

    revision: int = 0
    """Counts changes of the whole store."""
    raft_term: int = 0
    """Counts elections among etcd's own members."""


class KeyValue(msgspec.Struct, frozen=True, kw_only=True):
    """One key as it is."""

    key: bytes
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0


class Range(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ask for a key, or all from `key` up to before `range_end`."""

    key: bytes
    range_end: bytes = b""
    limit: int = 0
    revision: int = 0
    """As the store was then; 0: now."""
    serializable: bool = False
    """Whether what one member remembers will do, though it may be old."""


class RangeReply(msgspec.Struct, frozen=True, kw_only=True):
    """Keys in order."""

    header: EtcdHeader = EtcdHeader()
    kvs: tuple[KeyValue, ...] = ()
    more: bool = False
    """Whether `limit` cut it short."""


class Put(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Set a key."""

    key: bytes
    value: bytes = b""
    lease: int = 0
    """The key goes when this lease ends; 0: it stays."""
    ignore_value: bool = False
    """Keep the value: only the revision changes."""
    ignore_lease: bool = False


class DeleteRange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Remove a key, or all from `key` up to before `range_end`."""

    key: bytes
    range_end: bytes = b""


class Compare(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A condition: the key's revision of this kind equals that number. 0: there is no such key."""

    key: bytes
    target: Literal["CREATE", "MOD"]
    create_revision: int = 0
    mod_revision: int = 0


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of three."""

    request_range: Range | None = None
    request_put: Put | None = None
    request_delete_range: DeleteRange | None = None


class OperationReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to an operation; only reading says something."""

    response_range: RangeReply | None = None


class Txn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """If all conditions hold do one thing, else the other; at once."""

    compare: tuple[Compare, ...] = ()
    success: tuple[Operation, ...] = ()
    failure: tuple[Operation, ...] = ()


class TxnReply(msgspec.Struct, frozen=True, kw_only=True):
    """Which branch was taken and what it read."""

    header: EtcdHeader = EtcdHeader()
    succeeded: bool = False
    responses: tuple[OperationReply, ...] = ()

    def key_value(self, index: int) -> KeyValue | None:
        """Return the key that the operation at this index asked for; None: there is none."""
        reply = self.responses[index].response_range if index < len(self.responses) else None
        return reply.kvs[0] if reply is not None and reply.kvs else None


class LeaseGrant(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for a lease of so many seconds."""

    ttl: int = msgspec.field(name="TTL")


class LeaseGrantReply(msgspec.Struct, frozen=True, kw_only=True):
    """The lease; the server may have made it longer."""

    id: int = msgspec.field(name="ID")
    ttl: int = msgspec.field(name="TTL")


class LeaseKeepAlive(msgspec.Struct, frozen=True, kw_only=True):
    """Prolong a lease."""

    id: int = msgspec.field(name="ID")


class LeaseAlive(msgspec.Struct, frozen=True, kw_only=True):
    """How long the lease lasts from now; 0: there is no such lease any more."""

    header: EtcdHeader = EtcdHeader()
    ttl: int = msgspec.field(name="TTL", default=0)


class LeaseKeepAliveReply(msgspec.Struct, frozen=True, kw_only=True):
    """The first item of a stream of answers."""

    result: LeaseAlive


class LeaseRevoke(msgspec.Struct, frozen=True, kw_only=True):
    """End a lease and remove its keys."""

    id: int = msgspec.field(name="ID")


class Empty(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of which nothing is needed."""


class FailureInStream(msgspec.Struct, frozen=True, kw_only=True):
    """Why a stream of answers ended."""

    message: str = ""
    grpc_code: int = 0


class EtcdFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why etcd refused, in its own words."""

    message: str = ""
    code: int = 0
    """Of gRPC."""
    error: str | FailureInStream = ""
    """The same once more; of a stream's answer, the only place."""

    @property
    def text(self) -> str:
        """Return etcd's words."""
        return self.message or (self.error if isinstance(self.error, str) else self.error.message)

    @property
    def grpc_code(self) -> int:
        """Return the kind of failure by gRPC's count; 0: unknown."""
        return self.code or (0 if isinstance(self.error, str) else self.error.grpc_code)


def prefix_end(prefix: bytes) -> bytes:
    """Return the key just after all that begin with `prefix`, which ends in an ASCII character."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))
