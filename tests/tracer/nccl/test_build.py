"""The plugin is found where the wheel put it, or built once; where it cannot be, one line says why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from robust_run.tracer.nccl import build

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
    assert "robust_run/tracer/nccl/plugin.c" in names
    assert (f"robust_run/tracer/nccl/{build.OBJECT_NAME}" in names) == with_compiler
    assert wheel.name.endswith("-none-any.whl") != with_compiler
    assert ("without the tracing of NCCL: no C compiler" in result.stderr) != with_compiler


def test_the_installed_nccl_looks_for_what_the_plugin_has(plugin: str) -> None:
    import ctypes
    from importlib.util import find_spec

    spec = find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    libraries = [path for folder in folders for path in Path(folder).glob("*/lib/libnccl.so.2")]
    if not libraries:
        pytest.skip("no libnccl is installed")
    version = ctypes.c_int()
    ctypes.CDLL(str(libraries[0])).ncclGetVersion(ctypes.byref(version))
    interfaces = {(2, 26): 3, (2, 27): 4, (2, 28): 5, (2, 29): 6}
    newest = interfaces.get((version.value // 10000, version.value // 100 % 100), 6)
    content = libraries[0].read_bytes()
    ours = ctypes.CDLL(plugin)
    for number in range(3, newest + 1):
        assert f"ncclProfiler_v{number}".encode() in content
        assert ctypes.c_void_p.in_dll(ours, f"ncclProfiler_v{number}")
