"""A job in virtual time: the real core decides (`launcher.core`), hosts, faults and people are simulated.

The core is told what agents of a real job tell it, but for what changes no decision: heartbeats (silence is told as a loss), and
what agents that nothing happens to all tell alike. Those are one batch: they are told at the moment of the slowest, without the
evidence of ranks that were ended. `is_single` tells each by itself, at its own time, with all its ranks; tests hold both to the
same decisions.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.core.step import step
from robust_run.launcher.model.actions import (
    Action,
    EndAttempt,
    Finish,
    HostEvicted,
    Inquire,
    OpenStore,
    RecordIncident,
    StartAttempt,
    WakeAt,
)
from robust_run.launcher.model.check_events import Decided, Diagnose
from robust_run.launcher.model.code_events import CodeCaptured, CodeVersion
from robust_run.launcher.model.events import Event, SignalReceived, StoreOpened, Tick
from robust_run.launcher.model.node_events import JobStarted, NodeJoined, NodeReadmitted
from robust_run.launcher.model.resume_events import LookForCheckpoints, MemoryReady, ResumeChosen
from robust_run.planning.course import AttemptCourse, Course
from robust_run.planning.faults import Fault, faults_of
from robust_run.planning.simulated import standbys
from robust_run.planning.simulated.agents import Agents
from robust_run.planning.simulated.evidence import diagnosed
from robust_run.planning.simulated.hosts import Host
from robust_run.planning.simulated.hosts_going import HostsThatGo
from robust_run.planning.simulated.saved import Stored, distrusted_since, newest, stored, unspoiled
from robust_run.planning.simulated.strikes import Strikes
from robust_run.planning.words import Plan

#: So many moments of a simulation pass between two looks at how far it is.
OFTEN = 256
#: Characters of the reason why a job ended.
MOST_REASON = 100
NO_REPLAY = "a plan does not simulate replays"
#: A scheduler queues a job again by itself; who sees it fail so often within so long has a look.
QUEUED_AT_MOST, QUEUED_WITHIN_S = 3, 3600.0
#: So often people who look at a failed job find the node.
PEOPLE_FIND = 0.8


def policy_of(plan: Plan) -> CorePolicy:
    """Return what the core goes by."""
    uses = plan.uses
    return CorePolicy(
        fewest=plan.nodes,
        most=plan.nodes,
        many=True,
        join_timeout_s=plan.wait_for_nodes_s,
        wait_for_nodes_s=plan.wait_for_nodes_s,
        diagnose="auto" if uses.checks else "never",
        on_hang="auto" if uses.hang_analysis else "report",
        on_slow=plan.on_slow,
        no_replay=NO_REPLAY,
        job="plan",
    )


class World(HostsThatGo):
    """One job, from a seed. `faults`: what strikes it, in place of what the seed draws."""

    def __init__(
        self, plan: Plan, seed: int, *, is_single: bool = False, faults: Sequence[Fault] | None = None
    ) -> None:
        super().__init__(plan, seed, is_single=is_single)
        self._faults = faults_of(plan, seed) if faults is None else faults
        self.policy = policy_of(plan)
        self._stored: list[Stored] = []
        self.agents: Agents = Agents(self)
        self.strikes: Strikes = Strikes(self)
        self.told: Callable[[float, Event, tuple[Action, ...]], object] = lambda *_: None
        """Called with each event and what the core made of it."""
        self._counts: dict[str, Counter[str]] = {"actions": Counter(), "ladder": Counter(), "evicted": Counter()}
        self._checked_s = self._queued_s = 0.0
        self._wake_at_s: float | None = None
        self._queued_at: list[float] = []

    def run(self, said: Callable[[float], object] = lambda _: None) -> Course:
        """Let all the time pass; return what became of it. `said` is called now and then with the share that has passed."""
        for fault in self._faults:
            self.at(fault.at_s, lambda fault=fault: self.strikes.strike(fault))  # type: ignore[misc]
        self.begin_job()
        for number in itertools.count():
            if not self._agenda or self._agenda[0][0] >= self.until_s:
                break
            self.now_s, _, what = heapq.heappop(self._agenda)
            what()
            if number % OFTEN == 0:
                said(self.now_s / self.until_s)
        self.now_s = self.until_s
        course = self.course
        if course.attempts:
            self.agents.slow_down(course.attempts[-1])
        course.faults = dict(self.strikes.struck)
        course.actions, course.ladder, course.evicted = (dict(each) for each in self._counts.values())
        course.out_hours = self.out_hours()
        course.out_most = len(course.out_hours) - 1
        return course

    # --- the job

    def begin_job(self) -> None:
        """Start the job from nothing, on all hosts that are there."""
        self.state = JobState()
        self.feed(JobStarted())
        if self.plan.uses.hot_update and self.plan.uses.rollback:
            self.feed(CodeCaptured(version=CodeVersion(number=1, tree="a" * 64)))
        self.by_agent = {}
        for host in self.hosts:
            if not host.is_out:
                self.join(host)

    def join(self, host: Host) -> None:
        """A host comes."""
        if self.state.is_over:
            return  # the next job has it
        if host.name in self.state.evicted:
            self.feed(NodeReadmitted(name=host.name))
        has_memory = self.plan.uses.memory and self.plan.saving.memory_steps > 0
        info = host.boot(self.plan.gpus_per_node, has_memory=has_memory)
        self.by_agent[info.id] = host
        self.feed(NodeJoined(node=info))
        if has_memory:
            self.feed(MemoryReady(node=info.id, host=host.name, port=1))
        if self.course.attempts:
            standbys.look_at(self, host)

    def feed(self, event: Event) -> None:
        """Have the core decide about an event, and do what it says."""
        self.course.events += 1
        _, actions = step(self.policy, self.state, event, self.now_s)
        self.told(self.now_s, event, actions)
        if not actions and self.state.unended:
            return  # as after almost all of them
        attempts = self.course.attempts
        if attempts and attempts[-1].ended_s is None and attempts[-1].told_s is not None and not self._runs(actions):
            self._attempt_over(attempts[-1])
        for action in actions:
            self._perform(action)

    def _runs(self, actions: tuple[Action, ...]) -> bool:
        """Whether the attempt that was told to end may still run somewhere, before these actions are carried out."""
        return bool(self.state.unended) and not any(isinstance(action, OpenStore) for action in actions)

    def _attempt_over(self, attempt: AttemptCourse) -> None:
        attempt.ended_s = self.now_s
        saved = stored(attempt, self.plan.saving)
        self._stored += [saved] if saved is not None else []
        self.agents.slow_down(attempt)

    def _perform(self, action: Action) -> None:
        match action:
            case OpenStore():
                self._open(action)
            case LookForCheckpoints():
                self.after(self.plan.times.ask_all, lambda: self._choose(action.attempt))
            case StartAttempt():
                self.agents.start()
            case EndAttempt():
                self.agents.end(action)
            case Inquire():
                self.strikes.inquire(action)
            case Diagnose():
                self._diagnose(action)
            case WakeAt(at_s=at_s):
                self._wake_at_s = at_s
                self.at(at_s, lambda: self._wake(at_s))
            case Finish():
                self._finished(action)
            case RecordIncident():
                self._recorded(action)
            case Decided():
                self._decided(action)
            case HostEvicted():
                self._evicted(action)
            case _:
                pass

    def _wake(self, at_s: float) -> None:
        if self._wake_at_s == at_s:
            self._wake_at_s = None
            self.feed(Tick())

    # --- an attempt begins

    def _open(self, action: OpenStore) -> None:
        self.course.attempts.append(
            AttemptCourse(opened_s=self.now_s, checked_s=self._checked_s, queued_s=self._queued_s)
        )
        self._checked_s = self._queued_s = 0.0
        self.agents.begin()
        opened = StoreOpened(attempt=action.attempt, node=action.node, address=action.node, port=1)
        self.after(self.plan.times.ask, lambda: self.feed(opened) if action.node in self.by_agent else None)

    def _choose(self, number: int) -> None:
        """Say where an attempt begins."""
        if self.state.attempt != number or not self.state.is_going or self.state.is_started:
            return
        attempt = self.attempt
        before = self.course.attempts[-2] if self.index else None
        for since_s in filter(None, (self.strikes.take_spoiled(), distrusted_since(before))):
            self._stored = unspoiled(self._stored, since_s)
            self.memory = self.memory if self.memory is not None and self.memory.at_s <= since_s else None
        point = newest(self._stored, self.memory, self.by_agent, self.plan.saving)
        attempt.resumed_s, attempt.source = point.at_s, point.source
        step_ = int(point.at_s / self.plan.times.step)
        name = f"step-{step_}" if point.source else ""
        uuid = name if point.source == "storage" else ""
        chosen = ResumeChosen(attempt=number, source=point.source, step=step_ if name else None, uuid=uuid, name=name)  # type: ignore[arg-type]
        self.feed(chosen)

    # --- what comes between attempts

    def _diagnose(self, action: Diagnose) -> None:
        took_s = action.seconds + self.plan.times.checks.draw(self.rng("checks", self.index))
        state = self.state

        def done() -> None:
            if self.state is state and state.is_diagnosing:
                self._checked_s += took_s
                self.feed(diagnosed(self, action, took_s))

        self.after(took_s, done)

    def _recorded(self, action: RecordIncident) -> None:
        self._counts["actions"][action.action] += 1
        if action.action != "report" and self.course.attempts:
            self.attempt.action = action.action
            if not self.plan.uses.restarts and not self.state.is_over:
                self.after(0.0, lambda: self.feed(SignalReceived(signal=15, again=True, by="no restarts")))

    def _finished(self, action: Finish) -> None:
        """The job is over: a scheduler starts it again, after people have looked at it where it failed."""
        times, rng = self.plan.times, self.rng("queue", self.index)
        self.course.ended += 1
        why = f"{self.attempt.cause or 'unknown'}: {action.reason.partition(';')[0][:MOST_REASON]}"
        self.course.ended_for[why] = self.course.ended_for.get(why, 0) + 1
        person_s, requeue_s = times.person.draw(rng), times.requeue.draw(rng)
        self._queued_at = [at_s for at_s in self._queued_at if self.now_s - at_s < QUEUED_WITHIN_S] + [self.now_s]
        is_seen = action.outcome == "failed" or len(self._queued_at) > QUEUED_AT_MOST
        took_s = requeue_s + (person_s if is_seen else 0.0)
        for host in self.hosts:
            host.agent = ""
        self.by_agent, self.memory = {}, None
        if is_seen:
            self._queued_at = []
            self.strikes.people_look(rng.random() < PEOPLE_FIND)
        self.after(took_s, lambda: self._queue_over(took_s))

    def _queue_over(self, took_s: float) -> None:
        self._queued_s += took_s
        self.begin_job()

    # --- hosts go and come back

    def _decided(self, action: Decided) -> None:
        self._counts["ladder"][action.rung] += 1
        if action.rung == "swap":
            standbys.set_aside(self, self._host(action.nodes[0]))

    def _evicted(self, action: HostEvicted) -> None:
        self._counts["evicted"][action.by.split(",")[0] if action.by.startswith("rule") else action.by] += 1
        self.put_out(self._host(action.name))

    def _host(self, name: str) -> Host:
        return self.hosts[int(name.rpartition("-")[2])]


def simulate(
    plan: Plan, seed: int, faults: Sequence[Fault] | None = None, said: Callable[[float], object] = lambda _: None
) -> Course:
    """Return what becomes of a job. Deterministic by the plan, the seed and the faults, if given. `said`: see `World.run`."""
    return World(plan, seed, faults=faults).run(said)


def with_(plan: Plan, **changes: object) -> Plan:
    """Return a plan with other values."""
    return msgspec.structs.replace(plan, **changes)
