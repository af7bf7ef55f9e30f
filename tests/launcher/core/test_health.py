"""What the core does about what sensors say: stories."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from simulated_code import version
from stories import BUG, Story, ending, evidence, incident_of, kinds, one_node, several_nodes, told_to_end

from robust_run.health.rules.workers import event_of
from robust_run.health.sensors import kernel_log
from robust_run.health.sensors.settings import KernelLogSettings
from robust_run.health.types import Event, Finding
from robust_run.launcher.core.diagnosis import blindness
from robust_run.launcher.core.state import JobState
from robust_run.launcher.core.step import replay
from robust_run.launcher.model.actions import EndAttempt, Inquire, RecordIncident, Say
from robust_run.launcher.model.code_events import CodeCaptured, UpdateStaged
from robust_run.launcher.model.events import Inquired
from robust_run.launcher.model.health_events import HealthSeen, RuleSpoke, SensorsBegan
from robust_run.tracer.types import TraceVerdict

GPU_LOST = "gpu.lost"


def sees(
    story: Story, node: str, name: str, subject: str = "it", after_s: float = 1.0, kind: str = "alert", number: int = 0
) -> list[Any]:
    """A sensor of a node says something at this moment."""
    at_s = story.now_s + after_s
    event = Event(name=name, kind=kind, subject=subject, detail="a sentence", at_s=at_s, number=number)  # type: ignore[arg-type]
    return story.happens(HealthSeen(node=node, event=event, at_unix_s=1e9 + at_s), after_s)


def spoken(actions: list[Any]) -> list[RuleSpoke]:
    return [action for action in actions if isinstance(action, RuleSpoke)]


# --- evictions ------------------------------------------------------------------------------------------------------


def test_a_lost_gpu_evicts_its_node_at_once_and_the_standby_takes_over() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    rule, said, end = sees(story, "b", GPU_LOST, "GPU 0000:3b:00")
    assert (rule.rule, rule.rung, rule.confidence, rule.node) == ("gpu.lost", "evict", "high", "b")
    assert isinstance(said, Say)
    assert end == ending()
    actions = story.all_end()
    incident = incident_of(actions)
    verdict = incident.verdict
    assert (incident.action, verdict.kind, verdict.rule, verdict.nodes) == ("evict", "node_fault", "gpu.lost", ("b",))
    assert "GPU 0000:3b:00: a sentence (gpu.lost)" in verdict.sentence
    assert incident.onset_at_s == 1.0
    assert incident.reason == "spare takes over"
    assert story.world == ["a", "spare"]
    assert story.state.evicted["b"].by == "rule gpu.lost"


def test_one_network_alert_is_tolerated_and_the_second_within_five_minutes_evicts() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    (first,) = sees(story, "b", "network.link_down", "eth0")
    assert (first.tolerated, first.rung) == (True, "report")
    second = sees(story, "b", "network.link_flap", "eth0", after_s=200)
    assert spoken(second)[0].rung == "evict"
    assert "2 alerts within 300 s" in spoken(second)[0].sentence
    assert ending() in second


def test_network_alerts_that_are_further_apart_are_tolerated() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    for _ in range(3):
        assert not [s for s in spoken(sees(story, "b", "network.link_down", "eth0", after_s=301)) if not s.tolerated]
    assert not story.state.evicted


def test_where_nobody_can_take_over_two_network_alerts_are_reported_and_training_goes_on() -> None:
    story = several_nodes("a", "b")
    sees(story, "b", "network.link_down", "eth0")
    rule, incident = sees(story, "b", "network.link_down", "eth0", after_s=30)
    assert rule.held_back == "no node can take over"
    assert isinstance(incident, RecordIncident)
    assert (incident.action, incident.verdict.kind) == ("report", "node_fault")
    assert story.state.phase == "running"


def test_a_node_that_is_broken_for_certain_goes_even_if_the_job_must_wait_for_another() -> None:
    story = several_nodes("a", "b")
    assert ending() in sees(story, "b", GPU_LOST)
    story.all_end()
    assert story.state.phase == "gathering"


def test_the_only_node_of_a_job_is_never_evicted() -> None:
    story = one_node()
    rule, incident = sees(story, "here", GPU_LOST)
    assert (rule.rung, rule.held_back) == ("report", "the job has no other node")
    assert (incident.action, incident.verdict.rule) == ("report", "gpu.lost")
    assert not story.state.evicted
    assert sees(story, "here", GPU_LOST) == [], "it is told once in an attempt"


def test_a_bad_rule_evicts_no_more_than_its_share() -> None:
    """A rule that fires on every node must not eat the job."""
    names = [f"n{index}" for index in range(40)]
    story = several_nodes(*names, fewest=20)
    for name in names:
        sees(story, name, GPU_LOST, after_s=0.1)
    assert len(story.state.evicted) == 4, "a tenth of 40"
    assert len(story.state.members) - len(story.state.evicted) == 36


@pytest.mark.parametrize(("share", "evicted"), [(0.0, 0), (0.25, 2), (1.0, 8)])
def test_the_share_is_the_user_s_to_say(share: float, evicted: int) -> None:
    names = [f"n{index}" for index in range(8)]
    story = several_nodes(*names, fewest=1, max_evict_share=share)
    for name in names:
        sees(story, name, GPU_LOST)
    assert len(story.state.evicted) == evicted


def test_a_file_changes_what_a_rule_asks_for() -> None:
    story = several_nodes("a", "b", health_rules='[rules."gpu.lost"]\nrung = "report"\n')
    story.joins("spare")
    rules = spoken(sees(story, "b", GPU_LOST))
    assert [rule.rung for rule in rules] == ["report"]
    assert not story.state.evicted


def test_a_standby_with_a_fault_is_not_used_and_training_goes_on() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    actions = sees(story, "spare", GPU_LOST)
    assert kinds(actions) == [RuleSpoke, Say]
    assert story.state.phase == "running"
    assert list(story.state.evicted) == ["spare"]


def test_a_node_that_was_mended_begins_anew() -> None:
    story = several_nodes("a", "b", "c", fewest=2)
    sees(story, "b", "network.link_down", "eth0")
    sees(story, "b", "network.link_down", "eth0", after_s=10)
    story.all_end()
    story.starts()
    story.readmits("b")
    (rule,) = sees(story, "b", "network.link_down", "eth0")
    assert rule.tolerated


# --- symptoms are not causes ----------------------------------------------------------------------------------------


def test_a_crash_of_the_node_s_rank_a_moment_before_its_gpu_is_seen_to_be_lost_is_the_gpu_s_doing() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    cuda = Finding(kind="accelerator", line="CUDA error: unspecified launch failure", trouble="cuda")
    story.exits(2, 1, cuda, after_s=5)
    sees(story, "b", GPU_LOST, after_s=1.5)
    story.ends("a")
    verdict = incident_of(story.ends("b", evidence(2, 1, 5.0, finding=cuda), told_to_end(3, 6.0))).verdict
    assert (verdict.kind, verdict.rule, verdict.nodes) == ("node_fault", "gpu.lost", ("b",))
    assert "CUDA error" in verdict.aftermath


def test_a_program_s_own_exception_is_not_excused_by_what_is_wrong_with_its_node() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    story.exits(2, 1, BUG, after_s=5)
    sees(story, "b", GPU_LOST, after_s=1.5)
    story.ends("a")
    verdict = incident_of(story.ends("b", evidence(2, 1, 5.0, finding=BUG), told_to_end(3, 6.0))).verdict
    assert (verdict.kind, verdict.rule) == ("code", "user_exception")


def test_what_sensors_saw_around_a_crash_stands_beside_it_as_evidence() -> None:
    story = several_nodes("a", "b")
    sees(story, "b", "gpu.hot", "GPU 0000:3b:00", after_s=10)
    sees(story, "a", "gpu.hot", "GPU 0000:5e:00")
    story.exits(2, -11, after_s=2)
    story.ends("a")
    verdict = incident_of(story.ends("b", evidence(2, -11, story.now_s), told_to_end(3, story.now_s + 1))).verdict
    assert verdict.kind == "crash"
    (line,) = [line for line in verdict.evidence if "gpu.hot" in line]
    assert line == "on b, 3.0 s before it: gpu.hot: GPU 0000:3b:00: a sentence"


def test_what_was_seen_long_before_explains_nothing() -> None:
    story = one_node()
    sees(story, "here", "gpu.hot")
    story.exits(0, -11, after_s=90)
    verdict = incident_of(story.ends("here", evidence(0, -11, story.now_s), told_to_end(1, story.now_s + 1))).verdict
    assert not verdict.evidence


def test_a_rank_that_the_kernel_killed_for_memory_is_said_to_be_out_of_memory() -> None:
    story = one_node()
    sees(story, "here", "memory.oom_kill", "", number=100)
    story.exits(0, -9)
    actions = story.ends("here", evidence(0, -9, story.now_s), told_to_end(1, story.now_s + 1))
    incident = incident_of(actions)
    assert (incident.verdict.kind, incident.verdict.rule, incident.action) == ("crash", "out_of_memory", "relaunch")
    assert incident.verdict.sentence.endswith(": the kernel killed it because memory ran out: a sentence")
    assert [rule.rule for rule in spoken(actions)] == ["worker.host_memory"]


@pytest.mark.parametrize("agent_knows", [True, False], ids=["the agent saw it", "only the core saw it"])
def test_a_kill_for_memory_is_told_in_one_clear_line_and_the_kernel_s_own_stands_once_beside_it(
    agent_knows: bool,
) -> None:
    line = "Memory cgroup out of memory: Killed process 100 (python3) total-vm:5000kB, anon-rss:409600kB, file-rss:0kB"
    _, (sign,) = kernel_log.judge(
        KernelLogSettings(), {}, kernel_log.Batch((kernel_log.KernelRecord(0, line),), False), 4.0
    )
    story = one_node()
    story.happens(HealthSeen(node="here", event=sign, at_unix_s=1e9), 5)
    story.exits(0, -9)
    event = event_of(0, 100, -9, None, [sign], story.now_s)
    assert event is not None
    told = Finding(kind="out_of_memory", line=event.detail, trouble="host_memory") if agent_knows else None
    actions = story.ends("here", evidence(0, -9, story.now_s, finding=told), told_to_end(1, story.now_s + 1))
    verdict = incident_of(actions).verdict
    assert verdict.sentence == (
        "rank 0 was killed by SIGKILL (signal 9): the kernel killed it because memory ran out: "
        "the limit of its cgroup was reached (it held 400 MiB)"
    )
    assert verdict.aftermath == ""
    assert sum("Killed process" in each for each in verdict.evidence) == 1
    assert sum("memory ran out" in each for each in verdict.evidence) == 0


def test_a_kill_of_another_process_does_not_explain_a_sigkill() -> None:
    story = one_node()
    sees(story, "here", "memory.oom_kill", "", number=4711)
    story.exits(0, -9)
    incident = incident_of(story.ends("here", evidence(0, -9, story.now_s), told_to_end(1, story.now_s + 1)))
    assert incident.verdict.rule == "died_of_signal"


# --- what is not this job's ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("disk.error", "loop3"),
        ("gpu.lost", "GPU 0000:3b:00"),
        ("memory.oom_kill", "python"),
        ("disk.read_only", "dm-9"),
    ],
)
def test_what_concerns_another_job_neither_evicts_nor_stands_in_a_verdict(name: str, subject: str) -> None:
    """The kernel's log says it again and again; the sensors note it, since it is not this job's."""
    story = several_nodes("a", "b")
    story.joins("spare")
    for _ in range(5):
        assert sees(story, "b", name, subject, after_s=10, kind="note", number=4811) == []
    assert not story.state.evicted
    assert not story.state.health.active, "nor is it shown as this job's"
    story.exits(2, -9, after_s=1)
    story.ends("a")
    actions = story.ends("b", evidence(2, -9, story.now_s), told_to_end(3, story.now_s + 1))
    verdict = incident_of(actions).verdict
    assert (verdict.rule, verdict.evidence, verdict.aftermath) == ("died_of_signal", (), "")


def test_reads_that_fail_in_the_job_s_image_evict_nobody_and_stand_beside_what_dies_of_it() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    for _ in range(5):
        rules = spoken(sees(story, "b", "image.error", "image hf.sqsh", after_s=10))
        assert not [rule for rule in rules if rule.rung != "report"]
    assert not story.state.evicted
    story.exits(2, -7, after_s=1)
    story.ends("a")
    verdict = incident_of(story.ends("b", evidence(2, -7, story.now_s), told_to_end(3, story.now_s + 1))).verdict
    assert any("image.error: image hf.sqsh" in line for line in verdict.evidence)
    assert "image.error" not in verdict.aftermath


@pytest.mark.parametrize(
    "name",
    [
        "memory.oom_kill_on_node",
        "memory.oom_kill_in_cgroup",
        "memory.pressure_on_node",
        "cpu.pressure",
        "cpu.neighbour",
    ],
)
def test_no_load_and_nothing_of_others_is_told_as_a_reason_for_a_sigkill(name: str) -> None:
    story = one_node()
    sees(story, "here", name, "")
    assert story.state.health.active, "people are shown it"
    story.exits(0, -9)
    actions = story.ends("here", evidence(0, -9, story.now_s), told_to_end(1, story.now_s + 1))
    verdict = incident_of(actions).verdict
    assert (verdict.rule, verdict.evidence, verdict.aftermath) == ("died_of_signal", (), "")


def test_a_load_on_the_job_stands_beside_what_is_slow_or_stuck_of_it() -> None:
    story = one_node()
    sees(story, "here", "cpu.neighbour", "miner")
    sees(story, "here", "cpu.pressure_on_node", "")
    verdict = TraceVerdict(
        kind="hang", ranks=(1,), nodes=("here",), confidence="low", rule="busy", sentence="it is stuck"
    )
    story.happens(Inquired(attempt=0, verdict=verdict, at_unix_s=1e9), 1.0)
    found = incident_of(story.all_end()).verdict
    assert any("cpu.neighbour: miner" in line for line in found.evidence)
    assert not any("on_node" in line for line in found.evidence)


@pytest.mark.parametrize("name", ["disk.error", "disk.timeout"])
def test_errors_of_the_node_s_own_disks_evict_it_as_ever(name: str) -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    (first,) = sees(story, "b", name, "nvme0n1")
    assert first.tolerated
    assert ending() in sees(story, "b", name, "nvme0n1", after_s=10)
    assert list(story.state.evicted) == ["b"]


# --- what workers print ---------------------------------------------------------------------------------------------


def ended_by(story: Story, trouble: str, line: str = "the line") -> list[Any]:
    finding = Finding(kind="accelerator", line=line, trouble=trouble)  # type: ignore[arg-type]
    story.exits(2, 1, finding, after_s=5)
    story.ends("a")
    return story.ends("b", evidence(2, 1, 5.0, finding=finding), told_to_end(3, 6.0))


def test_an_ecc_error_that_a_worker_prints_evicts_its_node() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    actions = ended_by(story, "ecc", "CUDA error: uncorrectable ECC error encountered")
    incident = incident_of(actions)
    assert (incident.action, incident.verdict.rule, incident.verdict.nodes) == ("evict", "worker.ecc", ("b",))
    assert "the line that decided: CUDA error: uncorrectable ECC error encountered" in incident.verdict.evidence
    assert story.world == ["a", "spare"]


def test_an_illegal_memory_access_evicts_nobody() -> None:
    """Two times out of three it is the program's."""
    story = several_nodes("a", "b")
    story.joins("spare")
    actions = ended_by(story, "illegal_memory_access")
    assert (spoken(actions)[0].rule, spoken(actions)[0].rung) == ("worker.illegal_memory_access", "diagnose")
    assert incident_of(actions).action == "relaunch"
    assert not story.state.evicted


