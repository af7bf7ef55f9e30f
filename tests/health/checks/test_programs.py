"""Check programs as they are: one order on stdin, one line on stdout, nothing of them left. Real processes, small sizes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from robust_run.errors import UserError
from robust_run.health.checks import history
from robust_run.health.checks.judge import judge
from robust_run.health.checks.types import Began, CheckProgramOrder, Ended, Finished, NodeOrder, Result, Said
from robust_run.health.diagnostics import devices, node, program
from robust_run.health.diagnostics.children import child_environment, result_of
from robust_run.health.diagnostics.faults import faults_for

pytestmark = pytest.mark.timeout(600)  # each program imports torch

STUCK_S = 240.0
SMALL = 8 << 20


def order(check: str, node_name: str = "a", **more: Any) -> CheckProgramOrder:
    return CheckProgramOrder(
        **{"check": check, "node": node_name, "seconds": 0.0, "passes": 2, "size_bytes": SMALL, **more}
    )


def run_node(env: dict[str, str], *steps: tuple[CheckProgramOrder, ...]) -> list[Said]:
    """Run a node's runner to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "robust_run.health.diagnostics.node"],
        input=msgspec.json.encode(NodeOrder(steps=steps)),
        stdout=subprocess.PIPE,
        env=env,
        timeout=STUCK_S,
        check=True,
    )
    return [msgspec.json.decode(line, type=Said) for line in done.stdout.splitlines()]


def results_of(said: list[Said]) -> list[Result]:
    return [each.result for each in said if isinstance(each, Ended)]


BURN = "import time; until = time.monotonic() + 300\nwhile time.monotonic() < until: pass"


def test_a_check_beside_work_of_others_says_so_and_its_slowness_accuses_nobody(ground: Any) -> None:
    """The node is healthy: it is as fast as ever once nothing else runs there."""
    beside = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in os.sched_getaffinity(0)]
    try:
        (found,) = results_of(run_node(ground.env(), (order("memory", seconds=0.5),)))
    finally:
        for each in beside:
            each.kill()
            each.wait()
    assert found.outcome == "done" and found.cpus == len(beside)
    assert found.others_cpus > 0.5 and found.others_by_figure["bytes_per_s"] > 0.5
    usual = history.History(series={history.key(found, "bytes_per_s"): (1e15,) * 6})
    judged = judge([found], history=usual)
    assert not judged.suspects and "worked for others meanwhile" in judged.unchecked[0]


def test_where_faults_are_injected_it_is_not_looked_at(ground: Any) -> None:
    """Tests inject them, beside other tests, and expect them to be found."""
    (found,) = results_of(
        run_node(ground.env({"check": "disk", "crash": 11}), (order("disk", folder=str(ground.folder)),))
    )
    assert (found.outcome, found.cpus, found.others_cpus) == ("crashed", 0, 0.0)


# --- what each measures ---------------------------------------------------------------------------------------------


def test_every_check_of_a_node_alone_measures_something(ground: Any) -> None:
    checks = ("compute", "model", "memory", "disk")
    said = run_node(ground.env(), tuple(order(name, folder=str(ground.folder)) for name in checks))
    assert isinstance(said[0], Began) and said[-1] == Finished()
    found = {each.check: each for each in results_of(said)}
    assert set(found) == set(checks)
    for name, each in found.items():
        assert (each.outcome, each.wrong, each.passes, each.injected) == ("done", (), 2, False), each
        assert all(each.figures[figure] > 0 for figure in history.JUDGED.get(name, ()))  # type: ignore[call-overload]
    assert list(found["model"].digests.values()) == [2] and list(found["compute"].digests.values()) == [2]
    assert list(found["model"].stages) == ["hidden", "loss", "gradients", "weights"]
    assert list(ground.folder.iterdir()) == []


def test_bits_that_flip_are_found_and_the_device_is_named(ground: Any) -> None:
    faults = {"flip": 0.5, "seed": 3}
    said = run_node(
        ground.env(faults), (order("compute", passes=12), order("model", passes=12), order("memory", passes=12))
    )
    found = {each.check: each for each in results_of(said)}
    assert all(each.injected for each in found.values())
    assert any("a matrix product differs in 1 elements" in sentence for sentence in found["compute"].wrong)
    assert any("core" in sentence for sentence in found["compute"].wrong)
    assert any("words were not copied" in sentence for sentence in found["memory"].wrong)
    assert len(found["model"].digests) > 1
    rules = {each.rule for each in judge(list(found.values())).suspects}
    assert rules == {"wrong_result", "unstable_output"}


def test_a_node_that_became_slow_is_found_by_its_history(ground: Any) -> None:
    (usual,) = results_of(run_node(ground.env(), (order("memory", passes=3),)))
    (slow,) = results_of(run_node(ground.env({"slow": 1.0}), (order("memory", passes=3),)))
    past = history.History(series={history.key(usual, "bytes_per_s"): (usual.figures["bytes_per_s"],) * 5})
    assert [each.rule for each in judge([slow], history=past).suspects] == ["slow_against_history"]
    assert judge([usual], history=past).suspects == ()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB, full but for half a MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    try:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True, check=False
        )
    except OSError:
        pytest.skip("there is no mount(8)")
    if made.returncode:
        pytest.skip("mounting a tmpfs takes root")
    try:
        (folder / "filler").write_bytes(bytes((4 << 20) - (1 << 19)))
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_a_finding(ground: Any, small_disk: Path) -> None:
    (found,) = results_of(run_node(ground.env(), (order("disk", folder=str(small_disk)),)))
    assert found.outcome == "done" and found.wrong == (f"{small_disk}: only 0.5 MiB are free",)
    assert [each.rule for each in judge([found]).suspects] == ["unusable_disk"]


