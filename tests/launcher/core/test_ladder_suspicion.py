"""Hangs, signs of sensors, jumps and slowness on the ladder: when the job is checked, what is remembered, and when not."""

from __future__ import annotations

from typing import Any

import pytest
from stories import PEER, Story, evidence, incident_of, several_nodes, told_to_end

from robust_run.health.checks.types import Ambiguity, CheckJudgement, SuspectNode
from robust_run.health.types import Event as Sign
from robust_run.launcher.core.ladder.ladder_state import ladder_state_of
from robust_run.launcher.core.step import replay
from robust_run.launcher.model.actions import EndAttempt, OpenStore, RecordIncident
from robust_run.launcher.model.check_events import Decided, Diagnose, Diagnosed
from robust_run.launcher.model.code_events import CodeCaptured, CodeVersion, UpdateStaged
from robust_run.launcher.model.events import HangSuspected, Inquired, LimitNear, Tick
from robust_run.launcher.model.health_events import HealthSeen
from robust_run.launcher.model.node_events import ControllerResumed
from robust_run.tracer.types import TraceVerdict

FOUR = ("a", "b", "c", "d")
HOUR_S = 3600.0
EVERYWHERE = ("compute", "exchange", "neighbours", "allreduce")


def job(*names: str, **policy: Any) -> Story:
    """Return the story of a job on these nodes, else on four, that trains."""
    return several_nodes(*(names or FOUR), **{"diagnose": "auto", "max_restarts": 9, **policy})


def of(kind: type, actions: list[Any]) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def looks(story: Story, node: str, kind: str = "hang", **more: Any) -> list[Any]:
    """Ranks wait for one of this node, all are looked at, and this is what is seen."""
    first = story.place(node).first_rank if node in story.state.places else 0
    event = HangSuspected(attempt=story.state.attempt, node=node or "a", rank=first, waited_s=5.0, after_s=5.0)
    story.happens(event, 1.0)
    told: dict[str, Any] = {
        "kind": kind,
        "ranks": (first,),
        "nodes": (node,) if node else (),
        "confidence": "high",
        "rule": "wait_graph",
        "sentence": f"rank {first} never joined all_reduce #4",
        "proven": True,
        **more,
    }
    return story.happens(Inquired(attempt=story.state.attempt, verdict=TraceVerdict(**told), at_unix_s=7.0), 1.0)


def hangs(story: Story, node: str, steps: int | None = None, **more: Any) -> list[Any]:
    """A rank of this node hangs for good; return what follows when all nodes have ended the attempt."""
    assert of(EndAttempt, looks(story, node, **more)), "the attempt is ended for it"
    return all_end(story, steps)


def all_end(story: Story, steps: int | None = None) -> list[Any]:
    last: list[Any] = []
    for placement in tuple(story.state.layout):
        last = story.ends(placement.node, steps=steps)
    return last


def goes_on(story: Story) -> None:
    """The next attempt is being opened, and trains."""
    assert story.state.phase == "opening", story.state.phase
    story.starts()


def sees(story: Story, node: str, name: str, subject: str = "it", after_s: float = 1.0) -> list[Any]:
    """A sensor of a node says something."""
    at_s = story.now_s + after_s
    sign = Sign(name=name, kind="alert", subject=subject, detail="a sentence", at_s=at_s)
    return story.happens(HealthSeen(node=node, event=sign, at_unix_s=1e9), after_s)


def crashes(story: Story, node: str, code: int = -6, steps: int | None = None) -> list[Any]:
    """The first rank of a node dies of a signal, SIGABRT unless said otherwise."""
    rank = story.place(node).first_rank
    story.exits(rank, code)
    last: list[Any] = []
    for placement in tuple(story.state.layout):
        ranks = range(placement.first_rank, placement.first_rank + placement.nproc)
        ended = [evidence(r, code, story.now_s) if r == rank else told_to_end(r, story.now_s + 1) for r in ranks]
        last = story.ends(placement.node, *ended, steps=steps)
    return last