# --- training -------------------------------------------------------------------------------------------------------


def test_a_loss_that_is_nan_ends_the_attempt() -> None:
    story = one_node()
    rule, end = sees(story, "here", "training.nan", "rank 1")
    assert (rule.rule, rule.rung) == ("training.nan", "diagnose")
    assert end == ending()
    incident = incident_of(story.all_end())
    verdict = incident.verdict
    assert (incident.action, verdict.kind, verdict.ranks, verdict.rule) == ("relaunch", "nan", (1,), "training.nan")


def test_nan_that_comes_again_and_again_ends_the_job() -> None:
    story = one_node(max_restarts=1)
    for attempt in range(2):
        if attempt:
            story.starts()
        sees(story, "here", "training.nan", "rank 1")
        actions = story.all_end()
    assert (actions[-2].action, actions[-1].outcome) == ("stop", "failed")


def test_a_jump_of_the_loss_is_reported_and_training_goes_on() -> None:
    story = one_node()
    _, incident = sees(story, "here", "training.jump", "rank 0")
    assert (incident.action, incident.verdict.rule) == ("report", "training.jump")
    assert story.state.phase == "running"


@pytest.mark.parametrize("name", ["training.nan", "training.jump"])
def test_with_a_version_on_probation_the_version_is_the_first_suspect(name: str) -> None:
    story = one_node()
    story.happens(CodeCaptured(version=version(1, 0)))
    story.happens(UpdateStaged(version=version(2, 1), now=True))
    story.all_end()
    story.starts()
    assert EndAttempt(attempt=1, signal=15, grace_s=3) in sees(story, "here", name, "rank 0")
    incident = incident_of(story.all_end())
    assert (incident.action, incident.verdict.rule) == ("rollback", name)
    assert story.state.code.running == 1


