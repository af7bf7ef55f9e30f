"""Whether NCCL is traced is decided from names of files; what is missing is said in one line, and never ends a job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from worlds import Machine as Tree

from robust_run.errors import PlatformError
from robust_run.launcher.agent.nccl.arming import BUILD_AFTER_S, ArmingDecision, NcclArming, decide
from robust_run.launcher.agent.nccl.facts import Machine, NcclFacts, look, nccl_version, own_plugin, this_machine
from robust_run.launcher.agent.workers.devices import has_nvidia
from robust_run.launcher.agent.workers.environment import RankPlace, worker_environment
from robust_run.launcher.model.job import JobSpec, OutputStreams
from robust_run.tracer.plugin import build, layout, reader
from robust_run.tracer.plugin.build import Plugin

PYTHON = "/opt/venv/bin/python"
ROOMY = 1 << 40
ALL_WELL = NcclFacts(devices=True, version=(2, 27, 5), free_bytes=ROOMY, plugin="/p.so")


def facts(**changes: Any) -> NcclFacts:
    values = {
        name: getattr(ALL_WELL, name) for name in ("devices", "version", "own", "free_bytes", "plugin", "trouble")
    }
    return NcclFacts(**{**values, **changes})


def spec(option: str = "auto", nproc: int = 2) -> JobSpec:
    return JobSpec(
        argv=(PYTHON, "-u", "train.py"),
        script="train.py",
        is_python=True,
        nproc=nproc,
        run_id="r",
        rdzv_id="r",
        log_dir=None,
        streams=OutputStreams(redirects=(), tee=(), shown=()),
        trace_nccl=option,
    )


# ---- the decision


@pytest.mark.parametrize("option", ["auto", "on"])
@pytest.mark.parametrize("version", [(2, 26, 2), (2, 31), (3, 0), None])
def test_it_is_traced_where_everything_is_there(option: str, version: tuple[int, ...] | None) -> None:
    found = decide(option, {}, 100, facts(version=version))
    assert (found.plugin, found.build, found.weight) == ("/p.so", False, "noted")
    of = ".".join(map(str, version)) if version else "unknown version"
    assert found.sentence.endswith(f"{of}) is traced")


#: What speaks against it: environment, facts, the word that is said.
OBSTACLES: dict[str, tuple[Mapping[str, str], NcclFacts, str]] = {
    "all tracing off": ({"ROBUST_TRACE": "0"}, ALL_WELL, "ROBUST_TRACE=0"),
    "a plugin of the user's": ({}, facts(own="NCCL_PROFILER_PLUGIN=mine"), "NCCL_PROFILER_PLUGIN=mine"),
    "an old NCCL": ({}, facts(version=(2, 25, 1)), "NCCL 2.25.1 is here, and 2.26 is the first"),
    "no room": ({}, facts(free_bytes=99), "/dev/shm has 0 MiB free"),
}


@pytest.mark.parametrize("name", OBSTACLES)
@pytest.mark.parametrize(("option", "weight"), [("auto", "noted"), ("on", "said")])
def test_what_speaks_against_it_is_named(name: str, option: str, weight: str) -> None:
    env, what, words = OBSTACLES[name]
    found = decide(option, env, 100, what)
    assert (found.plugin, found.build, found.weight) == ("", False, weight)
    assert found.sentence.startswith("NCCL is not traced: ")
    assert words in found.sentence
    assert "\n" not in found.sentence


def test_off_is_off_and_nobody_is_told_what_they_know() -> None:
    assert decide("off", {}, 100, ALL_WELL) == ArmingDecision(
        sentence="NCCL is not traced: --trace-nccl off", weight="silent"
    )


def test_without_devices_it_must_be_asked_for() -> None:
    assert decide("auto", {}, 100, facts(devices=False)).weight == "silent"
    asked = decide("on", {}, 100, facts(devices=False))
    assert (asked.plugin, asked.sentence[-44:]) == ("/p.so", "though no NVIDIA device is visible on this node"[-44:])


@pytest.mark.parametrize("option", ["auto", "on"])
def test_a_plugin_that_must_be_compiled_is_compiled(option: str) -> None:
    found = decide(option, {}, 100, facts(plugin=""))
    assert (found.plugin, found.build) == ("", True)
    assert "must be compiled" in found.sentence
    assert "no C compiler" in decide(option, {}, 100, facts(plugin="", trouble="no C compiler here")).sentence


def test_unasked_it_leaves_the_memory_to_nccl() -> None:
    """NCCL has its own buffers in /dev/shm, and a job that finds no room for them dies."""
    assert decide("auto", {}, 100, facts(free_bytes=1000)).plugin
    assert not decide("auto", {}, 100, facts(free_bytes=999)).plugin
    assert decide("on", {}, 100, facts(free_bytes=100)).plugin
    assert not decide("on", {}, 100, facts(free_bytes=99)).plugin


def test_it_writes_nowhere_but_into_memory() -> None:
    """Threads of NCCL must not wait for a disk."""
    for option in ("auto", "on"):
        assert not decide(option, {}, 100, facts(free_bytes=None)).plugin


# ---- the facts


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "machine")


def machine(tree: Tree, **changes: Any) -> Machine:
    values: dict[str, Any] = {
        "files": tree.world().files,
        "executable": PYTHON,
        "library_folders": ("/job", "/opt/venv/lib/python3.11/site-packages"),
        "free_bytes": lambda folder: ROOMY,
        "at_hand": lambda: "/p.so",
        "ensure": lambda: Plugin("/built.so", ""),
    }
    return Machine(**{**values, **changes})


def with_driver(tree: Tree) -> Tree:
    tree.write("/dev/nvidiactl")
    return tree


def test_a_machine_without_the_driver_has_no_devices(tree: Tree) -> None:
    assert not has_nvidia(tree.world().files, {})
    tree.write("/dev/kfd")  # AMD's: their library is another
    assert not has_nvidia(tree.world().files, {})
    assert has_nvidia(with_driver(tree).world().files, {})


@pytest.mark.parametrize(
    ("visible", "expected"), [("0", True), ("3,1", True), ("GPU-ab", True), ("", False), ("-1", False), ("-1,0", False)]
)
def test_devices_that_are_hidden_do_not_count(tree: Tree, visible: str, expected: bool) -> None:
    assert has_nvidia(with_driver(tree).world().files, {"CUDA_VISIBLE_DEVICES": visible}) == expected


def test_the_version_is_that_of_the_wheel_beside_the_workers_python(tree: Tree) -> None:
    site = "/opt/venv/lib/python3.11/site-packages"
    tree.write(f"{site}/nvidia_nccl_cu13-2.29.7.dist-info/METADATA")
    tree.write(f"{site}/nvidia_nccl_cu13_extras-9.9.dist-info/")
    tree.write("/lib64/libnccl.so.2.21.5")
    assert nccl_version(machine(tree), {"LD_LIBRARY_PATH": "/lib64"}) == (2, 29, 7)


def test_another_python_for_the_workers_has_an_nccl_of_its_own(tree: Tree) -> None:
    tree.write("/opt/venv/lib/python3.11/site-packages/nvidia_nccl_cu13-2.29.7.dist-info/")
    tree.write("/conda/lib/python3.12/site-packages/nvidia_nccl_cu12-2.21.5.dist-info/")
    assert nccl_version(machine(tree), {"PYTHON_EXEC": "/conda/bin/python"}) == (2, 21, 5)
    assert nccl_version(machine(tree), {"PYTHON_EXEC": "python3"}) is None


@pytest.mark.parametrize("folder", ["/elsewhere", "/opt/venv/lib", "/usr/lib/x86_64-linux-gnu"])
def test_without_a_wheel_the_library_s_name_tells(tree: Tree, folder: str) -> None:
    for name in ("libnccl.so", "libnccl.so.2", "libnccl.so.2.27.3", "libnccl_static.a", "libnccl.so.2.27.3.orig"):
        tree.write(f"{folder}/{name}")
    assert nccl_version(machine(tree), {"LD_LIBRARY_PATH": "relative:/elsewhere::"}) == (2, 27, 3)


def test_a_version_that_no_name_tells_is_unknown(tree: Tree) -> None:
    assert nccl_version(machine(tree), {}) is None


def test_a_plugin_of_the_user_s_own_is_found_wherever_nccl_would(tree: Tree) -> None:
    files = tree.world().files
    env = {"HOME": "/home/ann", "LD_LIBRARY_PATH": "/elsewhere"}
    assert own_plugin(files, env) == ""
    tree.write("/elsewhere/libnccl-profiler.so")
    assert own_plugin(files, env) == "/elsewhere/libnccl-profiler.so"
    tree.write("/etc/nccl.conf", "# NCCL_PROFILER_PLUGIN\nNCCL_DEBUG=WARN\nNCCL_PROFILER_PLUGIN = site\n")
    assert own_plugin(files, env) == "NCCL_PROFILER_PLUGIN in /etc/nccl.conf"
    tree.write("/home/ann/.nccl.conf", "NCCL_PROFILER_PLUGIN=inspector\n")
    assert own_plugin(files, env) == "NCCL_PROFILER_PLUGIN in /home/ann/.nccl.conf"
    assert own_plugin(files, {**env, "NCCL_PROFILER_PLUGIN": "none"}) == "NCCL_PROFILER_PLUGIN=none"


def test_a_configuration_that_is_a_pipe_is_not_waited_for(tree: Tree) -> None:
    os.mkfifo(f"{tree.root}/tmp/conf")
    assert own_plugin(tree.world().files, {"NCCL_CONF_FILE": "/tmp/conf"}) == ""


def test_where_it_is_off_or_no_device_is_nothing_is_looked_for(tree: Tree) -> None:
    def fail(*_: object) -> Any:
        raise AssertionError("asked although it decides nothing")

    strict = machine(tree, at_hand=fail, ensure=fail, free_bytes=fail)
    assert look("auto", {}, "/shm", strict) == NcclFacts(devices=False)
    with_driver(tree)
    assert look("off", {}, "/shm", strict) == NcclFacts(devices=True)
    assert look("auto", {"ROBUST_TRACE": "0"}, "/shm", strict) == NcclFacts(devices=True)


def test_this_machine_answers() -> None:
    here = this_machine()
    found = look("on", dict(os.environ), "/", here)
    assert found.free_bytes is not None
    assert here.free_bytes("/no such folder") is None


# ---- what is done


STARTED: list[Node] = []


@pytest.fixture(autouse=True)
def nothing_is_held() -> Iterator[None]:
    yield
    while STARTED:
        STARTED.pop().arming.close()


class Node:
    """What an arming is given of its node."""

    def __init__(self, tree: Tree, option: str, env: Mapping[str, str] | None = None, **changes: Any) -> None:
        self.said: list[str] = []
        self.started: list[tuple[str, ...]] = []
        self.error: PlatformError | None = None
        self.arming = NcclArming(
            spec(option), env or {}, "/shm", self.said.append, self.start_helper, machine(tree, **changes)
        )
        STARTED.append(self)

    def start_helper(self, argv: tuple[str, ...], env: Mapping[str, str], keep: tuple[int, ...]) -> int:
        if self.error is not None:
            raise self.error
        self.started.append(argv)
        return 1


def test_a_rank_gets_a_file_and_two_variables(tree: Tree, tmp_path: Path) -> None:
    node = Node(with_driver(tree), "auto")
    tree.write("/opt/venv/lib/python3.11/site-packages/nvidia_nccl_cu12-2.27.5.dist-info/")
    assert node.arming.begin() == "NCCL (version 2.27.5) is traced"
    steps_file = str(tmp_path / "attempt_0-0.steps")
    assert node.arming.ras_address == ""
    got = node.arming.variables(steps_file)
    assert got == {
        "NCCL_PROFILER_PLUGIN": "/p.so",
        "ROBUST_NCCL_TRACE": f"{steps_file}.nccl",
        "NCCL_RAS_ADDR": node.arming.ras_address,
    }
    assert got["NCCL_RAS_ADDR"].startswith("127.0.0.1:")
    second = node.arming.variables(str(tmp_path / "attempt_0-1.steps"))
    assert second["NCCL_RAS_ADDR"] == got["NCCL_RAS_ADDR"], "all ranks of a job answer at one place"
    trace = reader.read(f"{steps_file}.nccl")
    assert trace is not None
    assert trace.glance.pid == 0
    assert node.arming.begin() == "", "what was said is not said again"
    assert node.said == []


def test_off_nothing_is_made(tree: Tree, tmp_path: Path) -> None:
    node = Node(with_driver(tree), "off")
    assert node.arming.begin() == ""
    assert node.arming.variables(str(tmp_path / "steps")) == {}
    assert list(tmp_path.glob("*.nccl")) == []


def test_asked_for_it_is_compiled_before_the_workers_start(tree: Tree, tmp_path: Path) -> None:
    node = Node(tree, "on", at_hand=lambda: "")
    assert "is traced" in node.arming.begin()
    assert node.arming.variables(str(tmp_path / "steps"))["NCCL_PROFILER_PLUGIN"] == "/built.so"


def test_what_is_missing_is_said_once_and_it_is_tried_once(tree: Tree, tmp_path: Path) -> None:
    tries: list[int] = []

    def ensure() -> Plugin:
        tries.append(1)
        return Plugin("", "no C compiler is on the PATH")

    node = Node(tree, "on", at_hand=lambda: "", ensure=ensure)
    assert node.arming.begin() == "NCCL is not traced: no C compiler is on the PATH"
    assert node.arming.variables(str(tmp_path / "steps")) == {}
    assert node.arming.begin() == ""
    node.arming.build_beside(PYTHON, 1e9)
    assert node.said == ["NCCL is not traced: no C compiler is on the PATH; the job runs without"]
    assert (len(tries), node.started) == (1, [])


def test_unasked_it_is_compiled_beside_the_workers_and_the_next_attempt_has_it(tree: Tree, tmp_path: Path) -> None:
    built = [""]
    node = Node(with_driver(tree), "auto", at_hand=lambda: built[0])
    assert "must be compiled first" in node.arming.begin()
    assert node.arming.variables(str(tmp_path / "steps")) == {}
    node.arming.build_beside(PYTHON, BUILD_AFTER_S / 2)
    assert node.started == []
    for _ in range(2):
        node.arming.build_beside(PYTHON, BUILD_AFTER_S)
    assert [argv[0] for argv in node.started] == [PYTHON]
    assert "not ready or could not be" in node.arming.begin()
    built[0] = "/p.so"
    assert "is traced" in node.arming.begin()
    assert node.arming.variables(str(tmp_path / "steps"))["NCCL_PROFILER_PLUGIN"] == "/p.so"
    assert node.said == []


def test_a_process_that_cannot_be_started_for_it_is_no_matter(tree: Tree) -> None:
    node = Node(with_driver(tree), "auto", at_hand=lambda: "")
    node.error = PlatformError("no more processes")
    node.arming.begin()
    node.arming.build_beside(PYTHON, BUILD_AFTER_S)
    assert "not ready or could not be" in node.arming.begin()


def test_what_compiles_beside_the_workers_does(tree: Tree, tmp_path: Path) -> None:
    """The command that the helper runs, really run, with a compiler of our own making."""
    (tmp_path / "bin").mkdir()
    compiler = tmp_path / "bin" / "cc"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done; echo plugin > "$2"\n')
    compiler.chmod(0o755)
    node = Node(with_driver(tree), "auto", at_hand=lambda: "")
    node.arming.begin()
    node.arming.build_beside(sys.executable, BUILD_AFTER_S)
    env = {
        "PATH": f"{tmp_path / 'bin'}:/bin:/usr/bin",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    result = subprocess.run(node.started[0], env=env, capture_output=True, text=True, timeout=60, check=False)
    if os.path.exists(os.path.join(os.path.dirname(build.SOURCE), build.OBJECT_NAME)):
        pytest.skip("this is an installed wheel, which has the plugin")
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    assert build.at_hand(str(tmp_path / "cache" / "robust-run")).endswith(".so")


def test_a_file_that_cannot_be_made_is_said_once_and_the_ranks_run_without(tree: Tree, tmp_path: Path) -> None:
    node = Node(with_driver(tree), "auto")
    node.arming.begin()
    for rank in range(2):
        assert node.arming.variables(str(tmp_path / "gone" / f"{rank}.steps")) == {}
    (line,) = node.said
    assert "No such file or directory): NCCL is not traced; the job runs without" in line


def test_a_job_inside_a_worker_of_another_has_files_of_its_own(tree: Tree, tmp_path: Path) -> None:
    ours = {"ROBUST_NCCL_TRACE": "/outer.nccl", "NCCL_PROFILER_PLUGIN": "/outer.so", "NCCL_RAS_ADDR": "127.0.0.1:1"}
    outer = {**ours, "KEPT": "1"}
    node = Node(with_driver(tree), "auto", outer)
    assert "is traced" in node.arming.begin()
    inner = worker_environment(
        spec(),
        outer,
        local_rank=0,
        place=RankPlace(attempt=0, address="127.0.0.1", port=1, world_size=2),
        agent_hosts_store=True,
        error_file="e",
        run_dir="d",
    )
    assert inner["KEPT"] == "1"
    assert not ours.keys() & inner.keys()
    assert outer["NCCL_PROFILER_PLUGIN"] == "/outer.so"
    mine = Node(with_driver(tree), "auto", {"NCCL_PROFILER_PLUGIN": "/mine.so"})
    assert "NCCL_PROFILER_PLUGIN=/mine.so" in mine.arming.begin()


def test_the_files_of_all_ranks_are_what_room_is_wanted_for(tree: Tree) -> None:
    enough = 2 * layout.FILE_BYTES
    assert "is traced" in Node(tree, "on", free_bytes=lambda folder: enough).arming.begin()
    assert "MiB free" in Node(tree, "on", free_bytes=lambda folder: enough - 1).arming.begin()


def test_a_machine_without_gpus_is_asked_two_questions(tree: Tree) -> None:
    """Every question is time before the first worker."""
    asked: list[str] = []
    files = tree.world().files

    class Counting:
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return getattr(files, name)

    assert Node(tree, "auto", files=Counting()).arming.begin() == ""
    assert asked == ["kind", "kind"]
