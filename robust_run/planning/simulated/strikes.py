"""How faults show: what a simulated fault has agents and sensors tell the core, at once and in later attempts."""

from __future__ import annotations

from collections import Counter

from robust_run.launcher.model.actions import Inquire
from robust_run.launcher.model.code_events import CodeVersion, UpdateStaged
from robust_run.launcher.model.events import Inquired, RankExited, SignalReceived
from robust_run.launcher.model.health_events import HealthSeen
from robust_run.launcher.model.job import RankEvidence
from robust_run.launcher.model.node_events import NodeEvicted, NodeLost, RestartAsked
from robust_run.planning.faults import Fault
from robust_run.planning.simulated.evidence import alert_of, finding_of, suspicion_of, verdict_of
from robust_run.planning.simulated.hosts import Host
from robust_run.planning.simulated.job import SimulatedJob
from robust_run.planning.words import KILLED

#: A sensor says again what goes on.
AGAIN_S = 60.0
#: When the same node has shown the same so often again, people take it out, in the time that they take.
PEOPLE_SEE = 3
PEOPLE_AGAIN_S = 1800.0
SIGKILL = 9


class Strikes:
    """All faults of one job."""

    def __init__(self, world: SimulatedJob) -> None:
        self._world = world
        self.struck: Counter[str] = Counter()
        self._spoiled_since_s: float | None = None
        """What was saved after this is of no use."""
        self._bad_versions: set[int] = set()
        self._bad_update: Fault | None = None
        self._outages: list[tuple[float, Fault]] = []
        """Until when, of what does not stay in a node and lasts."""
        self._newest: dict[int, Fault] = {}
        """By index of a host: what struck it last."""
        self._hang: tuple[int, Host, Fault] | None = None
        """What the newest attempt waits for: the attempt, where, what."""
        self._last: Host | None = None
        self._known_slow: set[int] = set()
        self._again: Counter[int] = Counter()

    def newest_of(self, host: Host) -> Fault | None:
        """Return what struck a host last."""
        return self._newest.get(host.index)

    def take_spoiled(self) -> float | None:
        """Return since when what was saved is of no use, if that is news."""
        since_s, self._spoiled_since_s = self._spoiled_since_s, None
        return since_s

    # --- it happens

    def strike(self, fault: Fault) -> None:
        """A fault happens, whatever the job does meanwhile."""
        world, kind = self._world, fault.kind
        if kind.shows in ("update", "bad_update"):
            self._update(fault)
            return
        if kind.lasts.median and not fault.stays:
            lasts_s = kind.lasts.draw(world.rng("lasts", fault.number))
            self._outages.append((world.now_s + lasts_s, fault))
        hit = [host for host in world.hosts[fault.host : fault.host + kind.nodes] if not host.is_out]
        for host in hit:
            self._hit(host, fault)

    def _hit(self, host: Host, fault: Fault) -> None:
        world = self._world
        self._newest[host.index] = fault
        if fault.stays and host.fault is None:
            host.fault = fault
        if self._runs_on(host):
            self.struck[fault.name] += fault.host == host.index
            self._manifest(host, fault, world.index)
        elif fault.kind.shows == "lost" and host.agent:
            self._lost(host, 0.0)

    def _runs_on(self, host: Host) -> bool:
        world = self._world
        going = world.state.is_started and world.attempt.started_s is not None and world.attempt.told_s is None
        return going and host.agent in world.state.places

    # --- it shows again

    def started(self, index: int) -> None:
        """The workers of an attempt run: what is in its nodes shows again some time, and what goes on goes on."""
        world = self._world
        for host in world.hosts:
            fault = host.fault
            if fault is None or host.agent not in world.state.places or fault.kind.shows == "slow":
                continue
            after_s = fault.kind.recurs.draw(world.rng("recurs", index, host.index))
            world.after(after_s, lambda host=host, fault=fault: self._recurs(index, host, fault))  # type: ignore[misc]
        self._outages = [each for each in self._outages if each[0] > world.now_s]
        for _, fault in self._outages:
            host = world.hosts[fault.host]
            if fault.kind.shows == "crash":  # what all need is away: any rank may be the first to miss it
                node = world.rng("outage", index, fault.number).choice(world.state.layout).node
                host = world.by_agent.get(node, host)
            if host.agent in world.state.places:
                self._manifest(host, fault, index)

    def _recurs(self, index: int, host: Host, fault: Fault) -> None:
        world = self._world
        if host.fault is not fault or not world.is_in(index) or not self._runs_on(host):
            return
        self._manifest(host, fault, index)
        self._again[fault.number] += 1
        if self._again[fault.number] == PEOPLE_SEE:
            person_s = world.plan.times.person.draw(world.rng("people", fault.number))
            world.after(person_s, lambda: self.people_evict(host, fault))

    def trains(self, index: int) -> None:
        """The attempt makes steps: a slow node slows it down, new code may fail."""
        world = self._world
        for host in world.hosts:
            if host.fault is not None and host.fault.kind.shows == "slow" and host.agent in world.state.places:
                world.agents.is_slow(host.fault.kind.slowdown)
        fault = self._bad_update
        if fault is not None and (not world.state.code.records or world.state.code.running in self._bad_versions):
            detect_s = fault.kind.detect.draw(world.rng("bad", index))
            world.after(detect_s, lambda: self._code_fails(index, fault))

    # --- it is noticed

    def _manifest(self, host: Host, fault: Fault, index: int) -> None:
        """It has an effect on the attempt from now on."""
        world, kind = self._world, fault.kind
        rng = world.rng("detect", index, host.index, fault.number)
        detect_s = kind.detect.draw(rng)
        if kind.shows == "slow":
            if world.attempt.first_step_s is not None:
                world.agents.is_slow(kind.slowdown)
            if fault.number not in self._known_slow:
                self._known_slow.add(fault.number)
                world.after(detect_s, lambda: self._suspect(index, host, fault))
                person_s = detect_s + world.plan.times.person.draw(rng)
                world.after(person_s, lambda: self.people_evict(host, fault))
            return
        if kind.shows == "nan":
            began_s = world.now_s
            world.after(detect_s, lambda: self._nan(index, host, fault, began_s))
            return
        attempt = world.attempt
        if attempt.onset_s is None:
            attempt.onset_s, attempt.cause, self._last = world.now_s, fault.name, host
        world.after(detect_s, lambda: self._shows(index, host, fault))
        if kind.shows in ("alert", "hang"):
            world.after(world.plan.torch_timeout_s, lambda: self._times_out(index, host))

    def _shows(self, index: int, host: Host, fault: Fault) -> None:
        """The first sign of it."""
        world, uses = self._world, self._world.plan.uses
        shows = fault.kind.shows
        if shows == "lost":
            if host.agent:
                self._lost(host, fault.kind.detect.median)
            return
        if not world.is_in(index) or host.agent not in world.state.places:
            return
        if shows == "crash":
            self._crash(host, fault.kind.trouble)
        elif shows == "alert" and uses.sensors:
            self._alert(index, host, fault)
        elif uses.hang_analysis:  # what no sensor sees is waited for
            self._suspect(index, host, fault)

    def _crash(self, host: Host, trouble: str, rank_of: int = 0) -> None:
        world = self._world
        placement = world.state.layout[world.state.places[host.agent]]
        code, finding = (-SIGKILL, None) if trouble == KILLED else (1, finding_of(trouble))
        rank = placement.first_rank + rank_of
        if rank not in world.state.live:
            return
        host.ended = RankEvidence(rank=rank, pid=1, exit_code=code, exited_at_s=world.now_s, finding=finding)
        world.feed(RankExited(attempt=world.state.attempt, rank=rank, exit_code=code, finding=finding))

    def _lost(self, host: Host, silent_s: float) -> None:
        world, node = self._world, host.agent
        world.agents.settle(node, goes=True)
        world.lose(host)
        if not world.state.is_over:
            world.feed(NodeLost(node=node, silent_s=silent_s))

    def _alert(self, index: int, host: Host, fault: Fault) -> None:
        world = self._world
        if not world.is_in(index) or not host.agent:
            return
        world.feed(HealthSeen(node=host.agent, event=alert_of(fault, world.now_s)))
        world.after(AGAIN_S, lambda: self._alert(index, host, fault))

    def _times_out(self, index: int, host: Host) -> None:
        """torch ends the wait: a peer of the rank at fault says so."""
        world = self._world
        if not world.is_in(index):
            return
        layout = world.state.layout
        place = world.state.places.get(host.agent, 0)
        self._crash(world.by_agent[layout[(place + 1) % len(layout)].node], "nccl")

    def _nan(self, index: int, host: Host, fault: Fault, began_s: float) -> None:
        world = self._world
        if not world.is_in(index) or host.agent not in world.state.places or world.attempt.onset_s is not None:
            return
        attempt = world.attempt
        attempt.onset_s, attempt.cause, self._last = world.now_s, fault.name, host
        self._spoiled_since_s = began_s
        self._crash(host, "nan")

    # --- evidence of hangs and of slowness

    def _suspect(self, index: int, host: Host, fault: Fault) -> None:
        world = self._world
        if not world.is_in(index) or host.agent not in world.state.places or not world.plan.uses.hang_analysis:
            return
        self._hang = index, host, fault
        world.feed(suspicion_of(world, host, fault))

    def inquire(self, action: Inquire) -> None:
        """The evidence of all ranks is collected and judged."""
        world, index = self._world, self._world.index
        localise_s = world.plan.times.localise.draw(world.rng("localise", index, round(world.now_s)))
        world.after(localise_s, lambda: self._judged(index, action.attempt))

    def _judged(self, index: int, number: int) -> None:
        world = self._world
        if index != world.index or world.state.is_over:
            return
        verdict = None
        if self._hang is not None and self._hang[0] == index:
            _, host, fault = self._hang
            verdict = verdict_of(world, host, fault)
        world.feed(Inquired(attempt=number, verdict=verdict))

    # --- people

    def people_look(self, finds: bool) -> None:
        """People look at a job that failed: they mend its code, and may find the node."""
        self._bad_update, self._bad_versions = None, set()
        if finds and self._last is not None and self._last.fault is not None:
            self._world.put_out(self._last)

    def people_evict(self, host: Host, fault: Fault) -> None:
        """People take a node out, if what they came for is still in it."""
        world = self._world
        if host.fault is not fault or host.is_out:
            return
        if world.state.is_over:  # a job of which nobody can put a node out
            world.after(PEOPLE_AGAIN_S, lambda: self.people_evict(host, fault))
            return
        if world.attempt.told_s is None:
            world.attempt.cause = world.attempt.cause or fault.name
        world.agents.settle(host.agent)
        world.feed(NodeEvicted(name=host.name, reason=fault.name, by="operator"))
        self._world.put_out(host)

    # --- code

    def _update(self, fault: Fault) -> None:
        world, uses = self._world, self._world.plan.uses
        if world.state.is_over or not world.course.attempts:
            return
        self.struck[fault.name] += 1
        if fault.kind.shows == "bad_update":
            self._bad_update = fault
        attempt = world.attempt
        if attempt.told_s is None and attempt.onset_s is None:
            attempt.cause = fault.name
        if not uses.hot_update:
            world.feed(SignalReceived(signal=15, by="update"))
            return
        if not uses.rollback:  # the code in the folder is another, and nothing is on record
            world.feed(RestartAsked(by="update"))
            return
        records = world.state.code.records
        number = len(records) + 1
        if fault.kind.shows == "bad_update":
            self._bad_versions.add(number)
        head = world.state.code.pending or world.state.code.running
        version = CodeVersion(number=number, tree="a" * 64, parents=(head,), settings={"n": str(fault.number)})
        world.feed(UpdateStaged(version=version, now=True))

    def _code_fails(self, index: int, fault: Fault) -> None:
        world = self._world
        if not world.is_in(index) or world.attempt.onset_s is not None:
            return
        world.attempt.onset_s, world.attempt.cause = world.now_s, fault.name
        self._again[fault.number] += 1
        if self._again[fault.number] == PEOPLE_SEE:
            world.after(world.plan.times.person.draw(world.rng("people", fault.number)), lambda: self._mended(fault))
        self._crash(world.by_agent[world.state.layout[0].node], "user_exception")

    def _mended(self, fault: Fault) -> None:
        """People have put the code right: what begins next runs it."""
        if self._bad_update is fault:
            self._bad_update = None