def test_a_loss_of_speed_has_all_ranks_looked_at() -> None:
    story = one_node()
    rule, inquire = sees(story, "here", "training.slow", "rank 0")
    assert rule.rung == "inquire"
    assert inquire == Inquire(attempt=0, after_s=0.0)


# --- what nodes share ------------------------------------------------------------------------------------------------


def test_a_mount_that_all_nodes_lose_twice_has_none_of_them_evicted() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    for kind in ("alert", "clear", "alert"):
        spoken_of = [
            rule for node in ("a", "b", "spare") for rule in spoken(sees(story, node, "mount.hung", "/nfs", kind=kind))
        ]
    assert not story.state.evicted
    assert "2 of 2 other nodes see the same" in spoken_of[0].held_back


def test_a_mount_that_one_node_loses_twice_has_it_evicted() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    sees(story, "b", "mount.hung", "/elsewhere")
    for kind in ("alert", "clear", "alert"):
        sees(story, "a", "mount.error", "/nfs", kind=kind, after_s=6.0)
    assert list(story.state.evicted) == ["a"]


def test_a_server_that_hangs_for_one_and_is_stale_for_the_others_has_none_evicted() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    for name in ("b", "spare"):
        sees(story, name, "mount.stale", "/nfs")
    for kind in ("alert", "clear", "alert"):
        sees(story, "a", "mount.hung", "/nfs", kind=kind, after_s=6.0)
    assert not story.state.evicted