def checked(story: Story, *suspects: SuspectNode, **more: Any) -> list[Any]:
    """The checks are over: nothing is found but these."""
    assert story.state.phase == "diagnosing"
    bad = {each.node for each in suspects} | {name for each in more.get("ambiguous", ()) for name in each.nodes}
    passed = tuple(name for name in story.world if name not in bad)
    judged = CheckJudgement(**{"suspects": suspects, "passed": passed, **more})
    return story.happens(Diagnosed(attempt=story.state.attempt, judgement=judged, at_unix_s=9.0), 5.0)


def bad(node: str, confidence: str = "high") -> SuspectNode:
    return SuspectNode(node=node, check="compute", confidence=confidence, rule="odd", sentence=f"{node} is odd")  # type: ignore[arg-type]


def rule(actions: list[Any]) -> str:
    return of(Decided, actions)[-1].rule if of(Decided, actions) else ""


def same_after_replay(story: Story) -> None:
    """The journal leads to the same state."""
    assert replay(story.policy, story.told).ladder_state == story.state.ladder_state


# --- hangs: what must not happen ------------------------------------------------------------------------------------


def test_a_single_hang_is_tried_again_and_nothing_is_checked() -> None:
    story = job()
    actions = hangs(story, "b")
    assert incident_of(actions).action == "relaunch" and not of(Diagnose, actions)
    assert not story.state.evicted and story.state.phase == "opening"


def test_a_hang_that_ends_by_itself_leaves_no_suspicion() -> None:
    story = job()
    looks(story, "b", proven=False, onset_s=1.0, expires_s=1800.0)
    story.happens(Inquired(attempt=0, verdict=None, at_unix_s=7.0), 5.0)
    assert story.state.phase == "running" and story.state.ladder_state == b""


def test_ranks_that_evaluate_are_waited_for_and_leave_no_suspicion() -> None:
    story = job()
    for _ in range(5):
        looks(story, "b", proven=False, at_work=True, onset_s=1.0, expires_s=1.0 + 1800.0)
    assert story.state.phase == "running" and story.state.ladder_state == b""


def test_a_node_that_was_suspected_long_ago_is_as_good_as_any() -> None:
    story = job()
    hangs(story, "b")
    goes_on(story)
    story.now_s += 48 * HOUR_S
    actions = hangs(story, "b", steps=500)
    assert incident_of(actions).action == "relaunch" and not of(Diagnose, actions)


def test_hangs_of_different_nodes_with_progress_between_are_no_pattern() -> None:
    story = job()
    for step, node in enumerate(FOUR):
        assert incident_of(hangs(story, node, steps=10 + step)).action == "relaunch"
        goes_on(story)
    assert not story.state.evicted


def test_a_hang_that_names_every_node_says_nothing_of_any() -> None:
    story = job()
    hangs(story, "b", kind="comm_stall", nodes=FOUR, steps=10)
    goes_on(story)
    actions = hangs(story, "b", kind="comm_stall", nodes=FOUR, steps=20)
    assert incident_of(actions).action == "relaunch" and not ladder_state_of(story.state).suspicions


def test_calls_of_the_program_that_do_not_match_are_never_the_machines() -> None:
    story = job()
    for _ in range(3):
        assert not of(Diagnose, hangs(story, "b", kind="mismatch"))
        goes_on(story)
    assert not ladder_state_of(story.state).suspicions


def test_without_the_ladder_hangs_are_as_ever() -> None:
    story = job(diagnose="never")
    for _ in range(3):
        assert incident_of(hangs(story, "b")).action == "relaunch"
        goes_on(story)
    assert story.state.ladder_state == b""


# --- hangs: the ladder ----------------------------------------------------------------------------------------------


