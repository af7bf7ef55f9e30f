"""An attempt that failed is concluded with what its ranks left behind: the core orders that, and waits for nothing else."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stories import BUG, Story, evidence, several_nodes

from robust_run.clock import SystemClock
from robust_run.launcher.controller.controller import Controller
from robust_run.launcher.core.step import replay
from robust_run.launcher.model.actions import Inquire, OpenStore, RecordIncident
from robust_run.launcher.model.events import AttemptEnded, Event, Inquired, SignalReceived, StoreOpened, Tick
from robust_run.launcher.model.job import Progress, Sights
from robust_run.launcher.model.node_events import ControllerResumed, NodeReturned
from robust_run.tracer.types import RankSight, TraceVerdict

ORDER = Inquire(attempt=0, post_mortem=True)
STUCK = TraceVerdict(
    kind="mismatch",
    ranks=(3,),
    nodes=("b",),
    confidence="high",
    rule="wait_graph",
    sentence="rank 3 called another collective",
    proven=True,
)


def failed(**policy: object) -> Story:
    """Rank 0 aborted, and node a has ended the attempt."""
    story = several_nodes("a", "b", **policy)
    story.exits(0, -6)
    story.ends("a", evidence(0, -6), evidence(1, -15, signalled_at_s=0.5), has_sights=True)
    return story


def of(kind: type, actions: list[Any]) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def answered(story: Story, verdict: TraceVerdict | None) -> list[Any]:
    return story.happens(Inquired(attempt=0, verdict=verdict, at_unix_s=77.0))


def plain(story: Story) -> Any:
    return msgspec.to_builtins(story.state, order="deterministic")


def test_the_last_end_of_a_failed_attempt_has_it_judged_and_the_answer_concludes_it() -> None:
    story = failed()
    assert story.ends("b", has_sights=True) == [ORDER]
    assert story.state.attempt == 0 and story.state.is_quiet
    actions = answered(story, STUCK)
    (incident,) = of(RecordIncident, actions)
    assert (incident.verdict.ranks, incident.verdict.kind) == ((3,), "mismatch")
    assert of(OpenStore, actions) and story.state.attempt == 1
    assert replay(story.policy, story.told) == story.state


@pytest.mark.parametrize("verdict", [STUCK, None])
def test_a_journal_that_has_the_verdict_before_the_end_leads_to_the_same_state(verdict: TraceVerdict | None) -> None:
    """As versions before this one wrote it; where there was no verdict, they wrote nothing."""
    new, old = failed(), failed()
    new.ends("b", has_sights=True)
    answered(new, verdict)
    if verdict is not None:
        answered(old, verdict)
    assert of(RecordIncident, old.ends("b"))
    assert plain(new) == plain(old)


def test_an_end_that_was_counted_or_is_of_another_attempt_orders_nothing() -> None:
    story = failed()
    assert story.ends("a", has_sights=True) == [], "it has been counted"
    other = AttemptEnded(attempt=7, node="b", started_at_s=0.0, ranks=(), progress=Progress(), has_sights=True)
    assert story.happens(other) == [], "that was of another attempt"
    assert story.ends("b", has_sights=True) == [ORDER]


def test_without_anything_left_behind_it_is_concluded_at_once() -> None:
    story = failed()
    assert of(RecordIncident, story.ends("b")) and story.state.attempt == 1


def test_nothing_is_judged_where_it_is_known_why_the_attempt_ended() -> None:
    well = several_nodes("a", "b")
    for rank in range(4):
        well.exits(rank, 0)
    stopped = several_nodes("a", "b")
    stopped.happens(SignalReceived(signal=15))
    lost = several_nodes("a", "b", fewest=1)
    lost.is_lost("a")
    traced = failed()
    answered(traced, STUCK)
    for story in (well, stopped, lost, traced):
        actions = [action for node in sorted(story.state.unended) for action in story.ends(node, has_sights=True)]
        assert not of(Inquire, actions) and not story.state.awaits_post_mortem


def test_a_controller_that_died_before_the_answer_is_followed_by_one_that_concludes_without() -> None:
    story = failed()
    story.ends("b", has_sights=True)
    assert of(RecordIncident, story.happens(ControllerResumed(term=2)))
    assert not story.state.awaits_post_mortem and story.state.attempt == 1
    assert answered(story, STUCK) == [], "too late"
    assert replay(story.policy, story.told) == story.state


@pytest.mark.parametrize(
    "event",
    [NodeReturned(node="a", attempt=0), Inquired(attempt=7, verdict=STUCK), SignalReceived(signal=15)],
    ids=["returned", "other", "stop"],
)
def test_whatever_else_comes_first_finds_the_attempt_concluded(event: Event) -> None:
    """A journal may have lost the answer; the job goes on all the same."""
    story, other = failed(), failed()
    story.ends("b", has_sights=True)
    other.ends("b")
    other.now_s = story.now_s
    assert of(RecordIncident, story.happens(event))
    other.happens(event)
    assert plain(story) == plain(other)
    assert replay(story.policy, story.told) == story.state


def controller_of(story: Story, told: list[Event], said: list[str]) -> Controller:
    """Return a real controller of the story, whose journal is `told`."""
    book: Any = SimpleNamespace(say=said.append, record=lambda *_: None, job=None)
    journal: Any = SimpleNamespace(
        event=lambda event, *_: told.append(event), sync_soon=lambda: None, written=0, is_durable=lambda _: True
    )
    outbox: Any = SimpleNamespace(send=lambda *_: None)
    timer: Any = SimpleNamespace(cancel=lambda: None)
    return Controller(
        policy=story.policy,
        state=story.state,
        book=book,
        journal=journal,
        clock=SystemClock(),
        outbox=outbox,
        later=lambda *_: timer,
        on_finish=lambda _: None,
    )


def raising(*_: object) -> TraceVerdict:
    raise ValueError("no such scene")


@pytest.mark.parametrize("judge", [lambda *_: STUCK, lambda *_: None, raising], ids=["verdict", "none", "fault"])
def test_the_controller_answers_at_once_whatever_comes_of_it(judge: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robust_run.tracer.verdict.post_mortem", judge)
    story, told, said = several_nodes("a", "b"), [], []  # type: ignore[var-annotated]
    story.exits(0, 1, BUG)
    controller = controller_of(story, told, said)
    for node, rank in (("a", 0), ("b", 2)):
        controller.see(node, Sights(attempt=0, number=-1, sights=(RankSight(rank=rank, node=""),)))
        controller.tell(
            AttemptEnded(attempt=0, node=node, started_at_s=0.0, ranks=(evidence(rank, 1),), progress=Progress())
        )
    first, last, answer = told
    assert isinstance(first, AttemptEnded) and isinstance(last, AttemptEnded) and first.has_sights and last.has_sights
    assert isinstance(answer, Inquired) and (answer.verdict is None) == (
        judge(0) is None if judge is not raising else True
    )
    assert story.state.attempt == 1 and not story.state.awaits_post_mortem
    assert bool(said) == (judge is raising)


DEEDS = st.tuples(
    st.sampled_from(
        ("exit", "fail", "fail", "end", "end", "end", "end", "lose", "return", "join", "tick", "resume", "stop")
    ),
    st.sampled_from("abc"),
    st.integers(0, 3),
    st.booleans(),
)


def does(story: Story, what: str, node: str, number: int, flag: bool) -> list[Any]:
    match what:
        case "exit":
            return story.exits(number, 0 if flag else -6)
        case "fail" if story.state.is_training:
            return story.exits(0, -6)
        case "end" if story.state.unended:
            unended = sorted(story.state.unended)
            return story.ends(unended[number % len(unended)], has_sights=flag or number > 0)
        case "lose" if number == 0:
            return story.is_lost(node)
        case "return":
            return story.happens(NodeReturned(node=node, attempt=story.state.attempt))
        case "join":
            return story.joins(node)
        case "tick":
            return story.happens(Tick(), 10.0)
        case "resume" if flag:
            return story.happens(ControllerResumed(term=number))
        case "stop" if flag and number == 3:
            return story.happens(SignalReceived(signal=15))
    return []


def opens(story: Story) -> None:
    """The store of an attempt that begins is open."""
    state = story.state
    if state.layout:
        opened = StoreOpened(attempt=state.attempt, node=state.layout[0].node, address="127.0.0.1", port=1)
        story.happens(opened)


@settings(max_examples=int(os.environ.get("JOB_PROPERTY_EXAMPLES", "100")), deadline=None)
@given(st.lists(st.tuples(DEEDS, st.sampled_from(("verdict", "nothing", "dies"))), min_size=10, max_size=60))
def test_a_job_is_never_left_waiting_for_an_answer(story_of: list[tuple[tuple[str, str, int, bool], str]]) -> None:
    story = several_nodes("a", "b", fewest=1, max_restarts=1000)
    for deed, answer in story_of:
        if any(isinstance(a, Inquire) and a.post_mortem for a in does(story, *deed)):
            assert story.state.awaits_post_mortem and story.state.is_quiet and story.state.is_ending
            if answer == "dies":
                story.happens(ControllerResumed(term=2))
            else:
                verdict = STUCK if answer == "verdict" else None
                story.happens(Inquired(attempt=story.state.attempt, verdict=verdict))
        opens(story)
        assert not story.state.awaits_post_mortem
        if story.state.is_going or story.state.has_ranks:
            assert not story.state.is_quiet, "somebody will say that the attempt is over"
    assert replay(story.policy, story.told) == story.state
