"""The controller's side of all connections: who may join, who has gone silent, and the way of orders to their nodes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from robust_run.clock import Clock
from robust_run.launcher.control import frames
from robust_run.launcher.control.greeting import OTHER_JOB, digest
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
from robust_run.launcher.controller.leadership.alone import Company
from robust_run.launcher.controller.leases import LeaseJournal, Leases
from robust_run.launcher.controller.out_of_sight import SightWatch, sight_of
from robust_run.launcher.core.failure_detector import FailureDetector
from robust_run.launcher.core.membership import fewest_of
from robust_run.launcher.core.rebase import rebase, rebased_sights
from robust_run.launcher.model.actions import EndAttempt, Order
from robust_run.launcher.model.check_events import ChecksSaid, FactsTold, PlaceOpened
from robust_run.launcher.model.checkpoints_seen import CheckpointsSeen
from robust_run.launcher.model.events import (
    LeaseRecorded,
    NodeCannotStart,
    NodeEvent,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeReturned,
    NodeToldToLeave,
    SignalReceived,
)
from robust_run.launcher.model.job import JobSpec, ManyNodes, Paces, Sights
from robust_run.launcher.model.lease_times import lease_times
from robust_run.launcher.model.start_notes import Starts

if TYPE_CHECKING:
    from robust_run.launcher.controller.code.sending import CodeSending
    from robust_run.launcher.controller.controller import Controller
    from robust_run.launcher.controller.leadership.handing_over import Line

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
        self._peers: dict[str, Peer] = {}
        self._candidates: tuple[str, ...] = ()
        self._newest: tuple[Order, bytes] | None = None
        """The order that was sent last, and its frame: the same order for many nodes is encoded once."""
        self._is_begun = False
        self._by_node_rank: dict[int, list[str]] | None = None
        """Agents that were given a --node-rank; None: not collected yet."""

    # --- Outbox

    def send(self, node: str, order: Order) -> None:
        """Pass an order on to an agent that is connected."""
        if self._clock.monotonic_s() >= self.leads_until_s:
            return  # somebody else may lead by now
        peer = self._peers.get(node)
        if peer is None:
            return
        if self._newest is None or self._newest[0] is not order:
            self._newest = order, frames.encode(Orders(term=self._term, orders=(order,)))
        peer.send_frame(self._newest[1])

    @property
    def connected(self) -> int:
        """How many agents are connected."""
        return len(self._peers)

    def company(self) -> Company:
        """Return what is known of this leader's being alone (see `alone`)."""
        state = self.controller.state if self.controller is not None else None
        others = len(self._peers) - (self._host_agent in self._peers)
        if state is None or others or self._host_agent not in self._peers:
            return Company(others=others, is_stuck=False, lost_at_s=None)
        assert self.controller is not None
        followers = [each for each in state.members.values() if each.gone == "lost" and each.info.candidate]
        return Company(
            others=0,
            is_stuck=state.runs_nothing and state.usable < fewest_of(self.controller.policy, state),
            lost_at_s=max((each.since_s for each in followers), default=None),
        )

    # --- Handler

    def joined(self, peer: Peer, hello: Hello) -> Welcome | JoinRefused:
        """Let an agent in, unless it is one of another job or takes a place that is taken."""
        controller = self.controller
        if controller is None:
            return JoinRefused(reason="the controller is starting", final=False)
        if hello.term > self._term and self._many.controller_standby:
            return JoinRefused(
                reason=f"this controller has term {self._term}, a newer one has {hello.term}", final=False
            )
        refusal = self._refusal(hello)
        if refusal is None and hello.asks_setup:
            return self._welcome(setup=self._setup)
        if refusal is None and hello.cannot_start:
            controller.tell(NodeCannotStart(name=hello.node.name, reason=hello.cannot_start))
            return JoinRefused(reason="the job knows that this node cannot start")
        refusal = refusal or self._taken(hello)
        if refusal is not None:
            return refusal
        self._outrank(hello.term)
        node = hello.node
        old = self._peers.get(node.id)
        if old is not None:
            old.drop("the same agent connected again")
        self._peers[node.id] = peer
        now_s = self._clock.monotonic_s()
        if self.sight.is_lost and self.detector.silent_s(node.id, now_s) is not None:
            self._sees_again(now_s)
        self.detector.heard(node.id, now_s)
        for event in hello.events:
            controller.tell(rebase(event, peer.clock_ahead_s))
        if node.id in controller.state.members:
            controller.tell(NodeReturned(node=node.id, attempt=hello.attempt, name=node.name))
        else:
            controller.tell(NodeJoined(node=node, attempt=hello.attempt))
        self._end_stale(peer, hello.attempt)
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
            candidates=self._candidates,
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

    def _refusal(self, hello: Hello) -> JoinRefused | None:
        """Return why an agent does not belong here, None if it does."""
        named = {self._run_id, self._spec.rdzv_id, ""}
        if hello.job not in named:
            return JoinRefused(
                reason=f"job {hello.job!r} is not the one that runs here, which is {self._spec.rdzv_id!r} "
                f"(--rdzv-id, --run-id); {OTHER_JOB}"
            )
        mine = f"{self._many.fewest}:{self._many.most}"
        if hello.nnodes and hello.nnodes != mine:
            return JoinRefused(
                reason=f"--nnodes {hello.nnodes} on {hello.node.name} and {mine} on the controller's node differ; "
                "give the same everywhere"
            )
        return None

    def _taken(self, hello: Hello) -> JoinRefused | None:
        """Return what to say to a second node of the same --node-rank: no, or to wait, if the first may be gone."""
        rank = hello.node.node_rank
        state = self.controller.state if self.controller is not None else None
        if rank is None or state is None or hello.node.id in state.members:
            return None
        if self._by_node_rank is None:
            self._by_node_rank = {}
            for member in state.members.values():
                if member.info.node_rank is not None:
                    self._by_node_rank.setdefault(member.info.node_rank, []).append(member.info.id)
        holders = self._by_node_rank.setdefault(rank, [])
        for member in filter(None, map(state.members.get, holders)):
            if member.present:
                is_leaving = state is not None and member.info.id in state.told
                return JoinRefused(
                    reason=f"--node-rank {rank} is taken by {member.info.name}; give each node a rank of its own",
                    final=member.info.id in self._peers and not is_leaving,
                )
        holders.append(hello.node.id)
        return None

    def _end_stale(self, peer: Peer, attempt: int) -> None:
        """Have an agent that comes back end an attempt it was given up with.

        It has done so by itself, unless its machine was suspended, clocks and all: then it does not know how long it was away.
        """
        state = self.controller.state if self.controller is not None else None
        if state is None or not 0 <= attempt <= state.attempt or peer.id in state.strays:
            return
        if attempt < state.attempt or peer.id not in state.unended:
            self.send(peer.id, EndAttempt(attempt=attempt))

    def received(self, peer: Peer, message: FromAgent) -> None:
        """Take in what an agent says."""
        if self._peers.get(peer.id) is not peer or self.controller is None:
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
            case FactsTold() | PlaceOpened() | ChecksSaid() | CheckpointsSeen():
                self.controller.see(peer.id, message)
            case CodeWanted():
                self._send_code(peer, message.tree)
            case ControlNotice():
                self._note(f"{peer.name}: {message.text[:1000]}")
            case _:
                pass

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
        self.controller.tell(rebase(event, peer.clock_ahead_s))

    def gone(self, peer: Peer, why: str) -> None:
        """Note that a connection ended; its agent may come back until it must have fenced itself."""
        if self._peers.get(peer.id) is peer:
            del self._peers[peer.id]
            self.detector.heard(peer.id, peer.last_heard_s)
            controller = self.controller
            if controller is not None and not controller.state.is_over:
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
            heard = self.server.take_heard()
            self.detector.heard_all(
                [(each.id, each.last_heard_s) for each in heard if self._peers.get(each.id) is each]
            )
        if not self._keeps_sight(now_s):
            return
        for node, silent_s in self.detector.lost(now_s):
            self.detector.forget(node)
            silent = self._peers.pop(node) if node in self._peers else None
            if silent is not None:
                silent.drop(f"silent for {silent_s:.1f} s")
            if self.controller is not None:
                self.controller.tell(NodeLost(node=node, silent_s=silent_s))
        if self.controller is not None:
            self._line_up()

    def _keeps_sight(self, now_s: float) -> bool:
        """Whether this leader sees enough nodes to decide anything, or none that it does not see could lead."""
        controller = self.controller
        if controller is None or self._many.controller_standby == 0:
            return True
        was_lost = self.sight.is_lost
        state, after_s, sight = controller.state, self.sight.silent_after_s, None
        if self.detector.longest_silence_s(now_s) >= after_s and not state.is_stopping and not state.is_over:
            members = (each for each in state.members.values() if each.info.name not in state.evicted)
            sight = sight_of(members, self.detector, self.leases, self._candidates, self._host_agent, after_s, now_s)
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

    # --- who takes over

    @property
    def host_has_left(self) -> bool:
        """Whether the node of this controller leaves the job in good order, which goes on."""
        state = self.controller.state if self.controller is not None else None
        if state is None or self._many.controller_standby == 0 or state.is_over or state.stop_signal is not None:
            return False
        member = state.members.get(self._host_agent)
        return member is not None and member.gone == "left"

    def line(self) -> Line:
        """Return whether an agent in line to lead is there, and answers."""
        from robust_run.launcher.controller.leadership.handing_over import line_of

        assert self.controller is not None
        now_s, members = self._clock.monotonic_s(), self.controller.state.members.values()
        there = [each.info.id for each in members if each.present and each.info.candidate in self._candidates]
        silent_s = [self.detector.silent_s(each, now_s) if each in self._peers else None for each in there]
        return line_of(silent_s, self._many.heartbeat_s)

    def _start_is_kept(self) -> bool:
        """Whether a successor would know of the job's start, and for how many nodes it has to wait: before, none may follow."""
        if not self._is_begun and self.controller is not None:
            self._is_begun = not self.controller.state.is_new and self.lease_record.is_kept()
        return self._is_begun

    def _line_up(self) -> None:
        """Keep the next agents in line informed that they are."""
        if self._many.controller_standby == 0 or self.controller is None or not self._start_is_kept():
            return
        members, told = self.controller.state.members.values(), self.controller.state.told
        there = (m.info for m in members if m.present and m.info.id != self._host_agent and m.info.id not in told)
        able = (info.candidate for info in there if info.candidate)
        line = tuple(islice(able, self._many.controller_standby))
        if line == self._candidates:
            return
        self._candidates = line
        if self.server is not None:
            self.server.send_all(self._peers.values(), CandidateList(term=self._term, candidates=line))
