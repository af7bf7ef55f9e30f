"""What a leader holds in etcd: a lease, and its key on it. Everything that it writes is conditional on that very key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from robust_run.clock import Clock
from robust_run.launcher.controller.leadership.etcd_client import Transport
from robust_run.launcher.controller.leadership.etcd_keys import Keys, LeaderLedger, StateHead
from robust_run.launcher.controller.leadership.etcd_messages import (
    Compare,
    DeleteRange,
    Empty,
    LeaseGrant,
    LeaseGrantReply,
    LeaseKeepAlive,
    LeaseKeepAliveReply,
    LeaseRevoke,
    Operation,
    Put,
    Range,
    RangeReply,
    Txn,
    TxnReply,
    prefix_end,
)
from robust_run.launcher.controller.leadership.types import (
    CoordinatorRefused,
    CoordinatorUnreachable,
    LeaderRecord,
    LostLeadership,
)

PART_BYTES = 512 << 10
"""Of one request; etcd takes 1.5 MiB."""
MOST_OPERATIONS = 100
"""In one transaction; etcd takes 128."""
FINISHED_S = 3600
"""How long etcd remembers that a run is over, for candidates that were cut off when it ended."""
WRITE_S = 10.0
LEASE_ENDED = "requested lease not found"
"""What etcd says when it refuses something because of that."""

Record = TypeVar("Record", LeaderRecord, LeaderLedger)

_RENEWAL_SHARE = 4
"""A renewal gives up after this part of its lease, so that another can follow."""
_TRIES = 4


class EtcdHold:
    """The lease and the key of one term. `revision` is the one at which the key was made: no other leader's has it."""

    def __init__(
        self,
        transport: Transport,
        keys: Keys,
        record: LeaderRecord,
        lease: LeaseGrantReply,
        revision: int,
        clock: Clock,
    ) -> None:
        self._transport = transport
        self._keys = keys
        self._record = record
        self._lease = lease
        self._made = revision
        self._touched = revision
        """Revision of our latest write. Each write names it, so that one that got lost and lands late changes nothing."""
        self._clock = clock
        self._writing = asyncio.Lock()
        self._saves = 0

    async def renew(self, until_s: float) -> None:
        """See Hold. Counts only if etcd's majority, asked afterwards, has had no election since.

        A member of etcd that is cut off from the majority still answers keepalives for a moment, and they mean nothing then.
        """
        alive = await self._transport.call(
            "/v3/lease/keepalive", LeaseKeepAlive(id=self._lease.id), LeaseKeepAliveReply, self._rest_s(until_s)
        )
        if alive.result.ttl <= 0:
            raise LostLeadership(f"etcd has ended the lease of term {self._record.term}")
        seen = await self._transport.call(
            "/v3/kv/range", Range(key=self._keys.leader), RangeReply, self._rest_s(until_s)
        )
        if not seen.kvs or seen.kvs[0].create_revision != self._made:
            raise LostLeadership(self._who_leads(seen.kvs[0].value if seen.kvs else b""))
        if alive.result.header.raft_term != seen.header.raft_term:
            raise CoordinatorUnreachable("etcd held an election during the renewal; it does not count")

    async def save(self, position: int, state: bytes) -> None:
        """See Hold."""
        async with self._writing:
            self._saves += 1
            name = f"{self._record.term}.{self._saves}"
            head = StateHead(term=self._record.term, position=position, size_bytes=len(state))
            if len(state) <= PART_BYTES:
                head = msgspec.structs.replace(head, state=state)
            else:
                head = msgspec.structs.replace(head, save=name)
                for index, start in enumerate(range(0, len(state), PART_BYTES)):
                    part = Put(key=self._keys.part(name, index), value=state[start : start + PART_BYTES])
                    await self._write(Operation(request_put=part))
            ours, all_parts = self._keys.save(name), self._keys.parts
            await self._write(
                Operation(request_put=Put(key=self._keys.state, value=msgspec.msgpack.encode(head))),
                Operation(request_delete_range=DeleteRange(key=all_parts, range_end=ours)),
                Operation(request_delete_range=DeleteRange(key=prefix_end(ours), range_end=prefix_end(all_parts))),
            )

    async def put_members(self, members: Mapping[str, bytes | None]) -> None:
        """See Hold."""
        async with self._writing:
            for operations in _batches(self._keys, members):
                await self._write(*operations)

    async def release(self, finished: bool) -> None:
        """See Hold."""
        if finished:
            lease = await self._transport.call("/v3/lease/grant", LeaseGrant(ttl=FINISHED_S), LeaseGrantReply, WRITE_S)
            ledger = LeaderLedger(term=self._record.term, run_id=self._record.run_id, over=True)
            async with self._writing:
                await self._write(
                    Operation(request_put=Put(key=self._keys.ledger, value=encoded(ledger), lease=lease.id)),
                    *forget(self._keys),
                )
        await revoke(self._transport, self._lease.id, WRITE_S)

    async def _write(self, *operations: Operation) -> None:
        """Carry out operations if, and only if, this is still the leader and nothing of ours came in between."""
        leader = self._keys.leader
        touch = Operation(request_put=Put(key=leader, ignore_value=True, ignore_lease=True))
        for _ in range(_TRIES):
            conditions = (
                Compare(key=leader, target="CREATE", create_revision=self._made),
                Compare(key=leader, target="MOD", mod_revision=self._touched),
            )
            look = Operation(request_range=Range(key=leader))
            request = Txn(compare=conditions, success=(touch, *operations), failure=(look,))
            reply = await self._transport.call("/v3/kv/txn", request, TxnReply, WRITE_S)
            if reply.succeeded:
                self._touched = reply.header.revision
                return
            now = reply.key_value(0)
            if now is None or now.create_revision != self._made:
                raise LostLeadership(self._who_leads(now.value if now else b""))
            self._touched = now.mod_revision  # a write that seemed lost had arrived
        raise CoordinatorUnreachable("writes to etcd that seemed lost keep arriving; try again")

    def _rest_s(self, until_s: float) -> float:
        return max(0.0, min(until_s - self._clock.monotonic_s(), self._lease.ttl / _RENEWAL_SHARE))

    def _who_leads(self, value: bytes) -> str:
        other = decoded_leader(value) if value else None
        who = f"{other.host} leads with term {other.term}" if other else "nobody leads"
        return f"term {self._record.term} is over: by etcd, {who}"


