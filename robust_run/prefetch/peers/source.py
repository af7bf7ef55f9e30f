"""Peers as a source of blocks. The origin is asked when it is our turn, see `origin`.

A group's first owner fetches it from the origin; all others ask him, then the next owner, and fetch it themselves where none of
them gives it, or none does within the limits of `PeerOptions`.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from robust_run.prefetch import blockmap
from robust_run.prefetch.peers.held import LEARNING_S, HeldElsewhere, chosen
from robust_run.prefetch.peers.standing import GroupOwners, GroupPatience, Peers, group_of
from robust_run.prefetch.peers.types import MOST_MEMBERS, PeerOptions, split_address
from robust_run.prefetch.rules.types import BlockMap, FetchLimits, Priority
from robust_run.store.cancelling import Cancellation
from robust_run.store.errors import Cancelled, StoreError, Unavailable
from robust_run.store.http_connections import Connections
from robust_run.store.rules.http_replies import check_range
from robust_run.store.types import StoreOptions

#: Of a request: who asks, which owners have failed him, and that it shall not be sent on again. Of an answer: whom to ask
#: instead, and that it is being fetched. Addresses, since not all nodes know the same members at every moment.
FROM, FAILED, HERE, AT, COMING = "Robust-From", "Robust-Failed", "Robust-Here", "Robust-At", "Robust-Coming"
#: Of a request: it is for what is there, and for nothing that would have to be fetched.
HELD = "Robust-Held"
SENT_ON = 421
#: So many requests to the origin fail in a row before others are told to ask elsewhere.
_ORIGIN_FAILURES, _ORIGIN_TRIED_AGAIN_S = 3, 10.0
#: A connection to a node that is there takes less.
_CONNECT_S = 2.0
_MOST_PROBLEMS = 10
_SHUNNED_S = 60.0


class _Answer(Enum):
    """What a member answers."""

    GIVEN = "here it is"
    WAIT = "ask again"
    COMING = "it is being fetched: ask again"
    SENT_ON = "ask another one"


class _Asked:
    """One range that is wanted from peers."""

    def __init__(self, offset_bytes: int, buffers: Sequence[memoryview], cancel: Cancellation) -> None:
        self.offset_bytes, self.buffers, self.cancel = offset_bytes, buffers, cancel
        self.size_bytes = sum(len(buffer) for buffer in buffers)
        self.failed: list[str] = []
        self.reason = "no owner may be asked now"


class PeerSource:
    """The other nodes of the job."""

    name = "peers"

    def __init__(
        self,
        block_map: BlockMap,
        options: PeerOptions,
        limits: FetchLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Asks no peer before it knows members; see `meet`."""
        self._map, self._options, self._clock = block_map, options, clock
        self._identity = blockmap.identity(block_map)
        self._stall_s = max(limits.stall_s, options.demand_wait_s)
        self._lock = threading.Lock()
        self._began_s = clock()
        self._peers, self.patience = Peers(), GroupPatience(options.demand_wait_s, options.wait_s)
        self._connections: dict[str, Connections] = {}
        self.received_bytes = self.wrong_blocks = self.failures = self.redirected = 0
        self.problems: deque[str] = deque(maxlen=_MOST_PROBLEMS)
        self._origin_failures, self._origin_failed_s = 0, float("-inf")
        self._held, self._learning_until_s = HeldElsewhere(), 0.0
        self.own = ""
        """Where this node gives blocks; it is a guest where that is not among the members, and owns nothing then."""
        self._assignment = GroupOwners(self._identity, (), options.origins)
        self.meet(options.members, options.own)

    def meet(self, members: Sequence[str], own: str) -> None:
        """Ask these from now on; what is no address is passed over, and said. Requests to those that stay go on."""
        known = sorted({member for member in members[:MOST_MEMBERS] if self._is_address(member)})
        with self._lock:
            self._assignment, self.own = GroupOwners(self._identity, known, self._options.origins), own
            gone = [self._connections.pop(each) for each in self._connections.keys() - set(known)]
        for each in gone:
            each.close()
        if own in known and len(known) > 1:
            self._learning_until_s = self._clock() + LEARNING_S
            self._held.learn(chosen(known, own), f"held/{self._identity}", self._of)

    def is_learning(self, now_s: float) -> bool:
        """Whether others are just being asked what they have."""
        return now_s < self._learning_until_s and self._held.is_learning

    def _is_address(self, member: str) -> bool:
        try:
            split_address(member)
        except ValueError as error:
            self.problems.append(f"peers: {error}")
            return False
        return True

    @property
    def members(self) -> int:
        """How many nodes share blocks, this one too where it is no guest."""
        return len(self._assignment.members)

    def is_member(self, address: str) -> bool:
        """Whether a node shares blocks with us."""
        return address in self._assignment.members

    @property
    def origin_works(self) -> bool:
        """Whether the origin gives us what is ours, as far as is known."""
        is_over = self._clock() - self._origin_failed_s > _ORIGIN_TRIED_AGAIN_S
        return is_over or self._origin_failures < _ORIGIN_FAILURES

    def origin_gave(self, *, well: bool) -> None:
        """Note how a request to the origin ended."""
        self._origin_failures = 0 if well else self._origin_failures + 1
        self._origin_failed_s = float("-inf") if well else self._clock()

    def is_ours(self, group: int, failed: Iterable[str] = ()) -> bool:
        """Whether we fetch a group from the origin, given which of its owners have failed others."""
        skipped = set(failed)
        return next((owner for owner in self._assignment.owners(group) if owner not in skipped), None) == self.own

    def waits_for_members(self, now_s: float) -> float:
        """Return how long to prefetch nothing, because members may still be told."""
        return 0.0 if self.members else max(0.0, self._began_s + self._options.members_wait_s - now_s)

    def group(self, block: int) -> int:
        """Return a block's group."""
        return group_of(block, self._map.block_bytes)

    def group_at(self, offset_bytes: int) -> int:
        """Return the group of what lies there."""
        return self.group(offset_bytes // self._map.block_bytes)

    def others_failed(self, group: int) -> None:
        """A peer says that owners before us did not give him a group: it is ours for a while."""
        self.patience.gave_up(group, self._clock())

    def close(self) -> None:
        """Drop connections. Requests that are under way fail."""
        with self._lock:
            connections, self._connections = self._connections, {}
        for each in connections.values():
            each.close()

    # as a source

    def offers(self, start_block: int, count: int, priority: Priority) -> float | None:
        """Everything that others own and may still give us."""
        group, now_s = self.group(start_block), self._clock()
        if self.group(start_block + count - 1) != group or self.patience.left_s(group, priority, now_s) <= 0:
            return None
        return 0.0 if any(self._peers.may_ask(owner, now_s) for owner in self._before_us(group)) else None

    def _before_us(self, group: int) -> tuple[str, ...]:
        """Return the owners whose turn comes before ours; where it is ours first, who had it already."""
        owners = self._assignment.owners(group)
        before = owners[: owners.index(self.own)] if self.own in owners else owners
        return before or self._held.have(group)

    def read_into(self, offset_bytes: int, buffers: Sequence[memoryview], cancel: Cancellation) -> None:
        """Ask the owners one after the other. Raises `StoreError` where none of them gives it: it is the origin's then."""
        asked = _Asked(offset_bytes, buffers, cancel)
        group = self.group(offset_bytes // self._map.block_bytes)
        for owner in self._before_us(group):
            # The next owner must hear of those that we do not ask: else it is not his turn.
            if self._peers.may_ask(owner, self._clock()) and self._have_from(owner, group, asked):
                with self._lock:
                    self.patience.arrived(group)
                    self.received_bytes += asked.size_bytes
                return
            asked.failed.append(owner)
        self.patience.gave_up(group, self._clock())
        raise Unavailable("peers", f"group {group}", asked.reason)

    def _have_from(self, owner: str, group: int, asked: _Asked) -> bool:
        """Ask an owner, and whom he names, until one of them has given it or it cannot be had there."""
        member, may_be_sent_on = owner, True
        while True:
            try:
                answer, other = self._ask(member, asked, may_be_sent_on and member == owner)
            except StoreError as error:
                if isinstance(error, Cancelled) or asked.cancel.cancelled:
                    raise
                asked.reason = str(error)
                self._failed(member, asked.reason)
                answer = None
            if answer is _Answer.GIVEN and self._is_good(member, asked):
                return True
            if answer in (_Answer.WAIT, _Answer.COMING):
                if answer is _Answer.COMING:
                    self.patience.promised(group, self._clock())
                if self.patience.left_s(group, Priority.HOT, self._clock()) > 0:
                    continue
                asked.reason = f"{member} did not have it in time"
                return False
            if answer is _Answer.SENT_ON:
                member = other
            elif member != owner:
                member, may_be_sent_on = owner, False  # whom he named has it no more: he has to give it himself
            else:
                return False

    def _ask(self, member: str, asked: _Asked, may_be_sent_on: bool) -> tuple[_Answer, str]:
        """Fill the buffers from a member; return what it answers, and whom it names. Raises `StoreError`."""
        path, url, size = f"blocks/{self._identity}", f"http://{member}", asked.size_bytes
        headers = {"Range": f"bytes={asked.offset_bytes}-{asked.offset_bytes + size - 1}", FROM: self.own}
        headers |= {FAILED: ",".join(asked.failed)} if asked.failed else {}
        headers |= {} if may_be_sent_on else {HERE: "1"}
        headers |= {HELD: "1"} if self.is_ours(self.group(asked.offset_bytes // self._map.block_bytes)) else {}
        with self._of(member).asking("GET", f"{url}/{path}", path, headers, asked.cancel) as reply:
            if reply.status == SENT_ON and may_be_sent_on:
                return _Answer.SENT_ON, self._named(reply.getheader(AT, ""), url)
            if reply.status == http.client.SERVICE_UNAVAILABLE:
                return (_Answer.COMING if reply.getheader(COMING) else _Answer.WAIT), ""
            if reply.status != http.client.PARTIAL_CONTENT:
                raise Unavailable(url, path, f"it says {reply.status} {reply.reason[:80]}")
            if check_range(url, path, reply, asked.offset_bytes, size) != size:
                raise Unavailable(url, path, "it sent less than was asked for")
            for buffer in asked.buffers:
                if reply.fill(buffer) != len(buffer):
                    raise Unavailable(url, path, "it broke off")
        return _Answer.GIVEN, ""

    def _named(self, text: str, url: str) -> str:
        if text == self.own or not self.is_member(text):
            raise Unavailable(url, "", f"it sent us on to {text[:80]!r}, which is no other node of the job")
        with self._lock:
            self.redirected += 1
        return text

    def _of(self, member: str) -> Connections:
        with self._lock:
            if member not in self._connections:
                options = StoreOptions(connect_s=_CONNECT_S, stall_s=self._stall_s, token=self._options.token)
                self._connections[member] = Connections(f"http://{member}", options)
            return self._connections[member]

    def _is_good(self, member: str, asked: _Asked) -> bool:
        first = asked.offset_bytes // self._map.block_bytes
        numbered = enumerate(asked.buffers, start=first)
        wrong = [block for block, data in numbered if not blockmap.is_good(self._map, block, data)]
        with self._lock:
            if wrong:
                self.wrong_blocks += len(wrong)
                self._peers.lied(member, self._clock(), _SHUNNED_S)
                asked.reason = (
                    f"peer {member}: block {wrong[0]} has the wrong digest; it is refused, and the peer shunned"
                )
                self.problems.append(asked.reason)
            else:
                self._peers.worked(member)
        return not wrong

    def _failed(self, member: str, reason: str) -> None:
        with self._lock:
            self.failures += 1
            self._peers.failed(member, self._clock())
            self.problems.append(f"peer {reason}")
