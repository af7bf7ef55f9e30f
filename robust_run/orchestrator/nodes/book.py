"""The other nodes of a job, as its leader knows them: who is here, what they were told, when one is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from robust_run.launcher.control.handshake import printable
from robust_run.orchestrator.connection import Worker
from robust_run.orchestrator.model.node_words import (
    BEAT_S,
    GONE_S,
    Beat,
    CodeParts,
    CodeWanted,
    Founded,
    Happened,
    JobOver,
    Leaving,
    NodeWelcome,
    NotYet,
    Offer,
    Order,
    RestartOrder,
    StopOrder,
    Taken,
    ToNode,
    UpdateOrder,
)
from robust_run.orchestrator.model.state import UP, JobState
from robust_run.orchestrator.model.update_words import CodeFate, CodeLost, CodeSeen, UpdateMember
from robust_run.orchestrator.model.words import (
    Event,
    NodeGone,
    NodeOffered,
    RestartMember,
    StartMember,
    StopMember,
    WorldEnded,
)
from robust_run.orchestrator.nodes.carrier import Carrier
from robust_run.orchestrator.rules.labels import MOST_LABELS, is_label
from robust_run.orchestrator.rules.update_questions import is_rolled_back, under_way
from robust_run.orchestrator.rules.update_rules import start_again

MOST_NODES = 4096
#: Who was heard so lately is no remainder of a connection that broke.
LIVES_S = 3 * BEAT_S
SIGTERM, SIGKILL = 15, 9


class _Node:
    """One of them."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.address = ""
        self.port = 0
        self.boot = ""
        self.taken = 0
        """What happened there is on record up to this number."""
        self.heard_s = float("-inf")
        """When it was last heard, by the loop's clock."""
        self.is_leaving = ""
        """Why, where it was told to leave: its members' ends are no failures of theirs."""
        self.timer: asyncio.TimerHandle | None = None
        self.open: set[int] = set()
        """Numbers of what happened there and is not on record: code is not here yet."""


