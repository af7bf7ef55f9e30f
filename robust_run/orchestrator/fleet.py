"""Where orders of the leader go: to launchers of this node, or to another node; and ends of members that run on several. Pure but
for passing on.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from robust_run.orchestrator.launchers import Launchers
from robust_run.orchestrator.model.command import Meets, run_name
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.node_words import Order
from robust_run.orchestrator.model.spec import RoleSpec, RolesSpec
from robust_run.orchestrator.model.state import JobState
from robust_run.orchestrator.model.update_words import UpdateMember
from robust_run.orchestrator.model.words import Event, RestartMember, StartMember, StopMember, WorldEnded
from robust_run.orchestrator.nodes.book import NodeBook

#: Where nodes of one member meet: above what is usually listened on, below what the kernel gives away.
FIRST_PORT, PORTS = 20000, 12000


class Fleet:
    """`here`: this node's name, and where others reach it. `others`: None where the job has one node."""

    def __init__(
        self,
        spec: RolesSpec,
        state: JobState,
        here: str,
        address: str,
        launchers: Launchers | None,
        tell: Callable[[Event], None],
    ) -> None:
        self._spec, self._state, self._here, self._address = spec, state, here, address
        self._launchers, self._tell = launchers, tell
        self.others: NodeBook | None = None
        self._ended: dict[tuple[MemberName, int], dict[str, WorldEnded]] = {}

    def start(self, start: StartMember) -> None:
        """Have a member started on each of its nodes."""
        for name in start.nodes:
            order = self.order(start, name)
            if self._launchers is not None and name == self._here:
                self._launchers.start(order.role, start, order.meets)
            elif self.others is not None:
                self.others.start(name, order)

    def stop(self, stop: StopMember) -> None:
        """Have a member told to end, on each of its nodes."""
        for name in self._state.members[stop.member].nodes:
            if self._launchers is not None and name == self._here:
                self._launchers.stop(stop)
            elif self.others is not None:
                self.others.stop(name, stop)

    def update(self, order: UpdateMember) -> None:
        """Have a member put a version of its role's code in place; its first node has its controller."""
        nodes = self._state.members[order.member].nodes
        if self._launchers is not None and nodes[:1] == (self._here,):
            self._launchers.update(order)
        elif nodes and self.others is not None:
            self.others.update(nodes[0], order)

    def restart(self, order: RestartMember) -> None:
        """Have a member's workers started again."""
        for name in self._state.members[order.member].nodes:
            if self._launchers is not None and name == self._here:
                self._launchers.restart(order)
            elif self.others is not None:
                self.others.restart(name, order)

    def order(self, start: StartMember, name: str) -> Order:
        """Return the order for one of a member's nodes."""
        role: RoleSpec = self._spec.role(start.member.role)
        if len(start.nodes) < 2:
            return Order(role=role, start=start)
        first = start.nodes[0]
        is_here = self._launchers is not None and first == self._here
        address = self._address if is_here or self.others is None else self.others.address(first)
        port = FIRST_PORT + zlib.crc32(run_name(start).encode()) % PORTS
        return Order(role=role, start=start, meets=Meets(address, port, start.nodes.index(name)))

    def happened(self, node: str, event: Event) -> None:
        """Take in what happened to a member on a node: a member of several has ended when all of its launchers have."""
        if isinstance(event, WorldEnded):
            member = self._state.members.get(event.member)
            is_of_several = (event.member, event.serial) in self._ended or (member and len(member.nodes) > 1)
            if member is not None and member.serial == event.serial and is_of_several:
                joined = self._joined(node, event, member.nodes)
                if joined is None:
                    return
                event = joined
        self._tell(event)

    def node_gone(self) -> None:
        """A node is gone: members whose launchers have ended on all others have ended."""
        for (name, serial), ended in list(self._ended.items()):
            member = self._state.members[name]
            if member.serial != serial or not member.nodes:
                del self._ended[name, serial]
            elif all(node in ended for node in member.nodes):
                node, event = next((node, ended[node]) for node in member.nodes)
                joined = self._joined(node, event, member.nodes)
                if joined is not None:
                    self._tell(joined)

    def _joined(self, node: str, event: WorldEnded, nodes: tuple[str, ...]) -> WorldEnded | None:
        """Return the end of all, with the word of the first that failed; None: some go on."""
        ended = self._ended.setdefault((event.member, event.serial), {})
        ended.setdefault(node, event)
        if not all(name in ended for name in nodes):
            return None
        del self._ended[event.member, event.serial]
        failed = [each for each in ended.values() if each.code]
        told = [each for each in failed if each.sentence]
        return (told or failed or [event])[0]
