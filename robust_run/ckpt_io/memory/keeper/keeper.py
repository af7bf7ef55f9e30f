"""The keeper: does what workers and the agent ask for. One thread; what takes long (reserving, hashing) goes to `run`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from robust_run.ckpt_io.memory import buffers, freeing, generations
from robust_run.ckpt_io.memory.agent_protocol import (
    AttemptBegins,
    Bring,
    CopyTo,
    Flushed,
    FlushLast,
    KeeperNote,
    LookInMemory,
    MemoryLook,
    NeedsStrides,
)
from robust_run.ckpt_io.memory.copies import guests
from robust_run.ckpt_io.memory.copies.keeper_copies import CopyThreads, KeeperCopies
from robust_run.ckpt_io.memory.flushing.flushes import Flushes
from robust_run.ckpt_io.memory.flushing.process import FlushProcess
from robust_run.ckpt_io.memory.flushing.running import Runs
from robust_run.ckpt_io.memory.generations import HeldBuffer, Holdings, Part
from robust_run.ckpt_io.memory.keeper.fourth import FourthBuffers
from robust_run.ckpt_io.memory.keeper.handing_out import HandingOut
from robust_run.ckpt_io.memory.keeper.looks import Looks
from robust_run.ckpt_io.memory.keeper.peers import Peer
from robust_run.ckpt_io.memory.keeper.reserving import Reservations
from robust_run.ckpt_io.memory.keeper.striding import Striding
from robust_run.ckpt_io.memory.pool import Pool
from robust_run.ckpt_io.memory.protocol import (
    SCHEMA,
    AskFlush,
    Attach,
    Attached,
    Begin,
    Copied,
    Fetch,
    Flush,
    FlushState,
    FromWorker,
    Place,
    Refused,
    Reserve,
    Skip,
)

#: How long a save waits for a buffer that is being hashed. Hashing is twice as fast as copying, so this is for moments of a busy
#: machine; and ranks of other nodes wait for this one in their next collective, where a skip would leave them with other steps.
BEGIN_S = 0.5


class _LateBegin(NamedTuple):
    """A save that waits for a buffer."""

    peer: Peer
    step: int
    until_s: float


class Keeper:
    """Holds the buffers of one node."""

    def __init__(
        self,
        ledger: buffers.Ledger,
        tell: Callable[[MemoryLook | KeeperNote | Flushed | NeedsStrides], None],
        run: Runs,
        unix_s: Callable[[], float],
        now_s: Callable[[], float],
        threads: CopyThreads | None = None,
    ) -> None:
        """`threads`: None: nothing is copied between nodes."""
        self._ledger, self._tell, self._run, self._unix_s = ledger, tell, run, unix_s
        self.holdings = Holdings()
        self.pool = Pool(ledger)
        self.copies = KeeperCopies(
            self.pool, lambda: self.holdings, self._is_settled, threads, tell, now_s, self._make_room_for_copies
        )
        self.striding = Striding(tell, now_s)
        self._peers: dict[int, Peer] = {}
        self._hashing: dict[int, Part] = {}
        self._begins: list[_LateBegin] = []
        self._handing_out = HandingOut(self._find, self._held, self.pool, self.copies.bringing, now_s)
        self._looks = Looks(now_s)
        self._fourth = FourthBuffers(ledger, run, self._take_in)
        self.flushes = Flushes(FlushProcess, tell, run, now_s)
        self._now_s = now_s
        self._reservations = Reservations(
            self.pool, run, tell, lambda: self.holdings, self._take_in, self._needs, self._make_room
        )
        self._skips = 0

    # --- the agent

    def begin_attempt(self, message: AttemptBegins) -> None:
        """Drop what does not belong to the attempt's past, and hang up on workers of the attempt before."""
        for peer in self._peers.values():
            peer.is_open = peer.is_open and peer.attempt == message.attempt
        if self._skips:
            self._tell(KeeperNote(text=f"attempt {self.holdings.attempt}: {self._skips} saves were not kept in memory"))
        self._skips = 0
        self._reservations.begin_attempt()
        self.flushes.begin_attempt(message.resumed_step)
        self.holdings = generations.begin_attempt(
            self.holdings,
            message.attempt,
            message.ranks,
            message.world_size,
            message.resumed_step,
            message.resumed_attempt,
        )
        self._fourth.begin_attempt(message.attempt)
        self.copies.begin_attempt(message)
        self.striding.begin_attempt(message.attempt)

    def copy_to(self, message: CopyTo) -> None:
        """Send copies of what ranks save to another node."""
        self.copies.sending.copy_to(message, self.holdings.attempt)

    def bring(self, message: Bring) -> None:
        """Have parts here that ranks of the attempt that follows start from."""
        self.holdings = self.copies.bringing.bring(message, self.holdings, self._brought)

    def _brought(self, buffer: HeldBuffer | None) -> None:
        if buffer is not None:
            self.holdings = generations.take_over(self.holdings, buffer)
        self._handing_out.again_awaited()

    def look(self, message: LookInMemory) -> None:
        """Say what is whole, once what was copied so far is hashed."""
        self._looks.ask(message.number, self._hashing)
        self.answer_looks()

    def flush_last(self, message: FlushLast) -> None:
        """Write what is newest to storage, once what was copied so far is hashed."""
        self.flushes.want_last(message)
        self._advance_flushes()

    def answer_late(self) -> float | None:
        """Answer what has waited enough; return how long until the next has, None: nothing waits."""
        now_s = self._now_s()
        late = [each for each in self._begins if each.until_s <= now_s]
        self._begins = [each for each in self._begins if each.until_s > now_s]
        for each in late:
            self._begin(each.peer, each.step, None)
        waits = [self.answer_looks(), *(each.until_s - now_s for each in self._begins)]
        waits.append(self.copies.sending.answer_due(self.holdings))
        waits.append(self._handing_out.answer_due())
        return min((each for each in waits if each is not None), default=None)

    def answer_looks(self) -> float | None:
        """Answer those that have waited enough; return how long until the next has, None: there is none."""
        for number in self._looks.take_due():
            held = self.copies.held(self.holdings)
            self._tell(MemoryLook(number=number, generations=held, room_bytes=self._ledger.room().bytes))
        return self._looks.wait_s()

    # --- workers

    def says(self, peer: Peer, message: FromWorker) -> None:
        """Do what a worker asks for. One who has not said who it is, or is of another attempt by now, is hung up on."""
        if isinstance(message, Attach):
            self._attach(peer, message)
        elif peer.rank is None or peer.attempt != self.holdings.attempt:
            peer.is_open = False
        elif isinstance(message, Reserve):
            self.flushes.storage = message.storage or self.flushes.storage
            self._reservations.ask(peer, peer.rank, message.size_bytes)
        elif isinstance(message, Begin):
            self._begin(peer, message.step, self._now_s() + BEGIN_S)
        elif isinstance(message, Copied):
            self._copied(peer, message)
        elif isinstance(message, Fetch):
            self._handing_out.fetch(peer, message)
        elif isinstance(message, AskFlush):
            peer.send(FlushState(is_busy=self.flushes.is_busy))
        elif isinstance(message, Flush):
            self.flushes.want((peer.attempt, message.step), message.run_dir)
            self._advance_flushes()
        else:
            self._handing_out.have_read(peer, message)

    def gone(self, peer: Peer) -> None:
        """Note that a worker has hung up, or was hung up on."""
        if self._peers.pop(peer.number, None) is not None and peer.attempt == self.holdings.attempt:
            self.flushes.removals.worker_gone()
        peer.reading.clear()
        self._handing_out.forget(peer)
        self._begins = [each for each in self._begins if each.peer is not peer]
        self._reservations.forget(peer)
        self.holdings = generations.forget(self.holdings, peer.number)
        self._free(self._superseded())

    def _attach(self, peer: Peer, message: Attach) -> None:
        here = self.holdings
        if message.schema != SCHEMA:
            peer.send(Refused(reason=f"the memory keeper speaks version {SCHEMA}, this worker {message.schema}"))
        elif message.attempt != here.attempt or message.world_size != here.world_size:
            wanted = f"attempt {message.attempt} of {message.world_size} ranks"
            now = f"attempt {here.attempt} of {here.world_size} ranks" if here.attempt >= 0 else "no attempt"
            peer.send(Refused(reason=f"the memory keeper serves {now}, this worker is of {wanted}"))
        elif message.rank not in here.ranks:
            peer.send(Refused(reason=f"rank {message.rank} is not one of this node's"))
        else:
            peer.rank, peer.attempt = message.rank, message.attempt
            self._peers[peer.number] = peer
            peer.send(Attached())

    def _needs(self, rank: int, is_new: bool) -> None:
        if is_new:
            self._fourth.forget(rank)
        self._free(self._superseded())

    def _make_room(self) -> bool:
        """Free what ranks of this node need more: parts of ranks that have left it, and copies."""
        left = freeing.left_behind(self.holdings, self._busy())
        self._free(left)
        return self.copies.desk.give_way() or bool(left)

    def _make_room_for_copies(self) -> bool:
        """Free parts of ranks that have left this node, once its own have saved: copies are worth more than what they left."""
        left = freeing.left_behind(self.holdings, self._busy()) if freeing.has_moved_on(self.holdings) else ()
        self._free(left)
        return bool(left)

    def _is_settled(self) -> bool:
        return all(rank in self._reservations.needed_bytes for rank in self.holdings.ranks)

    def _take_in(self, made: list[int], rank: int, room_bytes: int) -> None:
        self.holdings = generations.add(self.holdings, rank, room_bytes, self.pool.take_in(made))

    def _begin(self, peer: Peer, step: int, until_s: float | None) -> None:
        """Say where a part goes. One that could go where a part is being hashed waits for that; `until_s` None: no longer."""
        if peer.rank is None or not peer.is_open:
            return
        if not self.striding.wants(step, self.holdings.begun.get(peer.rank)):
            self.holdings = generations.passes(self.holdings, peer.rank, step)
            stride = self.striding.keeping.stride
            peer.send(Skip(reason=f"step {step} is not kept: every {stride}th is", is_planned=True))
            return
        free = (peer.known | self._fourth.of(peer.rank, self.holdings, self._reservations.needed_bytes)) - self._busy()
        holdings, chosen = generations.make(self.holdings, peer.rank, step, maker=peer.number, free=free)
        if not isinstance(chosen, int) and until_s is not None and peer.known & self._free_soon():
            self._begins.append(_LateBegin(peer, step, until_s))
            return
        is_verifying = bool(peer.known & self._free_soon()) and not peer.known & (self._pinned() | self.copies.busy)
        self.holdings = holdings
        if isinstance(chosen, int):
            self.striding.settled(step, is_kept=True)
            new = [] if chosen in peer.known else [self.pool.descriptor(chosen)]
            peer.known |= {chosen}
            peer.send(Place(buffer=chosen, is_new=bool(new)), new)
        else:
            if is_verifying:
                self.striding.settled(step, is_kept=False)
            self._skips += 1
            peer.send(Skip(reason=chosen))

    def _copied(self, peer: Peer, message: Copied) -> None:
        noted = generations.copied(
            self.holdings, message.buffer, peer.number, message.step, message.used_bytes, self._unix_s()
        )
        if noted is None:  # it says what cannot be: nothing of it counts
            peer.is_open = False
            return
        self.holdings = noted
        part = next(each.part for each in noted.buffers if each.id == message.buffer)
        assert part is not None, "it was just noted"
        self._hash(message.buffer, part)

    def _hash(self, buffer: int, part: Part) -> None:
        descriptor = self.pool.descriptor(buffer)

        def then(digest: bytes | Exception) -> None:
            del self._hashing[buffer]
            if isinstance(digest, Exception):
                self._tell(KeeperNote(text=f"a part of step {part.step} in memory cannot be read: {digest}"))
            self.holdings = generations.hashed(
                self.holdings, buffer, part, None if isinstance(digest, Exception) else digest
            )
            self._looks.is_hashed(buffer)
            self.answer_looks()
            begins, self._begins = self._begins, []
            for begin in begins:
                self._begin(begin.peer, begin.step, begin.until_s)
            self._handing_out.again_hashed()
            self._advance_flushes()
            self._free(self._superseded())
            self.copies.look(self.striding.copies)
            self._fourth.look(self._reservations.needed_bytes, self.copies.sending)
            self.copies.keeps_originals = self._fourth.ranks >= set(self.holdings.ranks)
            self.striding.say(self.copies.sending.pace.own)

        self._hashing[buffer] = part
        self._run(lambda: buffers.digest_of(descriptor, part.used_bytes), then, is_long=False)

    def _held(self, rank: int, generation: generations.Generation) -> HeldBuffer | None:
        return generations.find(self.holdings, rank, generation)

    def _find(self, rank: int, generation: generations.Generation) -> HeldBuffer | None:
        """Return what is held of a rank's part; a copy of it becomes this node's own."""
        found = self._held(rank, generation)
        if found is None and (copy := self.copies.desk.adopt(rank, generation)) is not None:
            self.holdings, found = generations.take_over(self.holdings, copy), copy
        return found

    # --- buffers

    def _busy(self) -> set[int]:
        return self._hashed_or_read().union(self._pinned(), self.copies.busy)

    def _hashed_or_read(self) -> set[int]:
        return set(self._hashing).union(*(peer.reading for peer in self._peers.values()))

    def _free_soon(self) -> set[int]:
        """Buffers for which a save waits a moment; what is written to storage or sent to another node may take long."""
        return self._hashed_or_read() - self._pinned() - self.copies.busy

    def _pinned(self) -> frozenset[int]:
        return self.flushes.pinned(self.holdings)

    def _advance_flushes(self) -> None:
        """Start what can be written to storage by now; at the end of the job, nothing that is still being hashed is left out."""

        def over() -> None:
            self._free(self._superseded())
            self._advance_flushes()

        if not (self._hashing and self.flushes.is_last):
            holdings = guests.standing_in(self.holdings, self.copies.desk.guests, self.flushes.stands_in)
            self.flushes.advance(holdings, self.pool.descriptors, over)

    def _superseded(self) -> tuple[int, ...]:
        return freeing.superseded(
            self.holdings,
            self._reservations.needed_bytes,
            self._busy(),
            may_forget=self.copies.may_forget(),
            with_fourth=self._fourth.ranks,
        )

    def _free(self, ids: tuple[int, ...]) -> None:
        gone = set(ids)
        self.pool.free([each for each in self.holdings.buffers if each.id in gone])
        self.holdings = generations.without(self.holdings, gone)
