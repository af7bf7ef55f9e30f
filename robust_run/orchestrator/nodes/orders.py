"""What the leader has done on a node that does not lead: launchers start and end there, code comes and goes, under a lease."""

from __future__ import annotations

import signal
from collections.abc import Callable

import msgspec

from robust_run.clock import Clock
from robust_run.errors import RobustRunError
from robust_run.launcher.control.code_transfer import parts_of
from robust_run.orchestrator.launchers import Launchers
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.node_words import (
    LEASE_S,
    Beat,
    CodeKept,
    CodeParts,
    CodeWanted,
    FromNode,
    Order,
    RestartOrder,
    StopOrder,
    UpdateOrder,
)
from robust_run.orchestrator.model.words import Event, StopMember, WorldEnded
from robust_run.orchestrator.rules.lease import NodeLease


class Orders:
    """Of one node. `send`: to the leader; `happened`: what becomes of members; `say`: tells people."""

    def __init__(
        self,
        launchers: Launchers,
        node: str,
        clock: Clock,
        lease: NodeLease,
        send: Callable[[FromNode], None],
        happened: Callable[[Event], None],
        say: Callable[[str], None],
    ) -> None:
        self.launchers, self.lease = launchers, lease
        self.offered_s = clock.monotonic_s()
        """When it was last said what runs here."""
        self.is_leaving = False
        """Nothing is started any more."""
        self._node, self._clock = node, clock
        self._send, self._happened, self._say = send, happened, say
        self._fenced: set[tuple[MemberName, int]] = set()
        """Launchers that were told to end because the lease was over."""
        self._told: set[tuple[MemberName, int]] = set()
        """Launchers that were told to end at all: a second signal would not leave them time to."""

    def take(self, message: object) -> None:
        """Do what the leader says."""
        match message:
            case Beat(sent_s=sent_s):
                self.lease.renewed(sent_s)
                self.launchers.lease(self.lease.until_s)
            case Order() if not self.is_leaving:
                self._start(message)
            case StopOrder():
                self.launchers.stop(message.stop)
            case RestartOrder():
                self.launchers.restart(message.restart)
            case UpdateOrder() | CodeParts() | CodeWanted() | CodeKept():
                self._take_of_code(message)
            case _:
                pass

    def _take_of_code(self, message: UpdateOrder | CodeParts | CodeWanted | CodeKept) -> None:
        shelf = self.launchers.shelf
        if isinstance(message, UpdateOrder):
            self.launchers.update(message.order)
        elif isinstance(message, CodeKept):
            for tree in message.trees:
                if not shelf.store.has(tree):
                    self._send(CodeWanted(tree=tree))
        elif isinstance(message, CodeWanted):
            for parts in parts_of(shelf.store, message.tree):
                self._send(CodeParts(parts=parts))
        else:
            try:
                shelf.take(message.parts)
            except RobustRunError as error:
                self._say(f"a version of the code cannot be kept on this node: {error}")

    def _start(self, order: Order) -> None:
        """Start a member. Who is given orders was taken in: so the leader has heard this node since it came."""
        self.lease.renewed(self.offered_s)
        self.launchers.lease(self.lease.until_s)
        if self.lease.due(self._clock.monotonic_s()):
            # It was read so late that the leader may have given it to another.
            sentence = f"{self._node} took it up too late"
            member, serial = order.start.member, order.start.serial
            self._happened(WorldEnded(member=member, serial=serial, code=-signal.SIGKILL, sentence=sentence))
        else:
            self.launchers.start(order.role, order.start, order.meets)

    def as_told(self, event: Event) -> Event:
        """Return what the leader is told of an event: a member that was ended for the lease has not failed by itself."""
        if isinstance(event, WorldEnded) and event.code and (event.member, event.serial) in self._fenced:
            sentence = f"its node {self._node} heard nothing of the leader for {LEASE_S:.0f} s, so it was ended"
            return msgspec.structs.replace(event, code=-signal.SIGKILL, sentence=sentence)
        return event

    def end_all(self, number: int) -> set[tuple[MemberName, int]]:
        """Tell all that run and were not told to end; SIGKILL is for all. Return those that run."""
        running = {(each.member, each.serial) for each in self.launchers.now() if each.code is None}
        for member, serial in running if number == signal.SIGKILL else running - self._told:
            self.launchers.stop(StopMember(member=member, serial=serial, signal=number))
        self._told |= running
        return running

    def end_what_may_not_run(self, now_s: float) -> None:
        """End what runs here once the lease is over, or when this node leaves."""
        if not self.launchers.running():
            return
        if self.is_leaving:
            self.end_all(signal.SIGTERM)  # also what was started in the same moment
        due = self.lease.due(now_s)
        if not due:
            return
        before = self._fenced
        self._fenced = before | self.end_all(signal.SIGKILL if due == "kill" else signal.SIGTERM)
        if self._fenced != before:
            self._say(f"nothing was heard of the leader for {LEASE_S:.0f} s: what runs on this node is ended")
