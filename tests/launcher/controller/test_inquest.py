"""Asking all agents what they see, and rounds of comparing ranks: with agents that answer late, twice, or never."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
from stories import Story, several_nodes

from robust_run.clock import SystemClock
from robust_run.launcher.controller.comparing.pacing import Pacing
from robust_run.launcher.controller.evidence_collector import ANSWER_S, FLOWS_AT_ONCE, EvidenceCollector
from robust_run.launcher.model.actions import Collect, Inquire, RecordIncident
from robust_run.launcher.model.events import Event, Inquired
from robust_run.launcher.model.job import Paces, Sights, VerdictDraft
from robust_run.tracer.pace.types import CpuShort, NodePace, RankPace
from robust_run.tracer.types import Group, Op, RankSight, RankTrace, Scene

WORLD = Group(name="0", desc="default_pg", ranks=(0, 1, 2, 3))


class Timer:
    def __init__(self, delay_s: float, call: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class World:
    """An inquest over two nodes of two ranks; rank 3 never comes to the second all_reduce."""

    def __init__(self) -> None:
        self.story: Story = several_nodes("a", "b")
        self.sent: list[tuple[str, Any]] = []
        self.told: list[Event] = []
        self.said: list[str] = []
        self.timers: list[Timer] = []
        self.clock = SystemClock()
        self.collector = EvidenceCollector(
            state=self.story.state,
            clock=self.clock,
            send=lambda node, order: self.sent.append((node, order)),
            later=self.later,
            tell=self.told.append,
            say=self.said.append,
        )
        told, said = self.told.append, self.said.append
        self.pacing = Pacing(state=self.story.state, clock=self.clock, ask=self.collector.ask, tell=told, say=said)

    def later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(delay_s, call))
        return self.timers[-1]

    def pass_time(self) -> None:
        timers, self.timers = self.timers, []
        for timer in timers:
            if not timer.cancelled:
                timer.call()

    def asked(self) -> list[tuple[str, Collect]]:
        sent, self.sent = self.sent, []
        return sent

    def sight(self, rank: int) -> RankSight:
        now_s = self.clock.monotonic_s()
        ops = [Op(group="0", op="all_reduce", seq=1, state="done", at_s=now_s - 60, done_at_s=now_s - 59)]
        if rank != 3:
            ops.append(Op(group="0", op="all_reduce", seq=2, state="waiting", at_s=now_s - 50, waiting_at_s=now_s - 50))
        trace = RankTrace(
            rank=rank,
            world_size=4,
            pid=10 + rank,
            steps=1,
            last_at_s=now_s - 50,
            blocked_s=0.0,
            ops=tuple(ops),
            groups=(WORLD,),
        )
        return RankSight(rank=rank, node="", trace=trace)

    def answers(self, node: str, number: int, attempt: int = 0) -> None:
        ranks = {"a": (0, 1), "b": (2, 3)}[node]
        self.collector.take(node, Sights(attempt=attempt, number=number, sights=tuple(map(self.sight, ranks))))


def test_all_nodes_are_asked_and_a_verdict_comes_when_all_have_answered() -> None:
    world = World()
    world.collector.begin(Inquire(attempt=0, after_s=5.0))
    asked = world.asked()
    assert [node for node, _ in asked] == ["a", "b"]
    number = asked[0][1].number
    world.answers("b", number)
    assert world.told == []
    world.answers("b", number)
    assert world.told == [], "the same node twice is no second answer"
    world.answers("a", number)
    (found,) = world.told
    assert isinstance(found, Inquired)
    assert found.verdict is not None
    assert (found.verdict.ranks, found.verdict.nodes) == ((3,), ("b",)), "the controller knows what nodes are called"
    assert world.collector.scene is not None


def test_what_ranks_did_belongs_to_the_incident_that_was_concluded_from_it_and_to_no_later_one() -> None:
    world = World()
    world.collector.begin(Inquire(attempt=0, after_s=5.0))
    number = world.asked()[0][1].number
    world.answers("a", number)
    world.answers("b", number)
    scene, (found,) = world.collector.scene, world.told
    assert scene is not None and isinstance(found, Inquired) and found.verdict is not None
    assert abs(scene.at_unix_s - world.clock.unix_s()) < 60.0, "people are told when that was"
    onset_s = found.verdict.onset_s
    assert onset_s is not None

    def incident(at_s: float, attempt: int = 0) -> RecordIncident:
        draft = VerdictDraft(kind="hang", ranks=(), confidence="low", rule="r", sentence="s", exit_code=1)
        return RecordIncident(
            attempt=attempt,
            symptom="hang",
            onset_at_s=at_s,
            detected_at_s=at_s,
            verdict=draft,
            action="report",
            reason="",
        )

    assert world.collector.scene_of(incident(onset_s)) is scene
    assert world.collector.scene_of(incident(scene.at_s + 470.0)) is None, "a crash of which ranks were not looked at"
    assert world.collector.scene_of(incident(onset_s, attempt=1)) is None


def test_a_node_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    world = World()
    seen: list[Scene] = []
    assert world.collector.ask(seen.append)
    number = world.asked()[0][1].number
    world.answers("a", number)
    assert [timer.delay_s for timer in world.timers] == [ANSWER_S]
    world.pass_time()
    (scene,) = seen
    assert [sight.rank for sight in scene.ranks] == [0, 1]
    assert scene.silent_nodes == ("b",)
    world.answers("b", number)
    assert len(seen) == 1, "an answer that comes too late changes nothing"


def test_it_looks_again_until_there_is_a_verdict_and_says_so_once() -> None:
    world = World()
    world.collector.begin(Inquire(attempt=0, after_s=30.0))  # nothing is seen of its process: twice that is needed
    for _ in range(3):
        number = world.asked()[0][1].number
        world.answers("a", number)
        world.answers("b", number)
        assert world.told == []
        world.pass_time()
    assert len(world.said) == 1
    assert "for rank 3 (node b)" in world.said[0]


def test_that_the_kernel_hides_what_ranks_wait_for_is_said_once_in_a_job() -> None:
    world = World()
    for _ in range(2):
        world.collector.begin(Inquire(attempt=0, after_s=5.0))
        number = world.asked()[0][1].number
        world.answers("a", number)
        hidden = [msgspec.structs.replace(world.sight(rank), hidden="to trace is not allowed here") for rank in (2, 3)]
        world.collector.take("b", Sights(attempt=0, number=number, sights=tuple(hidden)))
    assert [type(event) for event in world.told] == [Inquired, Inquired]
    (said,) = world.said
    assert said.startswith(
        "the kernel does not let robust-run see what ranks 2 and 3 wait for (to trace is not allowed here)"
    )


def test_who_is_slow_inside_nccl_is_told_and_the_question_is_answered() -> None:
    """Nobody is stuck: the next rank that waits for long must be asked about."""
    from tracer.nccl.simulate import Model, sights_of
    from tracer.nccl.stalls import one_group

    model = Model(one_group(4, "ring", 6, 1), None, 1)
    assert not model.run()
    world = World()
    world.collector.begin(Inquire(attempt=0, after_s=5.0))
    (_, order), _ = world.asked()
    assert order.flows >= 1024
    for node, ranks in (("a", (0, 1)), ("b", (2, 3))):
        sights = []
        for seen in (sights_of(model)[rank] for rank in ranks):
            assert seen.trace is not None
            late_s = 1.5 if seen.rank == 2 else 0.0
            ops = tuple(msgspec.structs.replace(op, started_s=op.started_s + late_s) for op in seen.trace.ops)
            sights.append(RankSight(rank=seen.rank, node="", nccl=msgspec.structs.replace(seen.trace, ops=ops)))
        world.collector.take(node, Sights(attempt=0, number=order.number, sights=tuple(sights)))
    slow, answer = world.told
    assert isinstance(slow, Inquired) and isinstance(answer, Inquired)
    assert slow.verdict is not None and answer.verdict is None
    assert (slow.verdict.kind, slow.verdict.ranks, slow.verdict.rule) == ("slow", (2,), "last-start")
    assert answer.reason == "no rank waits for long any more"


def test_a_scene_that_is_large_is_judged_beside_so_that_leases_are_renewed() -> None:
    from tracer.nccl.simulate import Broken, Model, sights_of
    from tracer.nccl.stalls import one_group

    model = Model(one_group(4, "ring", 6, 1), Broken("gpu", 1, 1), 1)
    assert not model.run()
    world = World()
    world.collector.begin(Inquire(attempt=0, after_s=5.0))
    (_, order), _ = world.asked()
    for node, ranks in (("a", (0, 1)), ("b", (2, 3))):
        sights = []
        for seen in (sights_of(model)[rank] for rank in ranks):
            assert seen.trace is not None
            glance = msgspec.structs.replace(seen.trace.glance, event_s=world.clock.monotonic_s() - 60.0)
            idle = [
                msgspec.structs.replace(flow, peer=-number, open_ops=0)
                for flow in seen.trace.flows[:1]
                for number in range(9, FLOWS_AT_ONCE)
            ]
            trace = msgspec.structs.replace(seen.trace, glance=glance, flows=(*seen.trace.flows, *idle))
            sights.append(RankSight(rank=seen.rank, node="", nccl=trace))
        world.collector.take(node, Sights(attempt=0, number=order.number, sights=tuple(sights)))
    assert world.told == []
    give_up_at_s = time.monotonic() + 60
    while not world.told and time.monotonic() < give_up_at_s:
        time.sleep(0.01)
        world.pass_time()
        world.asked()
    (found,) = world.told
    assert isinstance(found, Inquired) and found.verdict is not None
    assert (found.verdict.kind, found.verdict.ranks) == ("comm_stall", (1,))


def test_an_attempt_that_ended_meanwhile_is_not_judged() -> None:
    world = World()
    world.collector.begin(Inquire(attempt=0, after_s=5.0))
    number = world.asked()[0][1].number
    world.story.is_lost("b")
    world.answers("a", number)
    world.answers("b", number)
    assert world.told == []
    world.story.all_end()
    assert not world.collector.ask(lambda _: None), "where nothing runs nobody is asked"


def test_what_died_ranks_left_is_judged_when_the_last_node_has_ended() -> None:
    """When that is, the core says (`core/test_post_mortem`); here is what is kept until then."""
    world = World()
    world.story.exits(0, -6)
    assert not world.collector.has_left(0)
    world.answers("a", -1)
    world.answers("b", -1)
    assert world.collector.has_left(0)
    found = world.collector.post_mortem(0)
    assert found.verdict is not None and (found.verdict.ranks, found.verdict.nodes) == ((3,), ("b",))
    assert world.collector.scene is not None
    assert not world.collector.has_left(0), "it has been judged"
    world.answers("a", -1, attempt=7)
    assert not world.collector.has_left(0) and world.collector.has_left(7), "that was of another attempt"
    found = world.collector.post_mortem(0)
    assert found.verdict is None and found.reason, "the core is always answered"


def paces(node: str, number: int, slow: int = -1) -> Paces:
    """Twenty-five steps of a node's ranks in a round; rank `slow` needs twice as long as the others."""
    ranks = {"a": (0, 1), "b": (2, 3)}[node]
    rows = tuple(
        RankPace(rank, "", 1 + 25 * number, (20.0 if rank == slow else 10.0,) * 25, (20.0,) * 25) for rank in ranks
    )
    return Paces(pace=NodePace(0, "", 10.0 * number, 10.0 * number + 10.0, rows))