def test_a_second_hang_on_the_same_node_has_the_nodes_checked_even_with_progress() -> None:
    story = job()
    hangs(story, "b", steps=10)
    goes_on(story)
    story.now_s += 2 * HOUR_S
    actions = hangs(story, "b", steps=900)
    assert incident_of(actions).action == "diagnose" and rule(actions) == "hang_again_diagnose"
    (order,) = of(Diagnose, actions)
    assert order.checks == EVERYWHERE and order.nodes == FOUR, "the checks that fit a hang"
    same_after_replay(story)
    assert of(OpenStore, checked(story)), "nothing was found, and the job goes on"
    assert story.world == list(FOUR)


def test_ranks_that_hang_again_without_progress_have_the_nodes_checked_though_nothing_says_why() -> None:
    story = job()
    unknown = {"kind": "unknown", "rule": "nothing_found", "nodes": (), "ranks": ()}
    assert incident_of(hangs(story, "", **unknown)).action == "relaunch"
    goes_on(story)
    assert rule(hangs(story, "", **unknown)) == "hang_again_diagnose"


def test_what_checks_find_certain_after_a_second_hang_is_evicted_and_a_standby_takes_over() -> None:
    story = job()
    hangs(story, "b")
    goes_on(story)
    hangs(story, "b")
    story.joins("spare")
    assert of(OpenStore, checked(story, bad("b")))
    assert story.world == ["a", "spare", "c", "d"]


def test_without_a_standby_a_node_that_is_only_slow_in_checks_stays() -> None:
    story = job()
    hangs(story, "b")
    goes_on(story)
    hangs(story, "b")
    actions = checked(story, bad("b", "medium"))
    assert rule(actions) == "uncovered_kept"
    assert not story.state.evicted and of(OpenStore, actions), "it does not wait for a node that nobody brings"


def test_checks_that_could_not_run_evict_nobody() -> None:
    story = job()
    hangs(story, "b")
    goes_on(story)
    hangs(story, "b")
    story.joins("spare")
    actions = checked(story, unchecked=("b: no check program could be started",), passed=("a", "c", "d"))
    assert rule(actions) == "nothing_certain"
    assert not story.state.evicted and story.world == list(FOUR)


def test_a_node_that_hangs_again_and_again_goes_once_another_can_take_over() -> None:
    story = job()
    for _ in range(2):
        hangs(story, "b")
        if story.state.phase == "diagnosing":
            checked(story)
        goes_on(story)
    actions = hangs(story, "b")
    assert rule(actions) == "all_tried" and story.state.phase == "opening", "no standby: it goes on as it can"
    goes_on(story)
    looks(story, "b")
    story.joins("spare")
    assert rule(all_end(story)) == "suspected_evicted"
    assert story.world == ["a", "spare", "c", "d"]
    same_after_replay(story)


def test_of_two_nodes_that_are_suspected_equally_none_is_evicted() -> None:
    story = job()
    for node in ("b", "c"):
        hangs(story, node)
        goes_on(story) if story.state.phase == "opening" else (checked(story), goes_on(story))
    looks(story, "b", kind="hang", nodes=("b", "c"))
    story.joins("spare")
    all_end(story)
    assert not story.state.evicted
    assert story.world == list(FOUR)


def test_hangs_end_with_max_restarts_not_with_the_ladder() -> None:
    story = job("a", "b", max_restarts=4)
    for _ in range(4):
        hangs(story, "b")
        if story.state.phase == "diagnosing":
            checked(story)
        goes_on(story)
    actions = hangs(story, "b")
    assert actions[-1].outcome == "failed" and "--max-restarts" in actions[-1].reason


def test_one_of_two_that_checks_cannot_tell_apart_is_known_by_what_it_did_before() -> None:
    story = job(max_evict_share=0.5)
    hangs(story, "b")
    goes_on(story)
    hangs(story, "b")
    story.joins("spare")
    story.joins("spare2")
    unclear = Ambiguity(nodes=("b", "c"), check="neighbours", rule="slow_pair", sentence="b or c is slow")
    assert rule(checked(story, ambiguous=(unclear,))) == "ambiguous_known"
    assert list(story.state.evicted) == ["b"]


