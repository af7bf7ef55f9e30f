"""The recorder in C is built once for a user and a Python, and no worker loads what has not been tried."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from robust_run.tracer.native import build
from robust_run.tracer.plugin.build import WORK_PREFIX, compile_object


def no_compiler(name: str) -> str | None:
    return None


@pytest.fixture
def shipped(recorder_in_c: str, tmp_path: Path) -> str:
    """What a wheel would have."""
    return shutil.copy(recorder_in_c, tmp_path / build.object_name())


def test_that_of_the_wheel_is_tried_and_kept_without_a_compiler(shipped: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "deep" / "cache")
    assert not build.is_ready(folder)
    assert not os.path.exists(folder)
    path, reason = build.ensure(folder, no_compiler, shipped)
    assert (path, reason) == (build.target_path(folder), "")
    assert os.stat(folder).st_mode & 0o777 == 0o700
    assert os.listdir(folder) == [os.path.basename(path)]
    assert build.is_ready(folder)
    assert build.ensure(folder, no_compiler, shipped="").path == path


def test_one_that_kills_who_loads_it_is_never_handed_out_and_not_tried_again(
    recorder_in_c: str, tmp_path: Path
) -> None:
    source = tmp_path / "bad.c"
    source.write_text("void *PyInit_robust_run_native(void) { return *(void **)0; }\n")
    bad = tmp_path / build.object_name()
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))))
    subprocess.run([compiler, "-O0", "-fPIC", "-shared", "-o", str(bad), str(source)], check=True)
    folder = str(tmp_path / "cache")
    path, reason = build.ensure(folder, no_compiler, str(bad))
    assert (path, reason) == ("", "the recorder in C ended its trial with SIGSEGV")
    assert not os.path.exists(build.target_path(folder))
    assert build.is_ready(folder), "there is nothing more to do"
    assert build.ensure(folder, no_compiler, recorder_in_c).reason == reason


def test_one_that_is_no_module_is_never_handed_out(tmp_path: Path) -> None:
    junk = tmp_path / build.object_name()
    junk.write_bytes(b"\x7fELF and no more")
    path, reason = build.ensure(str(tmp_path / "cache"), no_compiler, str(junk))
    assert path == ""
    assert reason.startswith("the recorder in C failed its trial: ImportError: ")


def test_without_a_compiler_or_headers_one_line_says_so_and_the_next_may_try_again(tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    assert "no C compiler" in build.ensure(folder, no_compiler, shipped="").reason
    assert os.listdir(folder) == []
    assert not build.is_ready(folder)


def test_a_folder_that_others_may_write_is_not_used(shipped: str, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    path, reason = build.ensure(str(folder), no_compiler, shipped)
    assert (path, "chmod 700" in reason) == ("", True)
    assert not build.is_ready(str(folder))


def test_another_build_of_python_gets_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = build.target_path("/cache")
    monkeypatch.setattr(sys, "version", sys.version + " rebuilt")
    assert build.target_path("/cache") != ours


def test_what_a_compiler_leaves_that_is_killed_lies_where_it_is_cleared_away(tmp_path: Path) -> None:
    compiler, seen, folder = tmp_path / "cc", tmp_path / "seen", tmp_path / "cache"
    compiler.write_text(f'#!/bin/sh\nprintf %s "$TMPDIR" > {seen}\nexit 1\n')
    compiler.chmod(0o755)
    folder.mkdir()
    assert "cannot build" in compile_object(str(folder / "x.so"), "x.c", (), "x", "for x", lambda _: str(compiler))
    work = Path(seen.read_text())
    assert work.parent == folder and work.name.startswith(WORK_PREFIX)
