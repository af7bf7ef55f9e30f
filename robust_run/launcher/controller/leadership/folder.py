"""Leader election by a folder that all candidates share, such as the run directory. Clocks of different hosts are never compared.

Why two never lead. A leader prolongs its time only by writing its heartbeat and **then** finding no newer claim, and it counts
from before it wrote. A candidate claims the next term when one heartbeat has been all it saw for a whole lease; after its claim
is there it looks once more. Unchanged: every heartbeat that the old leader could count on was written before the candidate
first saw it, so that leader's time is up. Changed: the candidate does not lead; its claim has deposed the other, and all
wait for a lease to pass before the next claim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from robust_run.clock import Clock
from robust_run.launcher.controller.leadership.folder_files import SharedFiles
from robust_run.launcher.controller.leadership.folder_records import (
    Claim,
    FolderBatch,
    LeaderHeartbeat,
    LeaderSign,
    LeaderSuspicion,
    decoded_batch,
    decoded_claim,
    decoded_state,
    heartbeat_name,
    merged,
    newest_term,
    numbered,
    numbered_name,
    term_name,
)
from robust_run.launcher.controller.leadership.tenure import Campaign, Leadership, Sleep
from robust_run.launcher.controller.leadership.types import (
    Candidate,
    CoordinatorUnreachable,
    JobFinished,
    LeaderRecord,
    LostLeadership,
    RunStanding,
    SavedState,
)
from robust_run.launcher.model.lease_times import following_ttl_s

_DATA_S = 20.0
"""How long reading or writing state may take before it counts as hanging."""
_BATCHES = 32
"""Members files of one term after which they are written as one."""
_READINGS = 5
"""Tries to read files that their writer is just replacing."""


class FolderCoordinator:
    """A Coordinator in a folder. `on_problem` hears what keeps a candidate from seeing the folder, one line whenever
    that changes."""

    def __init__(
        self,
        files: SharedFiles,
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
        on_problem: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._files = files
        self._clock = clock
        self._sleep = sleep
        self._campaign = Campaign(clock, sleep, on_problem)

    async def campaign(self, me: Candidate, ttl_s: float) -> Leadership:
        """See Coordinator."""
        suspicion = LeaderSuspicion()
        return await self._campaign.win(lambda: self._try(me, ttl_s, suspicion), ttl_s)

    async def leader(self) -> LeaderRecord | None:
        """See Coordinator."""
        names = await self._files.names(_DATA_S)
        sign, claim = await self._look(newest_term(names), _DATA_S)
        return claim.record if claim is not None and not sign.resigned else None

    async def standing(self) -> RunStanding | None:
        """See Coordinator."""
        term = newest_term(await self._files.names(_DATA_S))
        if term == 0:
            return None
        data = await self._files.read(term_name(term), _DATA_S)
        claim = decoded_claim(data) if data is not None else None
        beat = await self._files.read(heartbeat_name(term), _DATA_S)
        sign = f"{term} {(beat or b'').hex()}"
        if claim is None:
            return RunStanding(run_id="", sign=sign)
        return RunStanding(
            run_id=claim.record.run_id, over=claim.over, leader=claim.record, sign=sign, ttl_s=claim.ttl_s
        )

    async def load(self) -> SavedState | None:
        """See Coordinator."""
        for _ in range(_READINGS):
            found = numbered(await self._files.names(_DATA_S, fresh=True), "state")
            if not found:
                return None
            data = await self._files.read(found[-1][2], _DATA_S)
            if data is not None:
                return decoded_state(data)
        raise CoordinatorUnreachable("the saved state changes faster than it can be read; try again")

    async def load_members(self) -> dict[str, bytes]:
        """See Coordinator."""
        for _ in range(_READINGS):
            found = numbered(await self._files.names(_DATA_S, fresh=True), "members")
            contents = [await self._files.read(name, _DATA_S) for term, _, name in found if term == found[-1][0]]
            batches = [decoded_batch(data) for data in contents if data is not None]
            if len(batches) == len(contents):
                return merged(batches)
        raise CoordinatorUnreachable("the members' records change faster than they can be read; try again")

    async def close(self) -> None:
        """See Coordinator."""

    async def _look(self, term: int, timeout_s: float) -> tuple[LeaderSign, Claim | None]:
        """Return the sign of life and the claim of a term. Raises JobFinished."""
        if term == 0:
            return LeaderSign(0, None), None
        claim = await self._files.read(term_name(term), timeout_s)
        known = decoded_claim(claim) if claim is not None else None
        if known is not None and known.over:
            raise JobFinished(f"the leader of term {known.record.term - 1} has finished run {known.record.run_id!r}")
        return LeaderSign(term, await self._files.read(heartbeat_name(term), timeout_s)), known

    async def _try(self, me: Candidate, ttl_s: float, suspicion: LeaderSuspicion) -> Leadership | None:
        """Look, and claim the next term if the newest leader's time is up."""
        asked_at_s = self._clock.monotonic_s()
        sign, claim = await self._look(newest_term(await self._files.names(ttl_s, fresh=True)), ttl_s)
        now_s = self._clock.monotonic_s()
        silent_s = suspicion.silent_s(sign, asked_at_s, now_s)
        if sign.term and not sign.resigned and silent_s < max(ttl_s, claim.ttl_s if claim else 0.0):
            return None
        if claim is not None and not sign.resigned:
            ttl_s = following_ttl_s(ttl_s, claim.ttl_s, sign.renewals)
        record = LeaderRecord(term=sign.term + 1, address=me.address, host=me.host, run_id=me.run_id)
        data = msgspec.json.encode(Claim(record=record, ttl_s=ttl_s))
        if not await self._files.create(term_name(record.term), data, ttl_s):
            return None
        newest = newest_term(await self._files.names(ttl_s, fresh=True))
        if newest != record.term or (await self._look(sign.term, ttl_s))[0] != sign:
            return None
        hold = FolderHold(self._files, record, ttl_s, self._clock)
        leadership = Leadership(record, hold, ttl_s, now_s, self._clock, self._sleep)
        return leadership if await self._adopt(leadership, hold) else None

    async def _adopt(self, leadership: Leadership, hold: FolderHold) -> bool:
        """Make what predecessors saved this term's own: what an old leader still writes is never read again."""
        if not await leadership.renew():
            return False
        saved, members = await self.load(), await self.load_members()
        if not await leadership.renew():
            return False
        try:
            await hold.begin(saved, members)
        except LostLeadership:
            return False
        return await leadership.renew()