# --- what is remembered ---------------------------------------------------------------------------------------------


def test_the_first_crash_on_a_suspect_node_is_looked_into_at_once() -> None:
    story = job()
    hangs(story, "b", steps=10)
    goes_on(story)
    assert rule(crashes(story, "b")) == "suspected_diagnose"


def test_the_first_crash_elsewhere_or_by_a_signal_from_outside_is_tried_again_as_ever() -> None:
    for node, code in (("c", -6), ("b", -9)):
        story = job()
        hangs(story, "b", steps=10)
        goes_on(story)
        assert incident_of(crashes(story, node, code)).action == "relaunch"


def test_a_node_that_is_taken_back_is_mended() -> None:
    story = job()
    hangs(story, "b")
    goes_on(story)
    story.evicts("b")
    story.readmits("b")
    assert not ladder_state_of(story.state).suspicions


def test_a_controller_that_comes_back_remembers_who_is_suspect() -> None:
    story = job()
    story.now_s = 9e5
    hangs(story, "b", steps=10)
    goes_on(story)
    story.now_s = 50.0  # another machine's clock
    story.happens(ControllerResumed(term=2))
    (one,) = ladder_state_of(story.state).suspicions.values()
    assert (one.weight, one.at_s) == (1.0, 50.0)
    assert rule(hangs(story, "b", steps=900)) == "hang_again_diagnose"
    same_after_replay(story)


# --- sensors --------------------------------------------------------------------------------------------------------


def test_a_sign_that_asks_for_checks_suspends_the_job_makes_those_that_fit_and_goes_on() -> None:
    story = job()
    story.joins("spare")
    assert of(EndAttempt, sees(story, "b", "gpu.pcie_width", "GPU 0"))
    actions = all_end(story)
    incident = incident_of(actions)
    assert (incident.action, incident.verdict.kind, incident.verdict.nodes) == ("diagnose", "node_fault", ("b",))
    assert rule(actions) == "sensor_diagnose"
    assert of(Diagnose, actions)[0].checks == ("compute", "model", "exchange")
    assert of(OpenStore, checked(story)) and story.world == list(FOUR)
    assert story.state.trail.fruitless == 0, "a suspension is no restart in vain"
    same_after_replay(story)


def test_the_node_that_is_at_fault_for_a_sign_is_replaced() -> None:
    story = job()
    story.joins("spare")
    sees(story, "b", "gpu.pcie_width")
    all_end(story)
    checked(story, bad("b", "medium"))
    assert story.world == ["a", "spare", "c", "d"]


def test_the_same_sign_again_and_signs_everywhere_do_not_suspend_the_job_again() -> None:
    story = job()
    story.joins("spare")
    sees(story, "b", "gpu.pcie_width")
    all_end(story)
    checked(story)
    goes_on(story)
    for node in FOUR:
        assert not of(EndAttempt, sees(story, node, "gpu.pcie_width")), "within half an hour"
    story.now_s += HOUR_S
    goes_on_untouched = sees(story, "b", "gpu.pcie_width", "GPU 1")
    (told,) = of(RecordIncident, goes_on_untouched)
    assert told.action == "report" and "the nodes were checked for it" in told.reason
    assert story.state.phase == "running"


def test_a_rank_whose_reduced_value_differs_is_checked_bit_by_bit_and_its_node_replaced_if_that_finds_it() -> None:
    story = job()
    story.joins("spare")
    rank = story.place("c").first_rank + 1
    assert of(EndAttempt, sees(story, "c", "numbers.reduced", f"rank {rank}"))
    actions = all_end(story)
    verdict = incident_of(actions).verdict
    assert (verdict.ranks, verdict.nodes, verdict.rule) == ((rank,), ("c",), "numbers.reduced")
    (order,) = of(Diagnose, actions)
    assert order.checks == ("compute", "model", "memory", "exchange", "neighbours", "allreduce")
    assert order.seconds == 30.0, "what flips bits comes and goes"
    checked(story, bad("c", "medium"))
    assert story.world == ["a", "b", "spare", "d"]
    same_after_replay(story)


