"""What a leader has whose place others can take: journal and queues in the log of the voters, and what it says waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from robust_run.orchestrator.model.node_words import Founded, Several
from robust_run.orchestrator.model.queue_state import QueueState
from robust_run.orchestrator.model.spec import RolesSpec
from robust_run.orchestrator.model.succession_words import FEWEST_NODES, MOST_VOTERS, Voter
from robust_run.orchestrator.nodes.book import NodeBook
from robust_run.orchestrator.queue.book import QueueBook
from robust_run.orchestrator.server import RoleServer
from robust_run.orchestrator.succession.door import Door
from robust_run.orchestrator.succession.replica import Replica
from robust_run.orchestrator.succession.stores import LoggedJournal, LoggedQueue, Past
from robust_run.roles.queue_words import QueueLimits

#: Nodes are waited for so long when the job is over, to hear of it.
LINGER_S = 10.0
LOOK_S = 0.05
BREATH_S = 0.05


class Post:
    """Of one leader, for as long as it leads."""

    def __init__(
        self,
        replica: Replica,
        door: Door,
        folder: str,
        meeting: Several,
        pids: Callable[[], dict[str, int]],
        say: Callable[[str], None],
        past: Past,
    ) -> None:
        """`pids`: of launchers on this node. `past`: what the log says."""
        self.past = past
        self.pids = pids
        self.term = replica.state.term
        self.is_founding = len(replica.voters) == 1
        self._replica, self._door, self._folder, self._meeting, self._say = replica, door, folder, meeting, say

    @staticmethod
    async def read(replica: Replica) -> Past:
        """Read a log that may be large. Others are heard meanwhile: they would take this leader for lost."""
        past, loop = Past(), asyncio.get_running_loop()
        until_s = loop.time() + BREATH_S
        for entry in replica.log.all():
            past.take(entry)
            if loop.time() >= until_s:
                await asyncio.sleep(0)
                until_s = loop.time() + BREATH_S
        return past

    def journal(self, spec: RolesSpec) -> LoggedJournal:
        """Return the journal, with what earlier leaders wrote. Raises OSError."""
        return LoggedJournal(self._folder, spec, self.past, self._replica, self._say)

    def queues(self, limits: QueueLimits) -> QueueBook:
        """Return the queues, none of them open yet."""
        made: dict[str, LoggedQueue] = {}

        def make(name: str, now_s: float) -> LoggedQueue:
            state = self.past.queues.get(name, QueueState())
            state = msgspec.structs.replace(state, limits=limits)
            made[name] = LoggedQueue(name, state, self._replica, now_s)
            return made[name]

        def write_whole() -> None:
            for queue in made.values():
                queue.write_whole()

        self._replica.write_whole = write_whole
        return QueueBook("", limits, self._say, make)

    def reopen(self, queues: QueueBook, now_s: float) -> None:
        """Open all queues there were."""
        for name in self.past.queues:
            queues.open(name, now_s)

    def listen(self, server: RoleServer) -> None:
        """Have nodes and workers come to this leader."""
        server.gate = self._replica.after_commit
        self._door.leading = server

    def know_of(self, book: NodeBook) -> None:
        """Hear of nodes that leave."""
        book.leaves = self._replica.leaves

    def found(self, book: NodeBook) -> None:
        """All nodes are here: the first of them get a vote. Raises OSError."""
        found = [Voter(name, address, port) for name, (address, port) in book.listening().items()]
        if len(found) < FEWEST_NODES:
            self.found_later(book, FEWEST_NODES)
            return
        first = [each for each in found if each.name == self._meeting.name]
        others = [each for each in found if each.name != self._meeting.name]
        voters = (*first, *others)[:MOST_VOTERS]
        self._replica.record_voters(voters)
        book.founded(Founded(voters=voters))
        self._replica.found(voters)

    @property
    def voters(self) -> tuple[str, ...]:
        """Names of the other voters."""
        return tuple(each.name for each in self._replica.voters if each.name != self._meeting.name)

    def goes_on(self, book: NodeBook) -> None:
        """An earlier leader has told who the voters are; nodes that come later, or are started anew, hear it from this one."""
        if not self.is_founding:
            book.founded(Founded(voters=self._replica.voters))

    def found_later(self, book: NodeBook, nodes: int) -> None:
        """A job that goes on after all its processes had ended: others get a vote once all nodes are here."""
        if self.is_founding:
            self._founding = asyncio.ensure_future(self._found_once(book, nodes))

    async def _found_once(self, book: NodeBook, nodes: int) -> None:
        while len(book.listening()) < max(nodes, FEWEST_NODES):
            await asyncio.sleep(LOOK_S)
        self.found(book)

    async def over(self, book: NodeBook, code: int, sentence: str) -> None:
        """The end is decided: once that is committed, all nodes are told, and may leave."""
        await self._replica.committed()
        self._replica.over()
        book.over(code, sentence)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + LINGER_S
        while not book.all_left() and loop.time() < until_s:
            await asyncio.sleep(LOOK_S)