def test_a_rank_that_is_slow_in_five_rounds_is_told_once() -> None:
    world = World()
    for number in range(8):
        world.pacing.take("a", paces("a", number))
        world.pacing.take("b", paces("b", number, slow=2))
        for node, order in world.asked():  # whose work is the same is asked once
            world.answers(node, order.number)
    (found,) = world.told
    assert isinstance(found, Inquired)
    assert found.verdict is not None
    assert (found.verdict.kind, found.verdict.ranks, found.verdict.nodes) == ("slow", (2,), ("b",))


def test_steps_that_take_many_times_what_they_took_are_said_and_nothing_is_done() -> None:
    world = World()
    for number, (count, length_ms) in enumerate([(60, 50.0), (60, 50.0), (6, 4000.0), (60, 50.0), (60, 50.0)]):
        for node, ranks in (("a", (0, 1)), ("b", (2, 3))):
            rows = tuple(
                RankPace(rank, "", 1 + 60 * number, (length_ms,) * count, (length_ms,) * count) for rank in ranks
            )
            said = Paces(
                pace=NodePace(0, "", 10.0 * number, 10.0 * number + 10.0, rows), cpu=CpuShort(0.9 * (node == "b"))
            )
            world.pacing.take(node, said)
    assert world.told == []
    begun, over = world.said
    assert begun.startswith("steps have taken 4.0 s instead of 0.05 s for 24 s; ")
    assert "on b the CPU limit of their cgroup holds ranks back 90 % of the time" in begun
    assert over == "steps take 0.05 s again; they were slow for 24 s"


def test_a_round_counts_when_all_nodes_have_spoken_and_the_attempt_goes_on() -> None:
    world = World()
    for number in range(8):
        world.pacing.take("b", paces("b", number, slow=2))
    assert world.sent == []
    for number in range(8):
        world.pacing.take("a", paces("a", number))
        world.pacing.take("b", paces("b", number))
    assert world.told == []
    world.story.is_lost("b")
    world.pacing.take("a", paces("a", 9))
    assert world.told == []


def test_a_fault_of_ours_is_said_once_and_ends_nothing() -> None:
    world = World()
    world.collector.begin(Inquire(attempt=0, after_s=5.0))
    number = world.asked()[0][1].number
    garbled = RankSight(rank=0, node="", trace="no trace at all")  # type: ignore[arg-type]
    world.collector.take("a", Sights(attempt=0, number=number, sights=(garbled,)))
    world.answers("b", number)
    (found,) = world.told
    assert found == Inquired(attempt=0, reason="a fault of robust-run", at_unix_s=found.at_unix_s)  # type: ignore[union-attr]
    assert len(world.said) == 1
    assert "judging what ranks do is off for the rest of this job, by a fault of robust-run" in world.said[0]