def test_of_two_ranks_whose_reduced_values_differ_both_are_named_and_neither_is_evicted_for_that() -> None:
    story = job()
    story.joins("spare")
    ranks = story.place("b").first_rank, story.place("d").first_rank
    sees(story, "b", "numbers.reduced", f"ranks {ranks[0]}, {ranks[1]}")
    verdict = incident_of(all_end(story)).verdict
    assert (verdict.ranks, verdict.nodes) == (ranks, ("b", "d"))
    checked(story)
    assert story.world == list(FOUR) and not story.state.evicted
    assert set(ladder_state_of(story.state).suspicions) == {"b", "d"}
    goes_on(story)


@pytest.mark.parametrize("subject", ["", "rank", "rank x", "rank 999999", "ranks 3,,4", "rank 99999999999999", "GPU 1"])
def test_a_difference_of_ranks_that_are_none_is_one_of_the_node_that_said_it(subject: str) -> None:
    story = job()
    (told,) = of(RecordIncident, sees(story, "b", "numbers.reduced", subject))
    assert (told.verdict.ranks, told.verdict.nodes, told.action) == ((), ("b",), "report")


@pytest.mark.parametrize(
    ("policy", "spare", "why"),
    [
        ({}, False, "no node can take over"),
        ({"max_restarts": 0}, True, "--max-restarts is 0"),
        ({"diagnose": "never"}, True, "asks for: diagnose"),
    ],
    ids=["no standby", "no restarts", "no ladder"],
)
def test_a_job_that_has_no_use_of_checks_is_not_suspended(policy: dict[str, Any], spare: bool, why: str) -> None:
    story = job(**policy)
    if spare:
        story.joins("spare")
    (told,) = of(RecordIncident, sees(story, "b", "gpu.pcie_width"))
    assert told.action == "report" and why in told.reason
    assert story.state.phase == "running"


def test_near_a_time_limit_and_while_code_is_on_probation_the_job_is_not_suspended() -> None:
    story = job()
    story.joins("spare")
    story.happens(LimitNear(near=True))
    (told,) = of(RecordIncident, sees(story, "b", "gpu.pcie_width"))
    assert "the time limit is near" in told.reason
    story = job()
    story.joins("spare")
    story.happens(CodeCaptured(version=CodeVersion(number=1, tree="a" * 64, by="ann")))
    story.happens(UpdateStaged(version=CodeVersion(number=2, tree="b" * 64, parents=(1,), by="ann"), now=True))
    all_end(story)
    goes_on(story)
    (told,) = of(RecordIncident, sees(story, "b", "gpu.pcie_width"))
    assert "a new version of the code is the first suspect" in told.reason


def test_a_sign_that_may_mean_little_is_remembered_and_the_next_hang_there_is_looked_into() -> None:
    story = job()
    story.joins("spare")
    for after_s in (1.0, 200.0):
        assert not of(EndAttempt, sees(story, "b", "kernel.lockup", f"CPU {after_s}", after_s))
    assert ladder_state_of(story.state).suspicions["b"].weight == pytest.approx(0.5, abs=0.01)
    assert story.state.phase == "running"


def test_a_starved_machine_that_logs_each_of_its_cpus_is_no_more_than_suspect() -> None:
    story = job()
    story.joins("spare")
    for cpu in range(64):
        assert not of(EndAttempt, sees(story, "b", "kernel.lockup", f"CPU {cpu}", 2.0))
    assert ladder_state_of(story.state).suspicions["b"].weight <= 0.5
    assert story.state.phase == "running" and not story.state.evicted