@pytest.mark.parametrize(("apart_s", "is_evicted"), [(100.0, False), (6 * 3600.0, True)])
def test_what_another_node_saw_hours_ago_is_no_excuse(apart_s: float, is_evicted: bool) -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    for name in ("b", "spare"):
        for kind in ("alert", "clear"):
            sees(story, name, "mount.hung", "/nfs", kind=kind)
    sees(story, "a", "mount.hung", "/nfs", after_s=apart_s)
    for kind in ("clear", "alert"):
        sees(story, "a", "mount.hung", "/nfs", kind=kind, after_s=6.0)
    assert bool(story.state.evicted) == is_evicted


# --- memory ---------------------------------------------------------------------------------------------------------


def test_what_is_over_is_not_shown_any_more() -> None:
    story = one_node()
    sees(story, "here", "disk.full", "/data")
    assert list(story.state.health.active) == [("here", "disk.full", "/data")]
    sees(story, "here", "disk.full", "/data", kind="clear")
    assert not story.state.health.active


def test_what_sensors_said_that_are_gone_is_not_shown_for_ever() -> None:
    """Nobody would take it back, and whoever asks what may be why a node is slow would be told of it. Others' words stay."""
    story = several_nodes("a", "b")
    for node, name in (("a", "cpu.pressure"), ("a", "outlier.cpu_percent"), ("b", "cpu.pressure")):
        sees(story, node, name, "")
    sees(story, "a", "sensors.ended", "", kind="note")
    assert list(story.state.health.active) == [("a", "outlier.cpu_percent", ""), ("b", "cpu.pressure", "")]
    story.is_lost("b")
    story.joins("b", id="another agent")
    assert list(story.state.health.active) == [("a", "outlier.cpu_percent", "")], "its machine was booted anew"


