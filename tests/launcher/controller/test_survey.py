"""Asking the nodes of an attempt what they see, with a clock of its own: who is asked, how often, and what is told in the end."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import msgspec

from robust_run.ckpt_io.seen import FolderLook, MemoryGeneration, SeenCheckpoint
from robust_run.launcher.controller.survey import CheckpointSurvey
from robust_run.launcher.core.state import CorePolicy, JobState, MemoryAddress, MemoryHolder
from robust_run.launcher.core.step import step as core_step
from robust_run.launcher.model.actions import Order
from robust_run.launcher.model.checkpoints_seen import CheckpointsSeen
from robust_run.launcher.model.events import Event
from robust_run.launcher.model.job import NodeInfo, Placement
from robust_run.launcher.model.node_events import NodeJoined
from robust_run.launcher.model.resume_events import (
    LookForCheckpoints,
    NoResumePoint,
    PassedOver,
    ResumeChosen,
    ResumePoint,
)

START_UNIX_S = 1e9


def seen(*steps: int, age_s: float = 5.0) -> FolderLook:
    return FolderLook(
        seen=tuple(
            SeenCheckpoint(
                name=f"step-{step}",
                uuid=f"u{step}",
                step=step,
                created_s=START_UNIX_S - age_s - 10 * (9 - step),
                fault="",
            )
            for step in sorted(steps, reverse=True)
        )
    )


class _Call:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class World:
    """Nodes that answer after a time, or never; a clock that jumps."""

    def __init__(self, **views: Callable[[float], FolderLook | None]) -> None:
        self.views = views
        self.now_s = 100.0
        self.told: list[Event] = []
        self.said: list[str] = []
        self.orders: list[tuple[str, LookForCheckpoints]] = []
        self.answer_s = 0.01
        self.memory: dict[str, tuple[MemoryGeneration, ...]] = {}
        """What keepers hold; a node whose folder hangs tells it alone."""
        self._timers: list[tuple[float, int, _Call]] = []
        layout = tuple(
            Placement(node=node, group_rank=rank, first_rank=rank, nproc=1) for rank, node in enumerate(views)
        )
        self.state = JobState(phase="opening", attempt=1, layout=layout, looks_in="/ckpt")
        for node in views:
            core_step(
                CorePolicy(max_restarts=0, progress_after_s=1, restart_grace_s=1, shutdown_timeout_s=1),
                self.state,
                NodeJoined(node=NodeInfo(id=node, name=f"host-{node}", nproc=1)),
                0.0,
            )
        self.survey = CheckpointSurvey(
            state=self.state,
            clock=self,
            send=self._send,
            later=self._later,
            tell=self.told.append,
            say=self.said.append,
            job="run",
        )

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return START_UNIX_S + self.now_s - 100.0

    def _later(self, delay_s: float, call: Callable[[], None]) -> _Call:
        timer = _Call(call)
        heapq.heappush(self._timers, (self.now_s + delay_s, len(self.orders) + id(timer), timer))
        return timer

    def _send(self, node: str, order: Order) -> None:
        assert isinstance(order, LookForCheckpoints)
        self.orders.append((node, order))
        look = FolderLook() if order.memory_only else self.views[node](self.now_s - 100.0)
        held = self.memory.get(node)
        if look is not None or held is not None:
            answer = CheckpointsSeen(attempt=order.attempt, number=order.number, look=look, memory=held or ())
            self._later(self.answer_s, lambda: self.survey.take(node, answer))

    def begin(self, *nodes: str, untrusted: tuple[str, ...] = (), holders: tuple[str, ...] = ()) -> None:
        asked = nodes or tuple(self.views)
        order = LookForCheckpoints(
            attempt=1, nodes=asked, of=len(self.views), folder="/ckpt", untrusted=untrusted, holders=holders
        )
        self.survey.begin(order)

    def settle(self, most_s: float = 200.0) -> Event:
        """Let time pass until it is told what was chosen."""
        end_s = self.now_s + most_s
        while not self.told:
            assert self._timers, "nothing will ever happen"
            self.now_s, _, timer = heapq.heappop(self._timers)
            assert self.now_s < end_s, "it takes for ever"
            if timer.call is not None:
                timer.call()
        (event,) = self.told
        return event

    def drain(self) -> None:
        """Let everything happen that is still to come."""
        while self._timers:
            self.now_s, _, timer = heapq.heappop(self._timers)
            if timer.call is not None:
                timer.call()


def always(look: FolderLook | None) -> Callable[[float], FolderLook | None]:
    return lambda _: look


def test_all_are_asked_once_and_what_they_agree_on_is_told_once() -> None:
    world = World(a=always(seen(1, 2)), b=always(seen(1, 2)))
    world.state.failed_at_s = 90.0
    world.state.reached_step = 7
    world.begin()
    event = world.settle()
    assert isinstance(event, ResumeChosen)
    assert (event.attempt, event.source, event.step, event.uuid) == (1, "storage", 2, "u2")
    assert (event.name, event.address, event.steps_lost) == ("step-2", "/ckpt/step-2", 5)
    assert event.lost_s == 65.0, "ten seconds before the question it failed, and 75 before that the checkpoint was made"
    assert [node for node, _ in world.orders] == ["a", "b"] and world.said == []
    world.drain()
    assert len(world.told) == 1


def test_where_the_controller_was_restarted_meanwhile_the_incident_says_when_it_failed() -> None:
    world = World(a=always(seen(1, 2)))
    world.survey._failed_unix_s = lambda attempt: START_UNIX_S - 10.0 if attempt == 1 else None
    world.begin()
    event = world.settle()
    assert isinstance(event, ResumeChosen) and event.lost_s == 65.0


def test_no_checkpoint_is_told_as_the_beginning() -> None:
    world = World(a=always(FolderLook()))
    world.begin()
    assert world.settle() == ResumeChosen(attempt=1)


def test_a_late_view_is_asked_for_by_name_until_it_shows_and_people_learn_why_nothing_starts() -> None:
    world = World(a=always(seen(8, 9)), b=lambda now_s: seen(8, 9) if now_s > 4 else seen(8))
    world.begin()
    event = world.settle()
    assert isinstance(event, ResumeChosen) and event.step == 9
    again = [(node, order.names) for node, order in world.orders[2:]]
    assert again and set(again) == {("b", ("step-9",))}
    assert world.said == ["attempt 1 is not started yet: host-b does not see step 9 yet, which host-a sees"]
    assert 4 < world.now_s - 100 < 8


def test_nodes_on_one_host_are_told_apart() -> None:
    world = World(a=always(seen(8, 9)), b=lambda now_s: seen(8, 9) if now_s > 4 else seen(8))
    world.state.places = {"a": 0, "b": 1}
    for member in world.state.members.values():
        member.info = msgspec.structs.replace(member.info, name="vm")
    world.begin()
    world.settle()
    assert world.said == ["attempt 1 is not started yet: vm (node 1) does not see step 9 yet, which vm (node 0) sees"]


def test_a_node_that_never_answers_holds_the_attempt_up_for_a_while_only() -> None:
    world = World(a=always(seen(1, 2)), b=always(None))
    world.begin()
    event = world.settle()
    assert isinstance(event, ResumeChosen) and event.step == 2
    assert event.unsure == ("host-b did not say within 10 s what it sees",)
    assert len(world.orders) == 2, "it is not asked again and again"
    assert world.said == ["attempt 1 is not started yet: host-b has not said yet which checkpoints are in /ckpt"]


def test_a_storage_that_hangs_everywhere_fails_the_attempt() -> None:
    world = World(a=always(None))
    world.begin()
    event = world.settle()
    assert isinstance(event, NoResumePoint) and "/ckpt did not answer on host-a" in event.reason


def test_answers_to_an_older_question_and_of_strangers_do_not_count() -> None:
    world = World(a=always(None))
    world.begin()
    for number, node in ((0, "a"), (1, "nobody")):
        world.survey.take(node, CheckpointsSeen(attempt=1, number=number, look=seen(9)))
    world.survey.take("a", CheckpointsSeen(attempt=7, number=1, look=seen(9)))
    assert world.told == []
    world.survey.take("a", CheckpointsSeen(attempt=1, number=1, look=seen(2)))
    assert [event.step for event in world.told if isinstance(event, ResumeChosen)] == [2]


def test_an_attempt_that_was_given_up_meanwhile_is_not_chosen_for() -> None:
    world = World(a=always(seen(2)))
    world.begin()
    world.state.phase = "ending"
    world.drain()
    assert world.told == []


def test_after_the_controller_was_restarted_nodes_are_asked_as_they_return() -> None:
    world = World(a=always(seen(1, 2)), b=always(seen(1, 2)))
    world.begin("b")
    world._later(2.0, lambda: world.begin("a"))
    event = world.settle()
    assert isinstance(event, ResumeChosen) and event.step == 2
    assert [node for node, _ in world.orders] == ["b", "a"]


def test_what_is_known_to_be_damaged_and_what_was_there_before_counts() -> None:
    world = World(a=always(seen(1, 2)))
    world.state.passed_over = {"u2": PassedOver(step=2, uuid="u2", name="step-2", why="rank 0: a wrong digest")}
    world.state.last_point = ResumePoint(source="storage", step=2, uuid="u2", name="step-2")
    world.begin()
    event = world.settle()
    assert isinstance(event, ResumeChosen) and event.step == 1
    assert [each.why for each in event.passed_over] == ["rank 0: a wrong digest"]


def test_a_node_with_a_folder_of_its_own_is_waited_for_once() -> None:
    world = World(a=always(seen(2, age_s=1)), b=always(FolderLook()))
    world.begin()
    first = world.settle()
    assert isinstance(first, ResumeChosen) and first.unsure == ("host-b does not see it",)
    took_s = world.now_s - 100.0
    world.told.clear()
    world.begin()
    world.settle()
    assert took_s > 2 and world.now_s - 100.0 - took_s < 0.1


def test_what_a_rolled_back_version_of_this_job_wrote_comes_last() -> None:
    def wrote(*by: str) -> FolderLook:
        made = (
            SeenCheckpoint(name=f"step-{step}", uuid=f"u{step}", step=step, created_s=1.0, written_by=each, fault="")
            for step, each in enumerate(by)
        )
        return FolderLook(seen=tuple(made)[::-1])

    for by, step in ((("run 1-aa", "run 2-bb"), 0), (("run 1-aa", "another job 2-bb"), 1)):
        world = World(a=always(wrote(*by)))
        world.begin(untrusted=("2-bb",))
        event = world.settle()
        assert isinstance(event, ResumeChosen) and event.step == step
        assert world.orders[0][1].untrusted == ("run 2-bb",), "the node tells those last, too"


# --- in memory


def held(step: int, *ranks: int, copies: tuple[int, ...] = ()) -> MemoryGeneration:
    return MemoryGeneration(
        attempt=0, step=step, world_size=2, ranks=ranks, copies=copies, created_s=START_UNIX_S - 1.0
    )


def with_memory(**views: Callable[[float], FolderLook | None]) -> World:
    """`c`, which ran rank 1, has no part in the attempt any more."""
    world = World(**views)
    state = world.state
    state.has_memory = state.asks_memory = True
    state.memory_at = {node: MemoryAddress(host=f"ip-{node}", port=7) for node in ("a", "b", "c")}
    state.held_by = (
        MemoryHolder(node="a", name="host-a", first_rank=0, nproc=1),
        MemoryHolder(node="c", name="host-c", first_rank=1, nproc=1),
    )
    return world


def test_what_a_node_without_ranks_holds_is_asked_for_and_named() -> None:
    world = with_memory(a=always(seen(1)), b=always(seen(1)))
    world.memory = {"a": (held(5, 0),), "c": (held(5, 1),)}
    world.begin(holders=("c",))
    event = world.settle()
    assert isinstance(event, ResumeChosen)
    assert (event.source, event.step) == ("peer", 5)
    ((ranks, host, port),) = [(each.ranks, each.host, each.port) for each in event.elsewhere]
    assert (ranks, host, port) == ((1,), "ip-c", 7)
    asked = {node: order.memory_only for node, order in world.orders}
    assert asked == {"a": False, "b": False, "c": True}


def test_a_holder_that_says_nothing_is_waited_for_no_longer_than_a_node() -> None:
    world = with_memory(a=always(seen(1)), b=always(seen(1)))
    world.memory = {"a": (held(5, 0),)}
    world.views["c"] = always(None)
    world._send = lambda node, order, send=world._send: send(node, order) if node != "c" else None  # type: ignore[method-assign,misc]
    world.survey._send = world._send
    world.begin("a", "b", holders=("c",))
    event = world.settle()
    assert isinstance(event, ResumeChosen) and (event.source, event.step) == ("storage", 1)
    assert world.now_s == 110.0


def test_a_folder_that_hangs_keeps_nobody_from_starting_from_memory() -> None:
    world = with_memory(a=always(None), b=always(seen(1)))
    world.memory = {"a": (held(5, 0, copies=(1,)),), "b": ()}
    world.begin()
    event = world.settle()
    assert isinstance(event, ResumeChosen) and (event.source, event.step) == ("peer", 5)
    assert event.unsure == ("/ckpt did not answer on host-a",)
    assert world.now_s == 110.0, "what storage has might have been newer"
