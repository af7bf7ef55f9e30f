"""Which recorder a worker takes: that in C where it lies ready, else that in Python, as before."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_groups import FakeTorch
from worker_side import load_worker_side

from robust_run.tracer.arm import place
from robust_run.tracer.files import ring
from robust_run.tracer.plugin import build


def chosen(torch: FakeTorch, worker: Any = None, content: bytes | None = None) -> str:
    """Return the class of the hooks that a worker with a fresh ring makes, or with a file that is none."""
    ring.create(f"{torch.path}.ring", 3, 8)
    if content is not None:
        Path(f"{torch.path}.ring").write_bytes(content)
    library: Any = SimpleNamespace(ProcessGroup=torch.ProcessGroup, Work=torch.Work)
    worker = worker or load_worker_side()
    return type(worker.make_hooks(torch.path, torch.distributed, library, lambda: None)).__name__


@pytest.fixture
def torch(tmp_path: Path) -> FakeTorch:
    return FakeTorch(tmp_path / "steps")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ROBUST_TRACE_NATIVE", raising=False)
    (tmp_path / "robust-run").mkdir(mode=0o700)
    return tmp_path / "robust-run"


def test_that_in_c_is_taken_where_it_is_ready_and_not_switched_off(
    torch: FakeTorch, recorder_in_c: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path(recorder_in_c).parents[1]))
    monkeypatch.delenv("ROBUST_TRACE_NATIVE", raising=False)
    assert chosen(torch) == "NativeHooks"
    with pytest.raises(ValueError, match="shorter"):
        chosen(torch, content=b"")
    monkeypatch.setenv("ROBUST_TRACE_NATIVE", "0")
    assert chosen(torch) == "Hooks"
    assert capsys.readouterr().err == "", "what is wrong with a ring is said once, by who asked for the hooks"


def test_where_nothing_was_built_python_records_and_nothing_is_said_or_made(
    torch: FakeTorch, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chosen(torch) == "Hooks"
    cache.rmdir()
    assert chosen(torch) == "Hooks"
    assert capsys.readouterr().err == ""
    assert not cache.exists()


def test_one_that_cannot_be_loaded_costs_one_line(
    torch: FakeTorch, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(place.target_path(str(cache))).write_bytes(b"no object")
    assert chosen(torch) == "Hooks"
    said = capsys.readouterr().err
    assert said.startswith("robust-run: recording in C is off in this worker: ImportError: ")
    assert said.count("\n") == 1


def test_one_that_loads_and_then_fails_costs_one_line_and_a_fork_none(
    torch: FakeTorch, recorder_in_c: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path(recorder_in_c).parents[1]))
    monkeypatch.delenv("ROBUST_TRACE_NATIVE", raising=False)
    worker = load_worker_side()

    def fail(*_: Any) -> None:
        raise RuntimeError("no core")

    worker.load("native").extension = lambda path: SimpleNamespace(Core=fail)
    assert chosen(torch, worker) == "Hooks"
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert capfd.readouterr().err == "robust-run: recording in C is off in this worker: RuntimeError: no core\n"


def test_what_others_may_have_put_there_is_left_alone(
    torch: FakeTorch, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(place.target_path(str(cache))).write_bytes(b"no object")
    cache.chmod(0o777)
    assert chosen(torch) == "Hooks"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("base", ["/somewhere", "relative", ""])
def test_workers_look_where_the_plugin_for_nccl_is_kept_too(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", base)
    assert place.cache_folder() == build.cache_folder(dict(os.environ))
