"""The checks before a version is taken: syntax by the Python that will run it, and a command of the user's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from robust_run.errors import UserError
from robust_run.launcher.operator.code.check import compile_all, smoke
from robust_run.launcher.operator.code.commands import update
from robust_run.launcher.records.code.errors import CodeError

#: This very Python, which compiles here, and the same under another name, which is started.
PYTHONS = ("this", "another")


@pytest.fixture(params=PYTHONS)
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "this":
        return sys.executable
    path = tmp_path_factory.mktemp("python") / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_files_that_compile_pass_and_nothing_of_them_runs(tmp_path: Path, python: str) -> None:
    (tmp_path / "a.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nx = '\\d'\n")
    (tmp_path / "ü.py").write_bytes(b"# -*- coding: latin-1 -*-\nx = '\xfc'\n")
    compile_all(str(tmp_path), ["a.py", "ü.py"], python)
    assert not (tmp_path / "ran").exists()
    compile_all(str(tmp_path), [], "/no/python")


@pytest.mark.parametrize("content", [b"def f(:\n", b"x = '\xff'\n", b"a\0b", b"(" * 5000, b"  x = 1\n"])
def test_a_file_that_does_not_compile_is_named(tmp_path: Path, content: bytes, python: str) -> None:
    (tmp_path / "fine.py").write_text("x = 1\n")
    (tmp_path / "bad.py").write_bytes(content)
    with pytest.raises(CodeError, match=r"bad\.py:\d+: \w+Error"):
        compile_all(str(tmp_path), ["fine.py", "bad.py"], python)


def test_a_python_that_is_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    with pytest.raises(UserError, match=r"/no/python"):
        compile_all(str(tmp_path), ["a.py"], "/no/python")


def test_a_command_passes_fails_or_takes_too_long(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("print('looking'); assert 1 == 2, 'not so'\n")
    smoke("true", str(tmp_path), 60, os.environ)
    with pytest.raises(CodeError, match=r"ended with 1.*not so"):
        smoke(f"{sys.executable} test_it.py", str(tmp_path), 60, os.environ)
    with pytest.raises(CodeError, match=r"did not end within"):
        smoke("sleep 1000", str(tmp_path), 0.2, os.environ)
    for wrong in ("", "no-such-program-anywhere", "'"):
        with pytest.raises(UserError, match=r"--check"):
            smoke(wrong, str(tmp_path), 60, os.environ)


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open("daemon.tmp", "w") as file:
            file.write(str(os.getpid()))
        os.rename("daemon.tmp", "daemon")
        time.sleep(1000)
    os._exit(0)
while not os.path.exists("daemon"):
    time.sleep(0.01)
sys.exit({code})
"""


@pytest.mark.parametrize("code", [0, 3])
def test_nothing_that_a_command_starts_outlives_it(tmp_path: Path, code: int) -> None:
    (tmp_path / "it.py").write_text(DAEMON.format(code=code))
    try:
        smoke(f"{sys.executable} it.py", str(tmp_path), 60, os.environ)
        assert code == 0
    except CodeError as error:
        assert f"ended with {code}" in str(error)
    pid = int((tmp_path / "daemon").read_text())
    assert not os.path.exists(f"/proc/{pid}")


def test_of_what_a_command_prints_the_end_is_kept(tmp_path: Path) -> None:
    (tmp_path / "it.py").write_text(
        "for _ in range(40): print('x' * 1_000_000)\nprint('the end')\nraise SystemExit(1)\n"
    )
    with pytest.raises(CodeError) as failure:
        smoke(f"{sys.executable} it.py", str(tmp_path), 60, os.environ)
    assert str(failure.value).endswith("| the end")
    assert len(str(failure.value)) < 10_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it.py"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--check", ""), "--check is empty"),
        (("--check", "  "), "--check is empty"),
        (("--check", "true", "--check-limit", "nan"), "--check-limit"),
        (("--check", "true", "--check-limit", "inf"), "--check-limit"),
        (("--check", "true", "--check-limit", "0"), "--check-limit"),
        (("--check", "true", "--check-limit", "-3"), "--check-limit"),
    ],
)
def test_a_check_that_cannot_be_meant_is_refused(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(UserError, match=says):
        update.main(list(words), standalone_mode=False)


def test_no_shell_reads_the_command(tmp_path: Path) -> None:
    smoke("echo x > made; touch other", str(tmp_path), 60, os.environ)
    assert list(tmp_path.iterdir()) == []
