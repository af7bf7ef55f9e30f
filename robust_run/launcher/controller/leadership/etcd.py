"""Leader election by etcd: the leader is the candidate that made the job's leader key, for as long as its lease lives."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable

import msgspec

from robust_run.clock import Clock
from robust_run.errors import UserError
from robust_run.launcher.controller.leadership.etcd_client import Transport
from robust_run.launcher.controller.leadership.etcd_hold import (
    LEASE_ENDED,
    WRITE_S,
    EtcdHold,
    decoded_leader,
    decoded_ledger,
    encoded,
    forget,
    revoke,
)
from robust_run.launcher.controller.leadership.etcd_keys import Keys, LeaderLedger, StateHead
from robust_run.launcher.controller.leadership.etcd_messages import (
    Compare,
    KeyValue,
    LeaseGrant,
    LeaseGrantReply,
    Operation,
    Put,
    Range,
    RangeReply,
    Txn,
    TxnReply,
    prefix_end,
)
from robust_run.launcher.controller.leadership.tenure import Campaign, Leadership, Sleep
from robust_run.launcher.controller.leadership.types import (
    Candidate,
    CoordinatorRefused,
    JobFinished,
    LeaderRecord,
    RunStanding,
    SavedState,
)

_FOREIGN_TTLS = 3
"""Leases that another run's leader must outlast to count as alive."""
_PARTS_A_PAGE = 16
_MEMBERS_A_PAGE = 250
"""Records of 64 KiB make 21 MiB of base64."""