def test_a_folder_that_is_not_there_is_no_finding(ground: Any) -> None:
    (found,) = results_of(run_node(ground.env(), (order("disk", folder="/nowhere/at/all"),)))
    assert (found.outcome, found.problem) == ("failed", "/nowhere/at/all: No such file or directory")


def test_a_device_that_is_not_there_is_said(ground: Any) -> None:
    (found,) = results_of(run_node(ground.env(), (order("compute", device="cuda:255"),)))
    assert found.outcome == "failed" and "cuda:255" in found.problem


def test_algorithms_are_the_same_every_time_and_nobody_imports_a_compiler_for_that(monkeypatch: Any) -> None:
    before = torch.get_deterministic_debug_mode()
    monkeypatch.setitem(sys.modules, "torch._inductor.config", None)  # importing it fails
    try:
        devices.settle(torch)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.set_deterministic_debug_mode(before)


# --- their end ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [{"hang": True}, {"stop": True}])
def test_a_check_that_hangs_is_killed_at_its_limit(ground: Any, fault: dict[str, Any]) -> None:
    said = run_node(ground.env({"check": "memory", **fault}), (order("memory", limit_s=2.0),), (order("disk"),))
    assert [(each.check, each.outcome) for each in results_of(said)] == [("memory", "hung"), ("disk", "done")]
    assert results_of(said)[0].problem == "killed at its limit of 2 s"


def test_a_check_that_dies_and_leaves_a_process_behind(ground: Any) -> None:
    said = run_node(ground.env({"escape": True, "crash": signal.SIGSEGV}), (order("disk"),))
    (found,) = results_of(said)
    assert found.outcome == "crashed" and "SIGSEGV" in found.problem
    assert said[-1] == Finished(left=())
    assert ground.left() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_runner_that_is_ended_takes_its_checks_with_it(ground: Any, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "robust_run.health.diagnostics.node"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ground.env({"hang": True}),
    ) as runner:
        assert runner.stdin is not None and runner.stdout is not None
        runner.stdin.write(msgspec.json.encode(NodeOrder(steps=((order("disk", limit_s=100.0),),))))
        runner.stdin.close()
        assert isinstance(msgspec.json.decode(runner.stdout.readline(), type=Said), Began)
        os.kill(runner.pid, number)
        assert runner.wait(STUCK_S) == (143 if number == signal.SIGTERM else -number)
    ground.assert_nothing_left()


# --- orders and answers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "malformed"),
        ("[]", "malformed"),
        ('{"check": "disk", "node": "a", "sise_bytes": 1}', "sise_bytes"),
        ('{"check": "memory", "node": "a"}', "this program is 'disk'"),
        ('{"check": "disk", "node": "a", "passes": 0}', "passes"),
        ('{"check": "disk", "node": "a", "limit_s": 1e9}', "limit_s"),
        ('{"check": "disk", "node": "a", "meeting": {"rank": 1, "nodes": ["a"]}}', "rank 1 is beyond its 1 ranks"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        program.read_order(text.encode(), "disk")


def test_a_node_refuses_an_order_of_too_many_steps() -> None:
    text = json.dumps({"steps": [[{"check": "disk", "node": "a"}]] * 300})
    with pytest.raises(UserError, match="malformed"):
        node.read(text.encode())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_program_that_somebody_ended_has_not_crashed(number: int) -> None:
    found = result_of(order("memory"), -number, b"", b"")
    assert found.outcome == "failed" and found.problem.startswith("somebody ended it: was killed by SIG")
    assert result_of(order("memory"), -signal.SIGSEGV, b"", b"").outcome == "crashed"


@pytest.mark.parametrize("answer", [b"", b"{", b'{"check":"disk"}', b"\xff", b"[" * 100_000])
def test_whatever_a_program_answers_there_is_a_result(answer: bytes) -> None:
    found = result_of(order("disk"), 1, answer, b"Traceback\nboom \x1b[31m\n\n")
    assert found.outcome == "crashed" and found.problem.endswith("boom [31m")


def test_an_answer_is_about_what_was_asked() -> None:
    other = msgspec.json.encode(Result(check="disk", node="b", outcome="done", round=9))
    assert result_of(order("memory", round=2), 0, other, b"").node == "a"
    assert result_of(order("memory", round=2), 0, other, b"").check == "memory"


def test_a_program_sees_nothing_of_the_job_it_is_started_beside() -> None:
    env = {"RANK": "3", "MASTER_ADDR": "x", "TORCHELASTIC_RUN_ID": "y", "OMP_NUM_THREADS": "1", "NCCL_IB_HCA": "mlx5"}
    assert child_environment(env, "/home/a") == {"NCCL_IB_HCA": "mlx5", "PYTHONSAFEPATH": "1"}
    assert child_environment({"PYTHONPATH": "lib::/opt/x"}, "/home/a")["PYTHONPATH"] == "/home/a/lib:/opt/x"


def test_faults_are_those_of_this_node_and_check() -> None:
    env = {"ROBUST_CHECK_FAULTS": '[{"node": "b", "flip": 1.0}, {"check": "disk", "hang": true}]'}
    assert not faults_for(order("memory", "a"), env).any
    assert faults_for(order("memory", "b"), env).any and faults_for(order("disk", "a"), env).any
    assert not faults_for(order("disk", "a"), {}).any


@pytest.mark.parametrize("text", ["{", '[{"flip": 2}]', '[{"unknown": 1}]'])
def test_malformed_faults_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="ROBUST_CHECK_FAULTS"):
        faults_for(order("disk"), {"ROBUST_CHECK_FAULTS": text})
