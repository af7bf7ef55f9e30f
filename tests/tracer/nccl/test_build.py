"""The plugin is found where the wheel put it, or built once; where it cannot be, one line says why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from robust_run.tracer.plugin import build

ROOT = Path(__file__).parents[3]


def no_compiler(name: str) -> str | None:
    return None


def test_built_once_for_a_user(compiler: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "deep" / "cache")
    first = build.ensure(folder, shipped="")
    assert first.reason == ""
    assert os.stat(folder).st_mode & 0o777 == 0o700
    assert build.ensure(folder, which=no_compiler, shipped="") == first
    assert os.listdir(folder) == [os.path.basename(first.path)]


def test_built_by_several_at_once(compiler: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: build.ensure(folder, shipped=""), range(3)))
    assert len(set(found)) == 1
    assert os.listdir(folder) == [os.path.basename(found[0].path)]


def test_what_is_at_hand_is_found_without_making_anything(compiler: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    assert build.at_hand(folder, shipped="") == ""
    assert not os.path.exists(folder)
    built = build.ensure(folder, shipped="").path
    assert build.at_hand(folder, shipped="") == built
    assert build.at_hand(folder, shipped=built) == built
    os.chmod(folder, 0o777)
    assert build.at_hand(folder, shipped="") == "", "somebody else may have put it there"


def test_what_a_killed_compilation_left_is_removed_when_it_is_old(compiler: str, tmp_path: Path) -> None:
    old, new = tmp_path / ".nccl-old", tmp_path / ".nccl-new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "half").touch()
    os.utime(old, (1, 1))
    assert build.ensure(str(tmp_path), shipped="").path
    assert (old.exists(), new.exists()) == (False, True)


def test_what_another_compilation_removes_at_that_moment_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, listed = tmp_path / "cc", os.listdir
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n: > "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setattr(os, "listdir", lambda folder: [*listed(folder), f"{build.WORK_PREFIX}gone"])
    assert build.ensure(str(tmp_path / "cache"), which=lambda name: str(compiler), shipped="").reason == ""


def test_that_of_the_wheel_comes_first(tmp_path: Path) -> None:
    shipped = tmp_path / build.OBJECT_NAME
    shipped.touch()
    assert build.ensure(str(tmp_path / "cache"), which=no_compiler, shipped=str(shipped)) == (str(shipped), "")


def test_without_a_compiler(tmp_path: Path) -> None:
    path, reason = build.ensure(str(tmp_path / "cache"), which=no_compiler, shipped="")
    assert path == ""
    assert reason == "no C compiler (cc, gcc, clang) is on the PATH: install one to trace NCCL"


def test_a_compiler_that_fails(tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'no headers here' >&2; echo more >&2; exit 1\n")
    broken.chmod(0o755)
    path, reason = build.ensure(str(tmp_path / "cache"), which=lambda name: str(broken), shipped="")
    assert path == ""
    assert reason == f"{broken} cannot build the plugin for NCCL: no headers here"
    assert os.listdir(tmp_path / "cache") == []


def test_a_folder_that_others_may_write(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    path, reason = build.ensure(str(folder), shipped="")
    assert (path, "chmod 700" in reason) == ("", True)
    (tmp_path / "link").symlink_to(tmp_path)
    assert "not a folder of this user" in build.ensure(str(tmp_path / "link"), shipped="").reason


def test_a_place_where_no_folder_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path, reason = build.ensure(str(tmp_path / "file" / "cache" / "deeper"), shipped="")
    assert path == ""
    assert "cannot keep the plugin" in reason


def test_the_cache_is_the_users() -> None:
    assert build.cache_folder({"XDG_CACHE_HOME": "/somewhere"}) == "/somewhere/robust-run"
    assert build.cache_folder({"XDG_CACHE_HOME": "relative"}) == os.path.expanduser("~/.cache/robust-run")


@pytest.mark.parametrize("with_compiler", [True, False])
def test_wheels(compiler: str, tmp_path: Path, with_compiler: bool) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("cc", "as", "ld") if with_compiler else ():
        (commands / name).symlink_to(shutil.which(name) or pytest.skip(f"no {name} here"))
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    variables = {"PATH": str(commands), "HOME": str(tmp_path)}
    result = subprocess.run(argv, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    (wheel,) = (tmp_path / "dist").iterdir()
    names = zipfile.ZipFile(wheel).namelist()
    assert "robust_run/tracer/plugin/plugin.c" in names
    assert (f"robust_run/tracer/plugin/{build.OBJECT_NAME}" in names) == with_compiler
    has_headers = os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h"))
    recorder = f"robust_run/tracer/native/robust_run_native.{sysconfig.get_config_var('SOABI')}.so"
    assert (recorder in names) == (with_compiler and has_headers)
    kind = f"manylinux_2_17_{os.uname().machine}" if with_compiler else "any"
    assert wheel.name.endswith(f"-py3-none-{kind}.whl"), (
        "an index takes it, and any glibc of the last ten years runs it"
    )
    assert ("without the tracing of NCCL: no C compiler" in result.stderr) != with_compiler
