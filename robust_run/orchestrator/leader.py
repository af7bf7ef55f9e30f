"""The process that leads a job of several roles: events in, decisions on record, orders out."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress

from robust_run.clock import Clock
from robust_run.errors import PlatformError, RobustRunError, UserError
from robust_run.orchestrator.course.recorder import CourseRecorder
from robust_run.orchestrator.fleet import Fleet
from robust_run.orchestrator.guarding.words import Link
from robust_run.orchestrator.journal import Journal
from robust_run.orchestrator.launchers import Launchers
from robust_run.orchestrator.listening import LOOPBACK, open_place, place_of
from robust_run.orchestrator.machine import is_starved
from robust_run.orchestrator.model.node_words import Several
from robust_run.orchestrator.model.spec import MANY, RolesSpec
from robust_run.orchestrator.model.state import UP
from robust_run.orchestrator.model.update_words import UpdateMember
from robust_run.orchestrator.model.words import (
    Action,
    Asked,
    Begun,
    Changed,
    Event,
    Finish,
    JobStarted,
    Line,
    NodeGone,
    NodeLeads,
    NodeOffered,
    RankEnded,
    RankHeldUp,
    RankStopped,
    RestartMember,
    SayLine,
    StartMember,
    StopMember,
    Tick,
    WakeAt,
    WorldEnded,
)
from robust_run.orchestrator.nodes.book import NodeBook
from robust_run.orchestrator.nodes.under_slurm import ANEW, Start
from robust_run.orchestrator.queue.book import QueueBook
from robust_run.orchestrator.queue.serving import QueueService
from robust_run.orchestrator.rules import core
from robust_run.orchestrator.rules import update_questions as questions
from robust_run.orchestrator.rules.elastic import demand
from robust_run.orchestrator.rules.elastic.beginning import Beginning
from robust_run.orchestrator.rules.placement import needs, why_never
from robust_run.orchestrator.rules.queue_core import counts
from robust_run.orchestrator.rules.shortage import until_s
from robust_run.orchestrator.rules.stopped import StoppedBook
from robust_run.orchestrator.rules.waits import awaited
from robust_run.orchestrator.server import RoleServer
from robust_run.orchestrator.showing import Showing
from robust_run.orchestrator.succession.post import Post
from robust_run.orchestrator.updates.desk import CodeDesk
from robust_run.orchestrator.updates.shelf import Shelf
from robust_run.roles.queue_words import QueueLimits
from robust_run.terminal import plain

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PLACE = "roles.place"
#: How often it is looked whether all nodes have come.
LOOK_S = 0.1
#: More than any launcher makes.
ALL_ATTEMPTS = 1 << 62


class Leader:
    """One job of several roles on this machine. `folder`: its run directory, which exists; `link`: to the guard.

    Where the journal is not empty, an earlier leader was killed: this one goes on.
    """

    def __init__(
        self,
        spec: RolesSpec,
        folder: str,
        env: Mapping[str, str],
        clock: Clock,
        link: Link,
        several: Several | None = None,
        start: Start = ANEW,
        post: Post | None = None,
    ) -> None:
        """`several`: where nodes meet; None: this is the only one. `start`: of this job, and what this node has. `post`: where
        another node can lead on; None: none can.

        Raises PlatformError where what an earlier leader left is of another version, OSError.
        """
        self._spec, self._folder, self._env, self._clock = spec, folder, env, clock
        self._post = post
        self.guard_said: Sequence[object] = ()
        """What the guard has said already."""
        self._journal = post.journal(spec) if post is not None else Journal(folder, spec, self.say)
        self.state = core.replay(spec, self._journal.past)
        self.name = spec.name
        self._place = os.path.join(folder, PLACE)
        self._several, self._start = several, start
        self._here = several.name if several is not None else socket.gethostname()
        address = several.host if several is not None else LOOPBACK
        self._launchers: Launchers | None = None
        """None: launchers of this node hear what follows here, as those of any other."""
        if post is None:
            slurm = start.slurm
            members_env = env if slurm is None else slurm.members_env(env, folder)
            self._launchers = Launchers(folder, self._place, members_env, link, self._happened, self.say)
            self._launchers.trust = several.members_options if several is not None else ()
            pids = self._launchers.pids
        else:
            pids = post.pids
        shelf = self._launchers.shelf if self._launchers is not None else Shelf(folder)
        self._fleet = Fleet(spec, self.state, self._here, address, self._launchers, self.tell)
        self._events: deque[Event] = deque()
        self._busy = False
        self._stopped = StoppedBook()
        self._done: asyncio.Future[Finish] | None = None
        limits = QueueLimits(items=spec.queue_items, bytes=spec.queue_bytes, lease_s=spec.lease_s)
        self._queues = (
            post.queues(limits) if post is not None else QueueBook(os.path.join(folder, "queues"), limits, self.say)
        )
        self._before = place_of(self._place)
        secret = self._before.secret if self._before is not None else os.urandom(32)
        secret = several.secret if several is not None else secret
        service = QueueService(self._queues, clock)
        self._showing = Showing(spec, self.state, self._here, pids, service, clock)
        desk = CodeDesk(spec, self.state, shelf.store, clock, self.tell)
        self._server = RoleServer(
            secret,
            service,
            self.tell,
            self._showing.known,
            self._showing.newest,
            self._showing.look,
            desk.answer,
        )
        self._course = CourseRecorder(folder, clock, self._queues, service.idle, self.say)
        if several is not None:
            book = self._nodes_of(several, shelf)
            if post is not None:
                desk.fetch = lambda tree: book.code.once_here(tree, lambda _: None)

    def _nodes_of(self, several: Several, shelf: Shelf) -> NodeBook:
        """Return the other nodes, of which none has come yet."""
        post = self._post
        self._fleet.others = self._server.nodes = book = NodeBook(
            os.path.basename(self._folder),
            self._spec.name,
            self.state,
            self.tell,
            self._fleet.happened,
            self.say,
            self._fleet.order,
        )
        book.code.shelf, book.most = shelf, several.nodes - (post is None)
        if post is not None:
            book.term = post.term
            post.know_of(book)
        return book

    async def run(self) -> Finish:
        """Lead the job to its end. Raises UserError where no node could ever run one of its roles, OSError."""
        loop = asyncio.get_running_loop()
        self._done = loop.create_future()
        try:
            await self._open()
            self._course.start()
            for number in SIGNALS if self._post is None else ():  # the guard tells what follows this node's leader
                loop.add_signal_handler(number, self.signalled, number)
            if self._launchers is not None:
                self._launchers.listen(self.signalled, self.guard_said)
                if self._start.slurm is not None:
                    self._start.slurm.watch(self._folder, self.say, self._time_is_over)
            founds = self._post is None or self._post.is_founding
            if founds and self.state.start != self._start.token:
                self.tell(JobStarted(start=self._start.token))
            if founds and self.state.phase == "new":
                await self._begin()
            else:
                self._go_on()
            measuring = asyncio.ensure_future(self._measure())
            try:
                finish = await self._done
            finally:
                measuring.cancel()
            await self._over(finish)
            return finish
        except RobustRunError as error:
            if self._fleet.others is not None:
                self._fleet.others.over(error.exit_code, str(error))  # they would wait for another leader
            raise
        finally:
            self._course.close()
            self._server.close()
            self._queues.close()
            self._journal.close()

    async def _begin(self) -> None:
        if self._post is None:
            has = self._start.has
            self.tell(NodeOffered(node=self._here, slots=MANY, devices=has.devices, cpus=has.cpus, labels=has.labels))
        if self._several is not None:
            await self._all_nodes(self._several)
            if self._done is not None and self._done.done():
                return
        may_grow = self._several is not None and len(self.state.nodes) < self._several.nodes
        for role in self._spec.roles:
            if why := why_never(role, self.state.nodes):
                if may_grow:
                    self.say(f"{role.name} needs {needs(role)}: it waits for more nodes")
                    continue
                raise UserError(
                    f"[roles.{role.name}] needs {needs(role)}, and {why}: ask for less (nproc, devices, cpus, nodes, where)"
                )
        if self._post is not None and self._fleet.others is not None:
            self._post.found(self._fleet.others)
        self.tell(Begun(patience_s=self._start.patience_s))

    async def _all_nodes(self, several: Several) -> None:
        """Wait until all nodes have come; or, once the fewest have, for the last call. Raises PlatformError."""
        begin = Beginning(several, self._clock.monotonic_s())
        if words := begin.words(list(self.state.nodes)):
            self.say(words)
        while self.state.phase == "new" and not begin.is_over(len(self.state.nodes), self._clock.monotonic_s()):
            if begin.is_late(len(self.state.nodes), self._clock.monotonic_s()):
                raise PlatformError(begin.why(list(self.state.nodes)))
            await asyncio.sleep(LOOK_S)

    async def _measure(self) -> None:
        """Measure the demand for roles that follow it, window by window."""
        if not any(role.scale == "demand" for role in self._spec.roles):
            return
        while True:
            await asyncio.sleep(demand.window_s(self._spec))
            waiting = {name: counts(queue.state).waiting for name, queue in self._queues.queues.items()}
            window = self._server.queues.demand.window(waiting, self._clock.monotonic_s(), is_starved=is_starved())
            self.tell(window)

    def _go_on(self) -> None:
        """Do what an earlier leader decided and may not have done."""
        if self._post is not None:
            self.tell(NodeLeads(node=self._here, term=self._post.term))
        if self.state.phase == "over":
            self._do(Finish(code=self.state.code, sentence=self.state.sentence))
            return
        if self._fleet.others is not None:
            self._fleet.others.expect(
                name for name in self.state.nodes if name != self._here or self._launchers is None
            )
        for member in list(self.state.members.values()):
            if self._launchers is not None and member.standing in UP and self._here in member.nodes:
                start = StartMember(member=member.name, serial=member.serial, nodes=member.nodes)
                meets = self._fleet.order(start, self._here).meets
                self._launchers.adopt(self._spec.role(member.name.role), member, self.state, meets)
            elif member.standing == "pausing":
                self._do(WakeAt(at_s=member.until_s))
            elif member.short_since_s is not None:
                self._do(WakeAt(at_s=until_s(self.state, member)))
        for role in self.state.codes.values():
            role.wake_s = 0.0  # that timer is gone, and is set anew
        for order in questions.under_way(self.state):
            self._do(order)
        if self._launchers is not None:
            self._launchers.end_unknown()
        if self._post is not None and self._fleet.others is not None and self._several is not None:
            self._post.goes_on(self._fleet.others)
            self._post.found_later(self._fleet.others, self._several.fewest or self._several.nodes)
            # Who founded the job may have been lost before it began.
            self.tell(Begun(patience_s=self._start.patience_s))
        self.tell(Tick())

    async def _open(self) -> None:
        """Have the queues, and be reached."""
        if self._post is not None:
            self._post.reopen(self._queues, self._clock.monotonic_s())
            self._post.listen(self._server)
        else:
            self._queues.reopen(self._clock.monotonic_s())
            roles, listener = self._spec.names, self._start.listener
            await open_place(self._server, self._place, roles, self._several, self._before, listener)

    async def _over(self, finish: Finish) -> None:
        """Tell the other nodes that the job is over."""
        if self._fleet.others is not None and self._post is not None:
            await self._post.over(self._fleet.others, finish.code, finish.sentence)
        elif self._fleet.others is not None:
            self._fleet.others.over(finish.code, finish.sentence)

    def tell(self, event: Event) -> None:
        """Take in what happened, and do what follows; events told meanwhile are taken in turn."""
        if isinstance(event, RankStopped):
            self._stopped.take(event, self._clock.monotonic_s())
            self._end_standstill()
            return
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._events:
                self._take(self._events.popleft())
        finally:
            self._busy = False

    def _end_standstill(self) -> None:
        """A worker is stopped: where it is certain that it holds up others, it is started again."""
        now_s = self._clock.monotonic_s()
        found = self._stopped.held_up(awaited(self._showing.traffic(now_s), now_s, self._showing.standings()), now_s)
        if found is not None:
            self.tell(
                RankHeldUp(
                    member=found.member, serial=found.serial, rank=found.rank, attempt=found.attempt, for_s=found.for_s
                )
            )

    def _happened(self, event: Event) -> None:
        self._fleet.happened(self._here, event)

    def say(self, text: str) -> None:
        """Tell people a line."""
        with suppress(OSError):
            sys.stderr.write(f"robust-run: {plain(text)}\n")
            sys.stderr.flush()

    def _take(self, event: Event) -> None:
        now_s = self._clock.monotonic_s()
        actions = core.step(self._spec, self.state, event, now_s)
        self._journal.add(Line(at=self._clock.unix_s(), mono=now_s, event=event, actions=actions))
        if self._post is not None and self._fleet.others is not None:
            self._fleet.others.code.keep(questions.kept(self.state), self._post.voters)
        for action in actions:
            self._do(action)
        if isinstance(event, RankEnded):
            self._server.ended(event.member, event.rank, (event.serial, event.attempt))
        elif isinstance(event, NodeGone):
            self._fleet.node_gone()
        elif isinstance(event, JobStarted):
            for name, member in self.state.members.items():
                self._server.ended(name, None, (member.serial, ALL_ATTEMPTS))
        elif isinstance(event, WorldEnded):
            self._server.ended(event.member, None, (event.serial, ALL_ATTEMPTS))

    def _do(self, action: Action) -> None:
        match action:
            case StartMember():
                self._fleet.start(action)
            case StopMember():
                self._fleet.stop(action)
            case UpdateMember():
                self._fleet.update(action)
            case RestartMember():
                self._fleet.restart(action)
            case Changed():
                self._server.changed(self._showing.member(action.member))
            case SayLine():
                self.say(action.text)
            case WakeAt():
                delay_s = max(action.at_s - self._clock.monotonic_s(), 0.0)
                asyncio.get_running_loop().call_later(delay_s + 0.001, self.tell, Tick())
            case Finish() if self._done is not None and not self._done.done():
                self._done.set_result(action)
            case Finish():
                pass

    def signalled(self, number: int, by: str = "") -> None:
        """The guard was told to end."""
        self.tell(Asked(what="stop", signal=number, by=by or signal.Signals(number).name))

    def _time_is_over(self) -> None:
        self.signalled(signal.SIGTERM, "the time limit")