def _batches(keys: Keys, members: Mapping[str, bytes | None]) -> Iterator[list[Operation]]:
    """Cut changes of members into transactions that etcd takes."""
    batch: list[Operation] = []
    size = 0
    for name, record in members.items():
        size += len(record or b"")
        if batch and (len(batch) >= MOST_OPERATIONS or size > PART_BYTES):
            yield batch
            batch, size = [], len(record or b"")
        key = keys.member(name)
        if record is None:
            batch.append(Operation(request_delete_range=DeleteRange(key=key)))
        else:
            batch.append(Operation(request_put=Put(key=key, value=record)))
    if batch:
        yield batch


def forget(keys: Keys) -> tuple[Operation, ...]:
    """Return the operations that remove what was saved for a successor."""
    folders = (keys.parts, keys.members)
    return (
        Operation(request_delete_range=DeleteRange(key=keys.state)),
        *(Operation(request_delete_range=DeleteRange(key=key, range_end=prefix_end(key))) for key in folders),
    )


async def revoke(transport: Transport, lease: int, timeout_s: float) -> None:
    """End a lease; that it has ended already is no error. Raises CoordinatorUnreachable."""
    try:
        await transport.call("/v3/lease/revoke", LeaseRevoke(id=lease), Empty, timeout_s)
    except CoordinatorRefused as error:
        if LEASE_ENDED not in str(error):
            raise


def encoded(value: msgspec.Struct) -> bytes:
    """Return a record as etcd keeps it: text, so that people can read it with etcdctl."""
    return msgspec.json.encode(value)


def decoded_leader(data: bytes) -> LeaderRecord:
    """Return a leader's record. Raises CoordinatorRefused for anything else."""
    return _decoded(data, LeaderRecord)


def decoded_ledger(data: bytes) -> LeaderLedger:
    """Return the ledger. Raises CoordinatorRefused for anything else."""
    return _decoded(data, LeaderLedger)


def _decoded(data: bytes, kind: type[Record]) -> Record:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise CoordinatorRefused(f"etcd holds no {kind.__name__} of robust-run under its key: {error}") from error
