"""A warm process that was let go, or died: what the one in its place imports."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from robust_run.clock import SystemClock
from robust_run.launcher.agent.code_versions.node_code import NodeCode
from robust_run.launcher.agent.node import Node
from robust_run.launcher.agent.warm.messages import Preloaded, packet_socketpair, send
from robust_run.launcher.agent.warm.warm_handoff import WarmHandoff
from robust_run.launcher.agent.workers.environment import RankPlace
from robust_run.launcher.agent.workers.starter import WARM_REPLACEMENTS, Starter, StartPlan
from robust_run.launcher.agent.workers.workers import ChildSetup
from robust_run.launcher.model.code_events import CodeUse
from robust_run.launcher.model.job import JobSpec, ManyNodes, OutputStreams
from robust_run.launcher.records.run_directory import RunDirectory

TORCH, LATE = ("torch", "torch.distributed"), ("torch._dynamo",)
SPEC = JobSpec(
    argv=("true",),
    script="train.py",
    is_python=True,
    nproc=1,
    run_id="r",
    rdzv_id="r",
    log_dir=None,
    max_restarts=9,
    preload=TORCH,
    streams=OutputStreams(redirects=(), tee=(), shown=()),
)


class PlayedStarter:
    """Notes what the warm process is told to import, and starts nobody."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []
        self.is_behind = False
        self.env: Mapping[str, str] = {}

    def start(self, attempt: int, plans: list[StartPlan]) -> tuple[list[Any], list[Any]]:
        self.env = plans[0].env
        return [], []

    def preload(self, modules: tuple[str, ...]) -> bool:
        self.told.append(modules)
        return True

    def is_outdated(self) -> bool:
        return False

    def drop_warm(self) -> None:
        pass


def node_of(folder: Path, spec: JobSpec = SPEC) -> tuple[Node, PlayedStarter]:
    made = RunDirectory(str(folder / "run"), str(folder / "run"))
    router = SimpleNamespace(open_rank=lambda *_: SimpleNamespace(close=lambda: None), say=lambda _: None)
    node = Node(spec, {}, SystemClock(), made, router, lambda *_: None, lambda _: None, ())  # type: ignore[arg-type]
    played = node.starter = PlayedStarter()  # type: ignore[assignment]
    return node, played  # type: ignore[return-value]


def runs(node: Node, attempt: int, imported: tuple[str, ...]) -> bool:
    """Play an attempt up to its first step. Return whether its worker is asked what it imported."""
    node.start_workers(RankPlace(attempt=attempt, address="127.0.0.1", port=1, world_size=1))
    path = Path(node.run_directory.modules_file(attempt, 0))
    is_asked = path.exists()
    if is_asked:
        path.write_text("\n".join((*imported, ".")))
    node.learning.learn(publishes=node.tells_standbys)
    return is_asked


def test_after_an_update_of_variables_what_workers_import_is_learned_anew(tmp_path: Path) -> None:
    node, starter = node_of(tmp_path)
    assert runs(node, 0, ("torch", *LATE))
    assert not runs(node, 1, ()), "it is known"
    node.forget_warm()
    assert runs(node, 2, ("torch", *LATE))
    assert starter.told == [LATE, LATE]
    node.forget_warm()
    assert runs(node, 3, ("torch",))
    assert starter.told[2:] == [()], "what it imported before the update is not what it imports now"


def test_a_node_that_stands_by_learns_what_the_node_of_rank_0_imports(tmp_path: Path) -> None:
    many = msgspec.structs.replace(SPEC, many=ManyNodes(host="127.0.0.1", port=1), preload_auto=True)
    (node, _), (standby, told) = (node_of(tmp_path, spec=many) for _ in range(2))
    standby.learning.learn_from_others()
    assert told.told == [], "nothing is known"
    assert runs(node, 0, ("torch", "numpy", "their_own", *LATE))
    standby.learning.learn_from_others()
    standby.learning.learn_from_others()
    assert told.told == [("numpy", *LATE)], "once, and nothing that is not known to be harmless"
    assert not runs(standby, 1, ()), "it is known"


def test_after_an_update_a_node_that_stands_by_learns_from_its_own_workers_alone(tmp_path: Path) -> None:
    many = msgspec.structs.replace(SPEC, many=ManyNodes(host="127.0.0.1", port=1), preload_auto=True)
    (node, _), (standby, told) = (node_of(tmp_path, spec=many) for _ in range(2))
    assert runs(node, 0, ("torch", *LATE))
    standby.forget_warm()
    standby.learning.learn_from_others()
    assert told.told == []
    assert runs(standby, 1, ("torch",))


@pytest.mark.parametrize(
    ("exit_code", "in_python"), [(-11, True), (-7, True), (-6, False), (-9, False), (1, False), (0, False)]
)
def test_after_a_fault_of_memory_no_attempt_has_the_recorder_in_c(
    tmp_path: Path, exit_code: int, in_python: bool
) -> None:
    node, starter = node_of(tmp_path)
    runs(node, 0, ("torch",))
    assert "ROBUST_TRACE_NATIVE" not in starter.env
    for ended in (exit_code, 0):
        node.saw_end(ended)
    runs(node, 1, ())
    assert starter.env.get("ROBUST_TRACE_NATIVE") == ("0" if in_python else None)