class NodeBook:
    """`tell`: takes in what becomes of nodes; `happened`: what happened on one, to a member; `ordered`: makes the order of one
    again that was to be started there.
    """

    def __init__(
        self,
        run_id: str,
        job: str,
        state: JobState,
        tell: Callable[[Event], None],
        happened: Callable[[str, Event], None],
        say: Callable[[str], None],
        ordered: Callable[[StartMember, str], Order],
        gone_s: float = GONE_S,
    ) -> None:
        self._run_id, self._job, self._state = run_id, job, state
        self._tell, self._happened, self._say, self._ordered = tell, happened, say, ordered
        self._gone_s = gone_s
        self.code = Carrier(self._send, self.here, say)
        self.most = MOST_NODES
        """Nodes that are let in at the same time, but the one that leads."""
        self.term = 0
        """Of the leader, where another node can lead on."""
        self.leaves: Callable[[str, bool], None] = lambda _, __: None
        """Is told when a node leaves, or another process of it is here."""
        self._founded: Founded | None = None
        self._over: JobOver | None = None
        self._nodes: dict[str, _Node] = {}
        self._of: dict[Worker, str] = {}

    def expect(self, names: Iterable[str]) -> None:
        """Nodes that an earlier leader had: they come back, or are gone."""
        for name in names:
            node = self._nodes.setdefault(name, _Node())
            self._watch(name, node)
            node.heard_s = float("-inf")

    def address(self, name: str) -> str:
        """Return where a node is reached."""
        node = self._nodes.get(name)
        return node.address if node is not None else ""

    def came(self, worker: Worker) -> None:
        """A node is here; it is not known yet which."""
        worker.send(NodeWelcome(run_id=self._run_id, job=self._job, term=self.term))

    def hear(self, worker: Worker, message: object) -> None:
        """Take in what a node says that has proven to know the secret."""
        if isinstance(message, Offer):
            self._offered(worker, message)
            return
        name = self._of.get(worker, "")
        node = self._nodes.get(name)
        if node is None or node.worker is not worker:
            return  # it was taken for gone, or it has not said who it is
        self._watch(name, node)
        if isinstance(message, Beat):
            worker.send(message)
        elif isinstance(message, Happened):
            self._take(name, node, message)
        elif isinstance(message, CodeParts):
            self.code.take(name, message.parts)
        elif isinstance(message, CodeWanted):
            self.code.wanted(name, message.tree)
        elif isinstance(message, Leaving):
            node.is_leaving = printable(message.why) or "it was told to leave"
            self._say(f"{name} leaves: {node.is_leaving}")
            self.leaves(name, True)

    def went(self, worker: Worker) -> None:
        """A connection has ended. One that was leaving is gone; any other may come back."""
        name = self._of.pop(worker, "")
        node = self._nodes.get(name)
        if node is None or node.worker is not worker:
            return
        node.worker = None
        if node.is_leaving:
            self._gone(name, node.is_leaving)

    def start(self, name: str, order: Order) -> None:
        """Have a member started; a node that is away hears of it when it is back."""
        tree = order.start.code.tree if order.start.code is not None else ""
        self.code.once_here(tree, lambda is_here: self._start(name, order, is_here=is_here))

    def _start(self, name: str, order: Order, *, is_here: bool) -> None:
        start, version = order.start, order.start.code
        member = self._state.members[start.member]
        if member.serial != start.serial or member.standing not in UP:
            return
        if member.standing == "stopping":
            why = "it was to end before it was started"
            self._happened(name, WorldEnded(member=start.member, serial=start.serial, code=-SIGTERM, sentence=why))
            return
        if version is not None and not is_here:
            why = f"version {version.number} of the code of {start.member.role} is on no node that is here"
            self._tell(CodeLost(role=start.member.role, number=version.number, why=why))
            if is_rolled_back(self._state, start.member.role, version.number):
                self._happened(name, WorldEnded(member=start.member, serial=start.serial, code=-SIGKILL, sentence=why))
                return
            self._say(f"{why}: {start.member} starts with what lies in the folder")
        self.code.carry(name, version.tree if version is not None else "")
        self._send(name, order)

    def update(self, name: str, order: UpdateMember) -> None:
        """Have a member put a version in place."""
        self.code.once_here(order.version.tree, lambda is_here: self._update(name, order, is_here=is_here))

    def _update(self, name: str, order: UpdateMember, *, is_here: bool) -> None:
        number = order.version.number
        member = self._state.members[order.member]
        if not is_here and (member.serial, member.ordered) == (order.serial, number):
            why = "its code is on no node that is here"
            self._tell(CodeFate(member=order.member, serial=order.serial, number=number, fate="refused", why=why))
        if is_here:
            self.code.carry(name, order.version.tree)
            self._send(name, UpdateOrder(order=order))

    def stop(self, name: str, stop: StopMember) -> None:
        """Have a member's launcher told to end."""
        self._send(name, StopOrder(stop=stop))

    def restart(self, name: str, order: RestartMember) -> None:
        """Have a member's launcher asked to start its workers again."""
        self._send(name, RestartOrder(restart=order))

    def listening(self) -> dict[str, tuple[str, int]]:
        """Return where nodes listen, in the order in which they came; without those that do not."""
        return {name: (node.address, node.port) for name, node in self._nodes.items() if node.port}

    def founded(self, founded: Founded) -> None:
        """Tell all who the voters are, and who comes later."""
        self._founded = founded
        for name in self._nodes:
            self._send(name, founded)

    def here(self) -> list[str]:
        """Return which nodes are connected."""
        return [name for name, node in self._nodes.items() if node.worker is not None]

    def all_left(self) -> bool:
        """Whether no node is connected."""
        return all(node.worker is None for node in self._nodes.values())

    def over(self, code: int, sentence: str = "") -> None:
        """Tell all that the job is over, and who comes later."""
        self._over = JobOver(code=code, sentence=sentence)
        for name, node in self._nodes.items():
            if node.timer is not None:
                node.timer.cancel()
            self._send(name, self._over)

    def _send(self, name: str, message: ToNode) -> bool:
        node = self._nodes.get(name)
        if node is None or node.worker is None:
            return False
        node.worker.send(message)
        return True

    def _offered(self, worker: Worker, offer: Offer) -> None:
        name = printable(offer.name)[:255]
        node = self._nodes.get(name)
        why, for_good = self._why_not(name, node, worker, offer)
        if why:
            worker.end(why) if for_good else self._not_yet(worker, why)
            return
        if node is None:
            node = self._nodes[name] = _Node()
        if node.worker is not None and node.worker is not worker:
            self._of.pop(node.worker, None)  # its end of the old connection is gone, which this end has not noticed
            node.worker.end()
        node.worker, node.address, node.port = worker, printable(offer.address)[:255], offer.port
        is_new = offer.boot != node.boot
        if is_new:
            node.boot, node.taken, node.open = offer.boot, 0, set()
            self.leaves(name, False)
        self._of[worker] = name
        if self._over is not None:
            worker.send(self._over)
            return
        self._watch(name, node)
        if self._founded is not None:
            worker.send(self._founded)
        self._tell(
            NodeOffered(
                node=name,
                slots=offer.slots,
                devices=offer.devices,
                cpus=offer.cpus,
                labels=tuple(label for label in offer.labels[:MOST_LABELS] if is_label(label)),
                guard=offer.guard[:64],
            )
        )
        self.code.came(name, is_new=is_new)
        self._agree(name, offer)

    def _why_not(self, name: str, node: _Node | None, worker: Worker, offer: Offer) -> tuple[str, bool]:
        """Return why a node is not let in, empty if it is; and whether that will stay so."""
        if node is None:
            return ("", False) if len(self._nodes) < self.most else (f"the job has its {self.most + 1} nodes", False)
        lives = node.worker is not None and asyncio.get_running_loop().time() - node.heard_s < LIVES_S
        if node.worker is not None and node.worker is not worker and node.boot != offer.boot and lives:
            return f"a node called {name} is here already; give this one another name with --node-name", True
        there = self._state.nodes.get(name)
        if there is not None and there.guard and there.guard != offer.guard:
            return (
                f"what {name} ran before may not have ended; it is taken for gone {self._gone_s:.0f} s after its last word",
                False,
            )
        return "", False

    def _not_yet(self, worker: Worker, why: str) -> None:
        worker.send(NotYet(why=why))
        worker.end()

    def _agree(self, name: str, offer: Offer) -> None:
        """What should run there, and does not, is started or has ended; what should not, and does, is ended."""
        known = {(each.member, each.serial): each for each in offer.launchers}
        for member in list(self._state.members.values()):
            now = known.pop((member.name, member.serial), None)
            if member.standing not in UP or name not in member.nodes:
                if now is not None and now.code is None:
                    self.stop(name, StopMember(member=member.name, serial=now.serial))
            elif now is None and member.standing == "starting":
                self.start(name, self._ordered(start_again(self._state, member), name))
            elif now is None:
                sentence = f"{name} was started again without it"
                self._happened(name, WorldEnded(member=member.name, serial=member.serial, code=-9, sentence=sentence))
            elif member.standing == "stopping" and now.code is None:
                self.stop(name, StopMember(member=member.name, serial=member.serial))
        for order in under_way(self._state):
            if self._state.members[order.member].nodes[:1] == (name,):
                self.update(name, order)
        for (member_name, serial), now in known.items():
            if now.code is None:
                self.stop(name, StopMember(member=member_name, serial=serial))

    def _take(self, name: str, node: _Node, happened: Happened) -> None:
        if happened.number > node.taken:
            node.taken = happened.number
            self._take_new(name, node, happened)
        self._taken(name, node)

    def _taken(self, name: str, node: _Node) -> None:
        """Say what is on record: the rest is said again, to another leader if need be."""
        number = min(node.open, default=node.taken + 1) - 1
        if number:
            self._send(name, Taken(number=number))

    def _take_new(self, name: str, node: _Node, happened: Happened) -> None:
        event = happened.event
        if node.is_leaving and isinstance(event, WorldEnded):
            return  # told as the end of its node, when all of them have ended
        if not isinstance(event, CodeSeen):
            self._happened(name, event)
            return
        node.open.add(happened.number)
        boot = node.boot

        def seen(_: bool) -> None:
            self._happened(name, event)
            if node.boot == boot:
                node.open.discard(happened.number)
                self._taken(name, node)

        self.code.once_here(event.version.tree, seen, name)

    def _watch(self, name: str, node: _Node) -> None:
        if node.timer is not None:
            node.timer.cancel()
        loop = asyncio.get_running_loop()
        node.heard_s = loop.time()
        node.timer = loop.call_later(self._gone_s, self._gone, name, f"it has been silent for {self._gone_s:.0f} s")

    def _gone(self, name: str, why: str) -> None:
        node = self._nodes.pop(name, None)
        if node is None:
            return
        if node.timer is not None:
            node.timer.cancel()
        if node.worker is not None:
            self._of.pop(node.worker, None)
            node.worker.end("this node was silent for too long, and is taken for gone")
        self._say(f"{name} is gone: {why}")
        self._tell(NodeGone(node=name, why=why, was_told=bool(node.is_leaving)))