def test_notes_and_absent_hardware_change_nothing() -> None:
    story = one_node()
    assert sees(story, "here", "gpu.absent", kind="note") == []
    assert story.happens(SensorsBegan(node="here", absent=("gpu.absent: there is no NVIDIA driver",))) == []


def blind(story: Story) -> dict[str, list[str]]:
    found = blindness.of_nodes(story.state.health)
    return {node: [sign.event.name for sign in signs] for node, signs in found.items()}


def test_sensors_that_stop_are_known_until_they_work_again() -> None:
    story = several_nodes("a", "b")
    sees(story, "a", "mount.hung", "/data")
    sees(story, "a", "mount.hung", "/home")
    sees(story, "b", "training.damaged", "events.1", kind="note")
    sees(story, "b", "gpu.absent", kind="note")
    assert blind(story) == {"a": ["mount.hung", "mount.hung"], "b": ["training.damaged"]}
    sees(story, "a", "mount.hung", "/data", kind="clear")
    sees(story, "b", "training.damaged", "events.1", kind="clear")
    assert blind(story) == {"a": ["mount.hung"]}


def test_the_end_of_the_sensors_process_is_all_there_is_to_say_of_them() -> None:
    story = one_node()
    sees(story, "here", "mount.hung", "/data")
    sees(story, "here", "sensors.ended", "", kind="note")
    assert blind(story) == {"here": ["sensors.ended"]}
    sees(story, "here", "sensors.ended", "", kind="clear")
    assert blind(story) == {}