class PlayedProcesses:
    """Warm processes that have lived or died as the test says."""

    def __init__(self, given: WarmHandoff | None = None) -> None:
        self.launched: list[tuple[str, ...]] = []
        self.starter = Starter(SPEC, {}, ChildSetup(()), self._start, lambda _: None, given)
        self.starter.off = ""
        self.plan = StartPlan(0, 0, SPEC.argv, {}, {}, frozenset(), None)

    def _start(self, argv: tuple[str, ...], env: Mapping[str, str], keep: tuple[int, ...]) -> int:
        self.launched.append(tuple(env["ROBUST_WARM"].split(" ")[-1].split(",")))
        return 1000

    def dies(self) -> None:
        host = self.starter._host
        assert host is not None
        host._hang_up()
        host.state, host.has_died = "refused", True
        self.starter.restock(self.plan)


@pytest.mark.parametrize("lived", [False, True])
def test_one_that_dies_is_replaced_by_one_that_imports_what_it_had_lived_with(lived: bool) -> None:
    played = PlayedProcesses()
    played.starter.launch_warm(played.plan)
    host = played.starter._host
    assert host is not None
    host.proven = (*TORCH, *LATE) if lived else ()
    played.dies()
    assert played.launched == [TORCH, (*TORCH, *LATE) if lived else TORCH]
    played.starter.close()


def test_only_those_that_died_are_counted() -> None:
    played = PlayedProcesses()
    for _ in range(2 * WARM_REPLACEMENTS + 2):
        played.starter.launch_warm(played.plan)
        played.starter.drop_warm()
    assert len(played.launched) == 2 * WARM_REPLACEMENTS + 2
    played.starter.launch_warm(played.plan)
    before = len(played.launched)
    for _ in range(WARM_REPLACEMENTS + 2):
        played.dies()
    assert len(played.launched) == before + WARM_REPLACEMENTS
    played.starter.close()


def test_one_that_was_given_is_taken_once() -> None:
    """Let go, it is gone: a later attempt must not wait for it for the rest of the job."""
    ours, theirs = socket.socketpair()
    given = WarmHandoff(1, TORCH, os.getpid(), ours, 1, ours)
    starter = PlayedProcesses(given).starter
    starter._promote = lambda plans, choices: {each.slot: None for each in plans}  # type: ignore[method-assign,misc,assignment]
    plan = StartPlan(0, 0, SPEC.argv, {}, {}, frozenset(), None)
    _, first = starter.start(0, [plan])
    assert first[0].rung != "spawn"
    starter.drop_warm()
    starter._spawn = lambda plan: None  # type: ignore[method-assign,misc,assignment,return-value]
    _, second = starter.start(1, [plan])
    assert (second[0].rung, second[0].reason) == ("spawn", "the warm process had not been started yet")
    theirs.close()


def test_one_that_imports_more_is_there_and_no_other_is_started_beside_it() -> None:
    """On a busy machine imports go on when it is asked whether there is one: a second took its socket, and the agent hung."""
    ours, theirs = packet_socketpair()
    played = PlayedProcesses(WarmHandoff(1, TORCH, os.getpid(), ours, 1, ours))
    played.starter.launch_warm(played.plan)
    host = played.starter._host
    assert host is not None
    host.preload(("numpy",))
    assert host.state == "importing"
    played.starter.launch_warm(played.plan)
    assert played.launched == []
    host._read_control()  # it has not answered yet: nothing is waited for
    assert host.state == "importing"
    send(theirs, Preloaded(modules=(*TORCH, "numpy"), took_s=1.0))
    host._read_control()
    assert host.state == "ready"
    host._read_control()
    theirs.close()
    played.starter.close()


def test_a_node_that_stands_by_takes_the_one_that_was_given_and_starts_no_other() -> None:
    ours, theirs = socket.socketpair()
    played = PlayedProcesses(WarmHandoff(1, TORCH, os.getpid(), ours, 1, ours))
    watched: list[socket.socket] = []
    played.starter.attach(lambda sock, _: watched.append(sock))
    played.starter.launch_warm(played.plan)
    assert (played.launched, watched) == ([], [ours])
    played.starter.close()
    theirs.close()


@pytest.mark.parametrize(
    ("before", "after", "is_frozen"),
    [
        ({}, {"NCCL_DEBUG": "INFO", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, False),
        ({"NCCL_DEBUG": "INFO"}, {}, False),
        ({}, {"FLAVOUR": "sweet"}, True),
        ({"FLAVOUR": "sweet"}, {"NCCL_DEBUG": "INFO"}, True),
        ({"FLAVOUR": "sweet"}, {"FLAVOUR": "sweet"}, False),
    ],
)
def test_variables_that_no_import_reads_leave_the_warm_process_as_it_is(
    tmp_path: Path, before: dict[str, str], after: dict[str, str], is_frozen: bool
) -> None:
    code = NodeCode(SPEC, {"USER": "me"}, RunDirectory(str(tmp_path), str(tmp_path)), lambda _: None)
    code.place = SimpleNamespace(ground=lambda _: SimpleNamespace(copy=""))  # type: ignore[assignment]
    code.prepare(CodeUse(number=1, tree="a" * 64, env=before))
    assert code.prepare(CodeUse(number=2, tree="b" * 64, env=after)) is is_frozen