def test_crashes_on_one_node_again_and_again_evict_it_only_if_checks_find_something() -> None:
    story = job(no_replay="it is switched off")
    for number in range(8):
        crashes(story, "a", steps=10 * (number + 1))  # rank 0 has a bug of its own
        if story.state.phase == "diagnosing":
            checked(story)
        if number == 0:
            goes_on(story)
            story.joins("spare")
        elif story.state.phase == "opening":
            story.starts()
    assert story.state.phase == "running" and not story.state.evicted


# --- jumps and slowness ---------------------------------------------------------------------------------------------


def test_a_jump_that_stays_has_the_nodes_checked_once_and_then_it_is_the_data() -> None:
    assert not of(EndAttempt, sees(job(), "b", "training.jump.stays", "rank 2")), "no node can take over: it is told"
    story = job()
    story.joins("spare")
    assert not of(EndAttempt, sees(story, "b", "training.jump", "rank 2")), "it may be one odd batch"
    assert of(EndAttempt, sees(story, "b", "training.jump.stays", "rank 2"))
    actions = all_end(story)
    assert rule(actions) == "jump_diagnose" and of(Diagnose, actions)[0].seconds == 30.0
    assert "model" in of(Diagnose, actions)[0].checks and "disk" not in of(Diagnose, actions)[0].checks
    checked(story)
    goes_on(story)
    story.now_s += HOUR_S
    (told,) = of(RecordIncident, sees(story, "b", "training.jump.stays", "rank 2"))
    assert told.action == "report" and story.state.phase == "running"


@pytest.mark.parametrize("on_slow", ["report", "diagnose"])
def test_nothing_is_started_again_for_slowness_unless_asked(on_slow: str) -> None:
    story = job(on_slow=on_slow)
    slow = {"kind": "slow", "rule": "rounds"}
    assert not of(EndAttempt, looks(story, "b", **slow)), "no node can take over"
    story.joins("spare")
    ends = of(EndAttempt, looks(story, "b", **slow))
    assert bool(ends) == (on_slow == "diagnose")
    if ends:
        actions = all_end(story)
        assert rule(actions) == "slow_diagnose" and "disk" in of(Diagnose, actions)[0].checks
        checked(story, bad("b", "medium"))
        assert story.world == ["a", "spare", "c", "d"]


def test_a_crash_after_a_suspension_is_not_the_same_trouble_again() -> None:
    story = job()
    story.joins("spare")
    sees(story, "b", "gpu.pcie_width")
    all_end(story)
    checked(story)
    goes_on(story)
    actions = crashes(story, "c")
    assert incident_of(actions).action == "relaunch", "the first plain crash: no rung of what was before is climbed"


# --- one of a parallel group is at fault, and it is not known which -------------------------------------------------


SIXTEEN = tuple(f"n{number:02}" for number in range(16))
PIPELINE = SIXTEEN[12:]


def stalls(story: Story, **more: Any) -> list[Any]:
    """Communication has stopped within the pipeline group of the last four machines (ByteRobust 5.1)."""
    ranks = tuple(range(24, 32))
    return looks(
        story, "n12", **{"kind": "comm_stall", "nodes": PIPELINE, "ranks": ranks, "over_evicted": ranks, **more}
    )


def pipelines(spares: int, **policy: Any) -> Story:
    story = job(*SIXTEEN, **{"max_evict_share": 0.25, **policy})
    for number in range(spares):
        story.joins(f"s{number}")
    return story


def test_all_machines_of_the_group_are_evicted_where_standbys_cover_them() -> None:
    story = pipelines(spares=4)
    stalls(story)
    all_end(story)
    assert tuple(story.state.evicted) == PIPELINE
    assert story.world == [*SIXTEEN[:12], "s0", "s1", "s2", "s3"]