class FolderHold:
    """What a leader holds in a folder: the newest term file."""

    def __init__(self, files: SharedFiles, record: LeaderRecord, ttl_s: float, clock: Clock) -> None:
        self._files = files
        self._record = record
        self._ttl_s = ttl_s
        self._clock = clock
        self._beats = 0
        self._numbers = {"state": -1, "members": -1}
        self._members: dict[str, bytes] = {}
        self._batches = 0
        self._writing = asyncio.Lock()

    async def begin(self, saved: SavedState | None, members: dict[str, bytes]) -> None:
        """Write what the predecessors left as the first of this term. Raises as `Hold.save` does."""
        self._members = dict(members)
        await self._write("state", saved)
        await self._write("members", FolderBatch(whole=True, members=dict(members)))

    async def renew(self, until_s: float) -> None:
        """See Hold."""
        self._beats += 1
        await self._beat(LeaderHeartbeat(count=self._beats), self._rest_s(until_s))
        await self._check(self._rest_s(until_s))

    async def save(self, position: int, state: bytes) -> None:
        """See Hold."""
        async with self._writing:
            await self._write("state", SavedState(term=self._record.term, position=position, state=state))

    async def put_members(self, members: Mapping[str, bytes | None]) -> None:
        """See Hold."""
        async with self._writing:
            change = FolderBatch(whole=False, members=dict(members))
            after = merged((FolderBatch(whole=True, members=dict(self._members)), change))
            self._batches += 1
            whole = self._batches > _BATCHES
            await self._write("members", FolderBatch(whole=True, members=dict(after)) if whole else change)
            self._members = after
            if whole:
                self._batches = 0

    async def release(self, finished: bool) -> None:
        """See Hold."""
        if not finished:
            await self._beat(LeaderHeartbeat(count=self._beats, resigned=True), self._ttl_s)
            return
        record = msgspec.structs.replace(self._record, term=self._record.term + 1)
        claim = msgspec.json.encode(Claim(record=record, ttl_s=self._ttl_s, over=True))
        if not await self._files.create(term_name(record.term), claim, self._ttl_s):
            raise LostLeadership(f"term {record.term} has been claimed; term {self._record.term} is over")

    async def _write(self, kind: str, content: SavedState | FolderBatch | None) -> None:
        """Write the next file of a kind, make sure that no successor can have missed it, drop what it replaces."""
        self._numbers[kind] += 1
        number = self._numbers[kind]
        name = numbered_name(kind, self._record.term, number)
        if not await self._files.create(name, msgspec.msgpack.encode(content), _DATA_S):
            raise LostLeadership(f"{name!r} exists: somebody else wrote in term {self._record.term}")
        names = await self._check(_DATA_S)
        if not isinstance(content, FolderBatch) or content.whole:
            mine = (self._record.term, number)
            await self._files.remove([old for *which, old in numbered(names, kind) if tuple(which) < mine], _DATA_S)

    async def _check(self, timeout_s: float) -> list[str]:
        names = await self._files.names(timeout_s, fresh=True)
        newest = newest_term(names)
        if newest != self._record.term:
            raise LostLeadership(f"term {newest} has been claimed; term {self._record.term} is over")
        return names

    async def _beat(self, heartbeat: LeaderHeartbeat, timeout_s: float) -> None:
        name = heartbeat_name(self._record.term)
        await self._files.replace(name, msgspec.json.encode(heartbeat), timeout_s)

    def _rest_s(self, until_s: float) -> float:
        return max(0.0, until_s - self._clock.monotonic_s())
