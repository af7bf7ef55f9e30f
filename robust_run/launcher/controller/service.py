"""The controller's side of all connections: who has gone silent, and the way of orders to their nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from robust_run.clock import Clock
from robust_run.launcher.control import frames
from robust_run.launcher.control.greeting import digest
from robust_run.launcher.control.messages import (
    CandidateList,
    CodeWanted,
    ControlNotice,
    EventReport,
    FromAgent,
    Heartbeat,
    Hello,
    JoinRefused,
    Leaving,
    Orders,
    ToldToLeave,
    Welcome,
)
from robust_run.launcher.control.peer import Peer
from robust_run.launcher.control.server import ControlServer
from robust_run.launcher.controller.admission import Admission, has_stale
from robust_run.launcher.controller.leadership.succession import Succession
from robust_run.launcher.controller.leases import LeaseJournal, Leases
from robust_run.launcher.controller.other_versions import OtherVersions
from robust_run.launcher.controller.out_of_sight import SightWatch, sight_of
from robust_run.launcher.core.failure_detector import FailureDetector
from robust_run.launcher.core.membership import fewest_of
from robust_run.launcher.core.rebase import rebase, rebased_sights
from robust_run.launcher.model.actions import EndAttempt, Order
from robust_run.launcher.model.check_events import ChecksSaid, FactsTold, PlaceOpened
from robust_run.launcher.model.checkpoints_seen import CheckpointsSeen
from robust_run.launcher.model.events import NodeEvent, SignalReceived
from robust_run.launcher.model.job import JobSpec, ManyNodes, Paces, Sights
from robust_run.launcher.model.lease_times import lease_times
from robust_run.launcher.model.nccl_windows import NcclWindow
from robust_run.launcher.model.node_events import (
    LeaseRecorded,
    NodeCannotStart,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeReturned,
    NodeToldToLeave,
)
from robust_run.launcher.model.reduced_values import ReducedValues
from robust_run.launcher.model.start_notes import Starts

if TYPE_CHECKING:
    from robust_run.launcher.controller.code.sending import CodeSending
    from robust_run.launcher.controller.controller import Controller

#: How often silence is looked for.
LOOK_S = 0.1


class Service:
    """The handler of a `ControlServer`, and the `Outbox` of a `Controller`."""

    def __init__(
        self,
        spec: JobSpec,
        many: ManyNodes,
        run_id: str,
        clock: Clock,
        note: Callable[[str], None],
        host_agent: str,
        term: int = 1,
        setup: bytes | None = None,
    ) -> None:
        """`setup`: the manifest of the job's snapshot; empty: there is none, None: it is not known."""
        self.server: ControlServer | None = None
        self.controller: Controller | None = None
        self.times = lease_times(many)
        self.detector = FailureDetector(self.times.lost_s)
        self.lease_record = LeaseJournal(note, self._tell)
        self.leases = Leases(self.times, many.heartbeat_s, self.detector, self.lease_record)
        self.sight = SightWatch(self.times, many.heartbeat_s)
        self.on_out_of_sight: Callable[[], None] = lambda: None
        """Called when this leader has seen too few nodes for too long, and others may lead."""
        self._looked_at_s: float | None = None
        self.leads_until_s = float("inf")
        self.code_folder = ""
        """Where versions of the code are kept."""
        self._code: CodeSending | None = None
        self._spec = spec
        self._many = many
        self._run_id = run_id
        self._clock = clock
        self._note = note
        self._host_agent = host_agent
        self._term = term
        self._setup = setup
        self._setup_digest = digest(setup or b"")
        self.peers: dict[str, Peer] = {}
        """The connected agents, by their ids."""
        self.succession = Succession(self, many, host_agent)
        self._admission = Admission(spec, many, run_id)
        self._other_versions = OtherVersions()
        self._newest: tuple[Order, bytes] | None = None
        """The order that was sent last, and its frame: the same order for many nodes is encoded once."""

    # --- Outbox

    def send(self, node: str, order: Order) -> None:
        """Pass an order on to an agent that is connected."""
        if self._clock.monotonic_s() >= self.leads_until_s:
            return  # somebody else may lead by now
        peer = self.peers.get(node)
        if peer is None:
            return
        if self._newest is None or self._newest[0] is not order:
            self._newest = order, frames.encode(Orders(term=self._term, orders=(order,)))
        peer.send_frame(self._newest[1])

    @property
    def connected(self) -> int:
        """How many agents are connected."""
        return len(self.peers)

    # --- Handler

    def joined(self, peer: Peer, hello: Hello) -> Welcome | JoinRefused:
        """Let an agent in, unless it is one of another job or takes a place that is taken."""
        controller = self.controller
        if controller is None:
            return JoinRefused(reason="the controller is starting", final=False)
        refusal = self._admission.refusal(hello, self._term)
        if refusal is None and hello.asks_setup:
            return self._welcome(setup=self._setup)
        if refusal is None and hello.cannot_start:
            controller.tell(NodeCannotStart(name=hello.node.name, reason=hello.cannot_start))
            return JoinRefused(reason="the job knows that this node cannot start")
        refusal = refusal or self._admission.taken(hello, controller.state, self.peers)
        if refusal is not None:
            return refusal
        self._outrank(hello.term)
        node = hello.node
        old = self.peers.get(node.id)
        if old is not None:
            old.drop("the same agent connected again")
        self.peers[node.id] = peer
        now_s = self._clock.monotonic_s()
        if self.sight.is_lost and self.detector.silent_s(node.id, now_s) is not None:
            self._sees_again(now_s)
        self.detector.heard(node.id, now_s)
        for event in hello.events:
            controller.tell(rebase(event, peer.clock_ahead_s, self._clock.unix_s()))
        if node.id in controller.state.members:
            controller.tell(NodeReturned(node=node.id, attempt=hello.attempt, name=node.name))
        else:
            controller.tell(NodeJoined(node=node, attempt=hello.attempt))
            if note := self._other_versions.note(node.name, node.version):
                controller.book.say(note)
        if has_stale(controller.state, node.id, hello.attempt):
            self.send(node.id, EndAttempt(attempt=hello.attempt))
        self._line_up()
        return self._welcome(lease_s=self.leases.connected(node.id, now_s).lease_s)

    def _tell(self, event: LeaseRecorded) -> None:
        if self.controller is not None:
            self.controller.tell(event)

    def grant(self, peer: Peer, late_s: float) -> float:
        """Return the length of the lease that the answer to a heartbeat renews."""
        return self.leases.heartbeat(peer.id, late_s, peer.last_heard_s).lease_s

    def _welcome(self, setup: bytes | None = None, lease_s: float | None = None) -> Welcome:
        return Welcome(
            proof=b"",
            term=self._term,
            run_id=self._run_id,
            rdzv_id=self._spec.rdzv_id,
            heartbeat_s=self._many.heartbeat_s,
            lease_s=self.times.lease_s if lease_s is None else lease_s,
            candidates=self.succession.candidates,
            setup=setup,
            setup_digest=self._setup_digest,
        )

    def _outrank(self, term: int) -> None:
        """Take over a term that agents have obeyed: without candidates there is one controller, whose journal lost records."""
        if term <= self._term:
            return
        self._term, self._newest = term, None
        if self.server is not None:
            self.server.beat_term = term

    def received(self, peer: Peer, message: FromAgent) -> None:
        """Take in what an agent says."""
        if self.peers.get(peer.id) is not peer or self.controller is None:
            return
        match message:
            case EventReport():
                for event in message.events:
                    self._report(peer, event)
            case Leaving():
                self.controller.tell(NodeLeft(node=peer.id, reason=message.reason))
                self._line_up()
            case ToldToLeave():
                self.controller.tell(NodeToldToLeave(node=peer.id, signal=message.signal))
                self._line_up()
            case Heartbeat():
                self.controller.see_usage(peer.id, message.usage)
            case Sights() | Paces() | Starts():
                self.controller.see(peer.id, rebased_sights(message, peer.clock_ahead_s))
            case FactsTold() | PlaceOpened() | ChecksSaid() | CheckpointsSeen() | NcclWindow() | ReducedValues():
                self.controller.see(peer.id, message)
            case CodeWanted():
                self._send_code(peer, message.tree)
            case ControlNotice():
                self._note(f"{peer.name}: {message.text[:1000]}")

    def _send_code(self, peer: Peer, tree: str) -> None:
        if self._code is None:
            from robust_run.launcher.controller.code.sending import CodeSending

            assert self.server is not None
            self._code = CodeSending(self.code_folder, self.server.loop.call_later)
        self._code.send(peer, tree)

    def _report(self, peer: Peer, event: NodeEvent) -> None:
        assert self.controller is not None
        if isinstance(event, SignalReceived) and peer.id != self._host_agent:
            return  # only the node where the user started the job can end it
        self.controller.tell(rebase(event, peer.clock_ahead_s, self._clock.unix_s()))

    def gone(self, peer: Peer, why: str) -> None:
        """Note that a connection ended; its agent may come back until it must have fenced itself."""
        if self.peers.get(peer.id) is peer:
            del self.peers[peer.id]
            self.detector.heard(peer.id, peer.last_heard_s)
            if self.controller is not None and not self.controller.state.is_over:
                self._note(f"the connection to {peer.name} ended: {why}")

    def trouble(self, text: str) -> None:
        """Note what happened at the port."""
        self._note(text)

    # --- silence

    def look(self) -> None:
        """Tell the controller of agents that have been silent for too long. Call every `LOOK_S`."""
        now_s, before_s = self._clock.monotonic_s(), self._looked_at_s
        if before_s is not None:
            self.leases.own_look(now_s - before_s - LOOK_S, now_s)
        self._looked_at_s = now_s
        if self.server is not None:
            heard = (each for each in self.server.take_heard() if self.peers.get(each.id) is each)
            self.detector.heard_all([(each.id, each.last_heard_s) for each in heard])
        if not self._keeps_sight(now_s):
            return
        stood_s = self.leases.stood_s(now_s)
        for node, silent_s in self.detector.lost(now_s):
            self.detector.forget(node)
            if (silent := self.peers.pop(node, None)) is not None:
                silent.drop(f"silent for {silent_s:.1f} s")
            if self.controller is not None:
                self.controller.tell(NodeLost(node=node, silent_s=silent_s, stood_s=stood_s))
        self._line_up()

    def _keeps_sight(self, now_s: float) -> bool:
        """Whether this leader sees enough nodes to decide anything, or none that it does not see could lead."""
        controller = self.controller
        if controller is None or self._many.controller_standby == 0:
            return True
        was_lost, state, line = self.sight.is_lost, controller.state, self.succession.candidates
        after_s = self.sight.silent_after_s
        sight = sight_of(state, self.detector, self.leases, line, self._host_agent, after_s, now_s)
        stands_down = self.sight.look(sight, fewest_of(controller.policy, state), now_s)
        if self.sight.is_lost and not was_lost:
            controller.waits = True
            self._note("this controller has lost sight of the nodes that its job needs: it decides nothing for now")
        elif was_lost and not self.sight.is_lost:
            self._sees_again(now_s)
        if stands_down:
            self.on_out_of_sight()
        return not self.sight.is_lost

    def _sees_again(self, now_s: float) -> None:
        """Go on: who was silent together with all others is waited for from now on."""
        assert self.controller is not None
        self.sight.is_lost = False
        self.detector.wait_anew(now_s - self.sight.silent_after_s, now_s)
        self._note("this controller sees its nodes again")
        self.controller.go_on()

    def _line_up(self) -> None:
        """Keep the next agents in line informed that they are."""
        if self.succession.has_changed() and self.server is not None:
            line = CandidateList(term=self._term, candidates=self.succession.candidates)
            self.server.send_all(self.peers.values(), line)