def test_what_standbys_cover_goes_the_worst_first_and_the_rest_is_tried_again_where_it_is() -> None:
    story = pipelines(spares=0)
    hangs(story, "n14", steps=10)
    goes_on(story)
    for name in ("s0", "s1"):
        story.joins(name)
    stalls(story)
    actions = all_end(story, steps=500)
    assert tuple(story.state.evicted) == ("n14", "n12"), "n14 was blamed before"
    (why,) = [line for line in incident_of(actions).verdict.evidence if "suspects are covered" in line]
    assert why.startswith("2 of 4 suspects are covered by other nodes; for the rest: to go on with them costs about")
    assert set(story.world) == {*SIXTEEN, "s0", "s1"} - {"n14", "n12"}
    same_after_replay(story)


def test_where_standbys_come_soon_all_are_evicted_and_they_are_waited_for() -> None:
    story = pipelines(spares=2, health_rules="[ladder]\nstandbys_s = 30\nfailure_s = 900\n")
    stalls(story)
    all_end(story)
    assert tuple(sorted(story.state.evicted)) == PIPELINE and story.state.phase == "gathering"
    story.joins("s2")
    story.joins("s3")
    assert story.state.phase == "opening"


def test_no_more_than_the_share_is_evicted_however_many_standbys_there_are() -> None:
    story = pipelines(spares=4, max_evict_share=0.1)
    stalls(story)
    all_end(story)
    assert tuple(story.state.evicted) == ("n12",), "a tenth of 16"
    goes_on(story)
    stalls(story, nodes=("n13", "n14"), ranks=(26, 27, 28, 29), over_evicted=(26, 27, 28, 29))
    all_end(story)
    assert tuple(story.state.evicted) == ("n12",)


def test_without_standbys_no_machine_of_the_group_is_evicted() -> None:
    story = pipelines(spares=0)
    stalls(story)
    all_end(story)
    assert not story.state.evicted and story.world == list(SIXTEEN)


# --- what is kept and told ------------------------------------------------------------------------------------------


def test_what_follows_a_suspension_is_not_said_to_have_helped() -> None:
    story = job()
    story.joins("spare")
    sees(story, "b", "gpu.pcie_width")
    all_end(story)
    checked(story)
    goes_on(story)
    actions = crashes(story, "c", steps=100)
    assert not of(Decided, actions), "it went on before, too"


def test_a_suspension_for_a_straggler_is_no_restart_in_vain() -> None:
    story = job(on_slow="diagnose", max_restarts=1)
    story.joins("spare")
    looks(story, "b", kind="slow", rule="rounds")
    all_end(story)
    checked(story)
    goes_on(story)
    assert story.state.trail.fruitless == 0
    assert incident_of(crashes(story, "c")).action == "relaunch", "the one restart is still there"


def test_when_ranks_have_ended_well_the_job_is_not_suspended() -> None:
    story = job()
    story.joins("spare")
    story.exits(7, 0)
    (told,) = of(RecordIncident, sees(story, "b", "gpu.pcie_width"))
    assert "the attempt is about to end" in told.reason and story.state.phase == "running"


def test_who_lost_a_connection_first_is_a_victim_and_not_suspect() -> None:
    story = job(diagnose="always")
    story.exits(2, 1, PEER)
    story.happens(Tick(), 1.0)
    last: list[Any] = []
    for placement in tuple(story.state.layout):
        ranks = range(placement.first_rank, placement.first_rank + placement.nproc)
        ended = [
            evidence(r, 1, story.now_s, finding=PEER) if r == 2 else told_to_end(r, story.now_s + 1) for r in ranks
        ]
        last = story.ends(placement.node, *ended)
    assert incident_of(last).verdict.rule == "only_peer_errors"
    assert not ladder_state_of(story.state).suspicions


def test_checks_that_find_nothing_halve_what_is_held_against_a_node_but_for_one_that_was_not_checked() -> None:
    for passed, left in ((FOUR, 1.0), (("a", "c", "d"), 2.0)):
        story = job()
        hangs(story, "b")
        goes_on(story)
        hangs(story, "b")
        checked(story, passed=passed)
        assert ladder_state_of(story.state).suspicions["b"].weight == pytest.approx(left, abs=0.01)
