"""What an attempt ended of: among failed ranks, nodes that went, the platform and people's wishes, which is the cause."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stories import BUG, PEER, TYPO, evidence, told_to_end

from robust_run.launcher.core.diagnosis.judge import SHOWN, AttemptJudgement, judge
from robust_run.launcher.core.state import EndCause, JobState, Member
from robust_run.launcher.model.job import NodeInfo, Placement, RankEvidence

Kind = Literal["lost", "left", "evicted", "fenced", "asked"]
KINDS: tuple[Kind, ...] = ("lost", "left", "evicted", "fenced", "asked")


def over(*ranks: RankEvidence, causes: tuple[EndCause, ...] = (), **more: object) -> JobState:
    """Return a state in which an attempt on the nodes a and b, with a rank each, is over."""
    names = ("a", "b")
    return JobState(
        phase="ending",
        attempt=0,
        members={
            name: Member(info=NodeInfo(id=name, name=f"host-{name}", nproc=1), joined=place)
            for place, name in enumerate(names)
        },
        layout=tuple(Placement(node=name, group_rank=i, first_rank=i, nproc=1) for i, name in enumerate(names)),
        places={"a": 0, "b": 1},
        evidence=list(ranks),
        causes=list(causes),
        **more,  # type: ignore[arg-type]
    )


def went(kind: Kind, at_s: float, node: str = "host-b", ranks: tuple[int, ...] = (1,)) -> EndCause:
    return EndCause(kind=kind, at_s=at_s, node=node, ranks=ranks, text=f"node {node} {kind}")


def verdict_on(state: JobState) -> AttemptJudgement:
    judgement = judge(state)
    assert judgement is not None
    return judgement


def test_all_well_is_no_verdict_whatever_happened_since() -> None:
    assert judge(over(evidence(0, 0), causes=(went("lost", 5),), all_well=True)) is None


def test_ranks_that_all_ended_well_by_themselves_have_done_their_work() -> None:
    assert judge(over(evidence(0, 0), evidence(1, 0), causes=(went("fenced", 0.5),))) is None


def test_ranks_that_ended_well_when_told_to_have_not() -> None:
    ended = over(evidence(0, 0), told_to_end(1, 2, exit_code=0), causes=(went("asked", 1.5, node="", ranks=()),))
    assert verdict_on(ended).draft.rule == "operator"


def test_a_rank_nobody_heard_of_has_not_done_its_work() -> None:
    judgement = verdict_on(over(evidence(0, 0)))
    assert (judgement.draft.kind, judgement.draft.rule, judgement.heals) == ("unknown", "unexplained", False)


def test_a_failed_rank_is_named_with_its_host() -> None:
    judgement = verdict_on(over(told_to_end(0, 2), evidence(1, -9, 1)))
    assert (judgement.draft.ranks, judgement.draft.nodes) == ((1,), ("host-b",))
    assert (judgement.symptom, judgement.onset_at_s, judgement.heals) == ("worker_failed", 1, False)


def test_the_onset_is_the_first_failure_of_any_rank() -> None:
    judgement = verdict_on(over(evidence(0, 1, 1.0, finding=PEER), evidence(1, 1, 1.4, finding=BUG)))
    assert (judgement.draft.ranks, judgement.onset_at_s) == ((1,), 1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_failed_first_is_the_cause_and_the_node_its_aftermath(kind: Kind) -> None:
    judgement = verdict_on(over(evidence(0, 1, 10, finding=BUG), causes=(went(kind, 10.1),)))
    assert judgement.draft.rule == "user_exception"
    assert f"node host-b {kind}" in judgement.draft.aftermath
    assert not judgement.heals


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at_s", [9.0, 10.0])
def test_a_node_that_went_first_or_at_the_same_time_is_the_cause(kind: Kind, at_s: float) -> None:
    judgement = verdict_on(over(evidence(0, -6, 10), causes=(went(kind, at_s),)))
    assert judgement.draft.nodes == ("host-b",)
    assert (judgement.heals, judgement.onset_at_s) == (True, at_s)


@pytest.mark.parametrize("kind", KINDS)
def test_broken_connections_are_never_the_cause_where_a_node_went(kind: Kind) -> None:
    assert verdict_on(over(evidence(0, 1, 1, finding=PEER), causes=(went(kind, 4),))).heals


@pytest.mark.parametrize(
    ("kind", "symptom", "evicts"),
    [
        ("lost", "node_lost", True),
        ("evicted", "evicted", True),
        ("fenced", "node_lost", False),
        ("left", "node_left", False),
        ("asked", "operator", False),
    ],
)
def test_only_nodes_that_cannot_be_used_again_are_taken_out(kind: Kind, symptom: str, evicts: bool) -> None:
    judgement = verdict_on(over(causes=(went(kind, 1),)))
    assert (judgement.symptom, judgement.evicts) == (symptom, evicts)


def test_the_first_of_several_causes_counts_and_the_others_follow() -> None:
    judgement = verdict_on(over(causes=(went("evicted", 5), went("lost", 3, node="host-a", ranks=(0,)))))
    assert judgement.draft.sentence == "node host-a lost"
    assert judgement.draft.aftermath == "node host-b evicted"
    assert judgement.draft.ranks == (0,)


def test_several_lost_nodes_are_one_sentence() -> None:
    judgement = verdict_on(over(causes=(went("lost", 3), went("lost", 4, node="host-a", ranks=(0,)))))
    assert judgement.draft.sentence == "2 nodes (host-b, host-a) stopped answering"
    assert (judgement.draft.ranks, judgement.draft.nodes) == ((0, 1), ("host-b", "host-a"))


@pytest.mark.parametrize("kind", KINDS)
def test_however_many_nodes_go_the_sentence_stays_short(kind: Kind) -> None:
    crowd = tuple(went(kind, 5, node=f"host-{number}") for number in range(5000))
    as_cause = verdict_on(over(causes=crowd)).draft
    as_aftermath = verdict_on(over(evidence(0, 1, 1, finding=BUG), causes=crowd)).draft
    assert len(as_cause.sentence) < 200
    assert len(as_aftermath.aftermath) < 200
    assert f"and {5000 - SHOWN} more" in as_aftermath.aftermath


def test_trouble_with_the_platform_speaks_for_itself() -> None:
    judgement = verdict_on(over(told_to_end(0, 2), trouble="cannot start rank 1: no memory", detected_at_s=1.5))
    assert (judgement.draft.kind, judgement.draft.sentence) == ("node_fault", "cannot start rank 1: no memory")
    assert (judgement.symptom, judgement.onset_at_s, judgement.heals) == ("platform", 1.5, False)


TIMES = st.floats(0, 20)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.builds(
            RankEvidence,
            rank=st.integers(0, 5),
            pid=st.just(1),
            exit_code=st.sampled_from([None, 0, 1, 255, -9, -64]),
            exited_at_s=TIMES,
            signalled_at_s=st.none() | TIMES,
            spoke_at_s=st.none() | TIMES,
            finding=st.sampled_from([None, PEER, BUG, TYPO]),
        ),
        max_size=6,
    ),
    st.lists(st.builds(went, st.sampled_from(KINDS), TIMES, st.sampled_from(["host-a", "host-b", ""])), max_size=4),
    st.sampled_from(["", "no memory"]),
)
def test_every_verdict_can_be_said_and_ends_a_job(
    ranks: list[RankEvidence], causes: list[EndCause], trouble: str
) -> None:
    judgement = judge(over(*ranks, causes=tuple(causes), trouble=trouble))
    if judgement is None:
        assert sorted(rank.exit_code or 0 for rank in ranks) == [0, 0], "nothing failed, and nobody is missing"
        return
    assert 1 <= judgement.draft.exit_code <= 255
    assert judgement.draft.sentence
    assert "\n" not in judgement.draft.sentence
    assert judgement.heals <= bool(causes), "only what no program did is healed without counting"


def test_where_no_node_of_the_attempt_reached_a_controller_none_is_to_blame() -> None:
    """The controller was cut off, and another leads by now."""
    everybody = (went("fenced", 1.0, "host-a", (0,)), went("fenced", 1.2))
    draft = verdict_on(over(causes=everybody)).draft
    assert (draft.nodes, draft.rule, draft.ranks) == ((), "node_fenced", (0, 1))
    assert draft.sentence.startswith("no controller could be reached: 2 nodes (host-a, host-b)")
    assert verdict_on(over(causes=everybody[:1])).draft.nodes == ("host-a",)


def test_a_node_that_stays_away_is_why_another_that_is_back_heard_of_no_controller() -> None:
    """A controller that takes over does not know for how long the one before it had been away."""
    draft = verdict_on(over(causes=(went("fenced", 1.0), went("lost", 5.0, "host-a", (0,))))).draft
    assert (draft.nodes, draft.rule, draft.aftermath) == (("host-a",), "node_lost", "node host-b fenced")
