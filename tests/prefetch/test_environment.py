"""`--prefetch-env`: a worker notes what it opens without noticing, and later launches read that ahead."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from robust_run.prefetch.environment import lists, starting
from robust_run.prefetch.environment.starting import EnvironmentStart
from robust_run.tracer.files.arming import ARM_FOLDER as TRACER_FOLDER
from robust_run.tracer.files.arming import arm_environment as arm_tracer

LIMIT_S = 60
ENV = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
PROGRAM = """
import os, sys, json
import first_module, second_module
open(second_module.__file__).close()
print(json.dumps([sys.path, {name: value for name, value in os.environ.items() if name.startswith(("ROBUST", "PYTHON"))}]))
"""


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    """An environment of two modules, reached by a symbolic link as environments often are."""
    (tmp_path / "real" / "lib").mkdir(parents=True)
    for name in ("first", "second", "unused"):
        (tmp_path / "real" / "lib" / f"{name}_module.py").write_text("x = 1\n")
    (tmp_path / "env").symlink_to(tmp_path / "real")
    return tmp_path / "env"


def run(env: dict[str, str], program: str = PROGRAM) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert done.stderr == ""
    return done.stdout


def start(root: Path, tmp_path: Path, **more: object) -> EnvironmentStart:
    return EnvironmentStart(
        str(tmp_path / "lists"), [str(root)], "launch", "x86_64", str(tmp_path / "notes"), **more  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("original", [None, "", "elsewhere"])
def test_a_worker_sees_nothing_of_being_armed(root: Path, tmp_path: Path, original: str | None, traced: bool) -> None:
    env = ENV if original is None else {**ENV, "PYTHONPATH": original or str(root / "lib")}
    env = {**env, "PYTHONPATH": f"{env['PYTHONPATH']}:{root / 'lib'}" if original else str(root / "lib")}
    armed = env | start(root, tmp_path).arm(env)
    if traced:
        armed |= arm_tracer(armed, str(tmp_path / "no-steps"))
    assert run(armed) == run(env)
    assert starting.ARM_FOLDER != TRACER_FOLDER
    assert "second_module.py" in (tmp_path / "notes").read_text()


def test_the_second_launch_reads_ahead_what_the_first_opened_in_its_order(root: Path, tmp_path: Path) -> None:
    env = {**ENV, "PYTHONPATH": str(root / "lib")}
    first = start(root, tmp_path)
    first.warm()
    run(env | first.arm(env))
    report = first.finish()
    assert (report.listed, report.hit_rate, report.warmed_bytes) == (0, None, 0)
    assert report.opened >= 2
    found, problem = lists.load(lists.place(str(tmp_path / "lists"), str(root), "launch", "x86_64"))
    assert found is not None, problem
    names = [os.path.basename(file.path) for file in found.files]
    assert "unused_module.py" not in names
    own = [name.partition("_")[0] for name in names if "_module" in name]
    assert own[0] == "first"
    assert own[-1] == "second"
    second = start(root, tmp_path)
    second.warm()
    run(env | second.arm(env))
    report = second.finish()
    assert report.hit_rate == 1.0
    assert report.listed >= 2
    assert report.warmed_bytes > 0


def test_libraries_that_the_dynamic_linker_mapped_are_seen_from_outside() -> None:
    files = starting.mapped_files(os.getpid())
    assert any("python" in os.path.basename(file) or file.endswith(".so") or ".so." in file for file in files)
    assert starting.mapped_files(1 << 30) == []
    [_notes, recording] = [{}, *lists.noted([], os.path.dirname(files[0]), files, at_ms=7)]
    assert os.path.basename(files[0]) in recording


def test_after_the_window_nothing_is_noted_and_the_program_goes_on(root: Path, tmp_path: Path) -> None:
    env = {**ENV, "PYTHONPATH": str(root / "lib")}
    run(env | start(root, tmp_path, window_s=0.0).arm(env))
    assert "second_module" not in (tmp_path / "notes").read_text()


def test_a_worker_that_cannot_note_says_so_once_and_runs(root: Path, tmp_path: Path) -> None:
    env = {**ENV, "PYTHONPATH": str(root / "lib")}
    armed = env | start(root, tmp_path).arm(env)
    (tmp_path / "notes").unlink()
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=armed, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0
    assert done.stderr.count("--prefetch-env is off") == 1


def test_files_that_are_gone_and_pipes_hold_no_start_up(root: Path, tmp_path: Path) -> None:
    place = lists.place(str(tmp_path / "lists"), str(root), "launch", "x86_64")
    lists.record(place, [{"lib/gone.py": 1, "lib/pipe": 2, "lib/first_module.py": 3, "lib": 4}])
    os.mkfifo(root / "lib" / "pipe")
    launch = start(root, tmp_path)
    launch.warm()
    thread = threading.Thread(target=launch.finish)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"schema":"robust-hot-files","launches":1,"files":[["../../etc/passwd",0,1.0]]}']
)
def test_a_hostile_list_is_passed_over(root: Path, tmp_path: Path, data: bytes) -> None:
    place = Path(lists.place(str(tmp_path / "lists"), str(root), "launch", "x86_64"))
    place.parent.mkdir()
    place.write_bytes(data)
    launch = start(root, tmp_path)
    launch.warm()
    assert launch.finish(keep=False).problems
    assert place.read_bytes() == data


def test_the_folders_of_an_interpreter(tmp_path: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("home = /opt/conda/bin\nversion = 3.11\n")
    assert lists.roots_of(str(tmp_path / "venv" / "bin" / "python")) == (str(tmp_path / "venv"), "/opt/conda")
    assert lists.roots_of("/usr/bin/python3") == ()
    assert lists.default_folder({"XDG_CACHE_HOME": "/c"}) == "/c/robust-run/environments"
    assert lists.default_folder({"HOME": "/h"}) == "/h/.cache/robust-run/environments"
    assert lists.default_folder({}) is None


def test_a_large_file_is_read_in_pieces_and_whole(root: Path, tmp_path: Path) -> None:
    size = (9 << 20) + 5
    (root / "lib" / "large.so").write_bytes(bytes(size))
    place = lists.place(str(tmp_path / "lists"), str(root), "launch", "x86_64")
    lists.record(place, [{"lib/large.so": 1, "lib/first_module.py": 2, "lib/gone.so": 3}])
    found, _problem = lists.load(place)
    assert found is not None
    assert lists.warm_files(str(root), found) == size + (root / "lib" / "first_module.py").stat().st_size