class EtcdCoordinator:
    """A Coordinator in etcd, for the job of this name. `on_problem` hears why a candidate has to wait for etcd itself."""

    def __init__(
        self,
        transport: Transport,
        job: str,
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
        on_problem: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._transport = transport
        self._job = job
        self._keys = Keys(job)
        self._clock = clock
        self._sleep = sleep
        self._campaign = Campaign(clock, sleep, on_problem)
        self._foreign_since_s: float | None = None

    async def campaign(self, me: Candidate, ttl_s: float) -> Leadership:
        """See Coordinator. Also raises UserError when another run that is alive uses the job's name."""
        return await self._campaign.win(lambda: self._try(me, ttl_s), ttl_s)

    async def leader(self) -> LeaderRecord | None:
        """See Coordinator. What one member of etcd remembers will do: whoever asks will find out by dialling."""
        leader, ledger = await self._view(serializable=True, timeout_s=WRITE_S)
        book = decoded_ledger(ledger.value) if ledger else None
        if leader is None and book is not None and book.over:
            raise JobFinished(f"the leader of term {book.term} has finished run {book.run_id!r}")
        return decoded_leader(leader.value) if leader else None

    async def standing(self) -> RunStanding | None:
        """See Coordinator."""
        leader, ledger = await self._view(serializable=False, timeout_s=WRITE_S)
        book = decoded_ledger(ledger.value) if ledger else None
        record = decoded_leader(leader.value) if leader else None
        if record is not None:
            return RunStanding(run_id=record.run_id, leader=record)
        return RunStanding(run_id=book.run_id, over=book.over, sign=f"{book.term}") if book is not None else None

    async def load(self) -> SavedState | None:
        """See Coordinator."""
        reply = await self._transport.call("/v3/kv/range", Range(key=self._keys.state), RangeReply, WRITE_S)
        if not reply.kvs:
            return None
        try:
            head = msgspec.msgpack.decode(reply.kvs[0].value, type=StateHead)
        except msgspec.MsgspecError as error:
            raise CoordinatorRefused(f"the state of job {self._job!r} in etcd is damaged: {error}") from error
        state = head.state
        if head.save:
            pages = self._all(self._keys.save(head.save), _PARTS_A_PAGE, reply.header.revision)
            state = b"".join([part.value async for part in pages])
        if len(state) != head.size_bytes:
            raise CoordinatorRefused(
                f"the state of job {self._job!r} in etcd has {len(state)} of {head.size_bytes} bytes"
            )
        return SavedState(term=head.term, position=head.position, state=state)

    async def load_members(self) -> dict[str, bytes]:
        """See Coordinator."""
        pages = self._all(self._keys.members, _MEMBERS_A_PAGE)
        return {self._keys.member_name(pair.key): pair.value async for pair in pages}

    async def close(self) -> None:
        """See Coordinator."""
        await self._transport.close()

    async def _all(self, prefix: bytes, page: int, revision: int = 0) -> AsyncIterator[KeyValue]:
        """Yield all keys with a prefix as they were at one moment."""
        start, more = prefix, True
        while more:
            request = Range(key=start, range_end=prefix_end(prefix), limit=page, revision=revision)
            reply = await self._transport.call("/v3/kv/range", request, RangeReply, WRITE_S)
            for pair in reply.kvs:
                yield pair
            revision = revision or reply.header.revision
            more = reply.more and bool(reply.kvs)
            if more:
                start = reply.kvs[-1].key + b"\0"

    async def _view(self, serializable: bool, timeout_s: float) -> tuple[KeyValue | None, KeyValue | None]:
        """Return the leader's key and the ledger as they are at one moment."""
        keys = (self._keys.leader, self._keys.ledger)
        looks = tuple(Operation(request_range=Range(key=key, serializable=serializable)) for key in keys)
        reply = await self._transport.call("/v3/kv/txn", Txn(success=looks), TxnReply, timeout_s)
        return reply.key_value(0), reply.key_value(1)

    async def _try(self, me: Candidate, ttl_s: float) -> Leadership | None:
        """Look, and claim the next term if nobody leads."""
        leader, ledger = await self._view(serializable=False, timeout_s=ttl_s)
        self._check_run(decoded_leader(leader.value) if leader else None, me, ttl_s)
        book = decoded_ledger(ledger.value) if ledger else None
        if book is not None and book.over and book.run_id == me.run_id:
            raise JobFinished(f"the leader of term {book.term} has finished run {book.run_id!r}")
        if leader is not None:
            return None
        sent_at_s = self._clock.monotonic_s()
        lease = await self._transport.call("/v3/lease/grant", LeaseGrant(ttl=math.ceil(ttl_s)), LeaseGrantReply, ttl_s)
        leadership = None
        try:
            leadership = await self._claim(me, lease, sent_at_s, book, ledger.mod_revision if ledger else 0, ttl_s)
        finally:
            if leadership is None:  # also when it is not known whether the claim arrived: without its lease it cannot
                await revoke(self._transport, lease.id, ttl_s)
        return leadership

    def _check_run(self, record: LeaderRecord | None, me: Candidate, ttl_s: float) -> None:
        """Raise UserError if another run leads, and not only because it died a moment ago."""
        now_s = self._clock.monotonic_s()
        if record is None or record.run_id == me.run_id:
            self._foreign_since_s = None
        elif self._foreign_since_s is None:
            self._foreign_since_s = now_s
        elif now_s - self._foreign_since_s > _FOREIGN_TTLS * ttl_s:
            raise UserError(
                f"the job name {self._job!r} is used in etcd by run {record.run_id!r} on {record.host}; "
                "wait for its end or give this job another --rdzv-id"
            )

    async def _claim(
        self,
        me: Candidate,
        lease: LeaseGrantReply,
        sent_at_s: float,
        book: LeaderLedger | None,
        seen: int,
        timeout_s: float,
    ) -> Leadership | None:
        """Take the leader's key and the next term at once, unless somebody else did since the ledger was seen."""
        term = (book.term if book else 0) + 1
        record = LeaderRecord(term=term, address=me.address, host=me.host, run_id=me.run_id)
        own = book is not None and book.run_id == me.run_id
        request = Txn(
            compare=(
                Compare(key=self._keys.leader, target="CREATE", create_revision=0),
                Compare(key=self._keys.ledger, target="MOD", mod_revision=seen),
            ),
            success=(
                Operation(request_put=Put(key=self._keys.leader, value=encoded(record), lease=lease.id)),
                Operation(
                    request_put=Put(key=self._keys.ledger, value=encoded(LeaderLedger(term=term, run_id=me.run_id)))
                ),
                *(() if own else forget(self._keys)),
            ),
        )
        try:
            reply = await self._transport.call("/v3/kv/txn", request, TxnReply, timeout_s)
        except CoordinatorRefused as error:
            if LEASE_ENDED in str(error):  # the request was as long on its way as the lease lasts
                return None
            raise
        if not reply.succeeded:
            return None
        hold = EtcdHold(self._transport, self._keys, record, lease, reply.header.revision, self._clock)
        return Leadership(record, hold, float(lease.ttl), sent_at_s, self._clock, self._sleep)