def test_a_file_that_several_nodes_read_is_told_of_once_and_blames_none_of_them() -> None:
    story = several_nodes("a", "b", "c")
    told = [action for node in "abc" for action in sees(story, node, "training.jump", "events.out.tfevents.1")]
    assert len(spoken(told)) == 1
    (incident,) = [action for action in told if isinstance(action, RecordIncident)]
    assert incident.verdict.nodes == ()
    said = [action for node in "abc" for action in sees(story, node, "training.damaged", "events.1", kind="note")]
    assert [each.text for each in said] == ["metrics from events.1: a sentence"]


def test_a_successor_knows_what_was_known() -> None:
    story = several_nodes("a", "b", "c", fewest=2)
    sees(story, "a", "mount.hung", "/data")
    sees(story, "b", "network.link_down", "eth0")
    sees(story, "c", GPU_LOST)
    again = replay(story.policy, story.told)
    assert again == story.state
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(story.state), type=JobState) == story.state


def test_an_alert_of_a_fleet_is_told_for_a_few_nodes_only() -> None:
    names = [f"n{index}" for index in range(60)]
    story = several_nodes(*names, max_evict_share=0.0)
    told = [action for name in names for action in sees(story, name, GPU_LOST, after_s=0.01)]
    assert sum(isinstance(action, RecordIncident) for action in told) < 25
    assert sum(isinstance(action, RuleSpoke) for action in told) == 60


def test_what_happens_between_attempts_evicts_too() -> None:
    story = several_nodes("a", "b", "c", fewest=2)
    story.exits(0, 1, BUG)
    story.ends("a", evidence(0, 1, 0.0, finding=BUG), told_to_end(1, 1.0))
    story.ends("b")
    actions = sees(story, "c", GPU_LOST)
    assert spoken(actions)[0].rung == "evict"
    story.ends("c")
    story.opens()
    assert story.world == ["a", "b"]
