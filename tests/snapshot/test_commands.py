"""`robust env`, as it is typed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from snapshot.environments import needs_squashfs_tools

from robust_run.errors import RobustRunError
from robust_run.snapshot.commands import env
from robust_run.snapshot.rules.types import SnapshotManifest

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command; returns its exit code and what it said on standard output, or its error."""
    needs_squashfs_tools()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def typed(*arguments: object) -> tuple[int, str]:
        capfd.readouterr()
        try:
            code = env([str(argument) for argument in arguments], standalone_mode=False)
        except RobustRunError as error:
            return error.exit_code, str(error)
        return code or 0, capfd.readouterr().out

    return typed


def test_a_key_is_printed_and_explained(run: Run, tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("x==1\n")
    code, plain = run("key", "--setup", "pip install -r r.txt")
    assert (code, len(plain.strip())) == (0, 64)
    _, explained = run("key", "--explain", "--setup", "pip install -r r.txt")
    assert explained.startswith(f"key {plain}")
    assert "file r.txt" in explained and "command 001" in explained
    (tmp_path / "r.txt").write_text("x==2\n")
    assert run("key", "--setup", "pip install -r r.txt")[1] != plain
    assert run("key") == (2, "no set-up command is given: use --setup or --setup-file")


def test_from_building_to_pruning(run: Run, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("overlays over the environment of these tests need root")
    site = next(path for path in sys.path if path.endswith("site-packages"))
    (tmp_path / "setup.sh").write_text(
        f"cd '{site}'\nmkdir snapshot_test\necho 'V = 7' > snapshot_test/__init__.py\nfalse || true\n"
    )
    assert run("list") == (1, "")
    code, said = run("build", "--setup-file", "setup.sh", "--json")
    assert code == 0, said
    first = json.loads(said)
    assert first["method"] == "overlay"
    assert not os.path.exists(f"{site}/snapshot_test")
    assert json.loads(run("build", "--setup-file", "setup.sh", "--json")[1]) == first, "the second time it is there"

    short = first["key"][:16]
    assert run("list")[1].startswith(short)
    assert f"root {first['roots'][0]['path']}" in run("inspect", short)[1]
    code, folder = run("restore", short)
    assert (
        Path(folder.strip()) / "r0" / os.path.relpath(site, first["roots"][0]["path"]) / "snapshot_test/__init__.py"
    ).exists()
    assert run("verify", short)[0] == 0
    code, said = run("verify", short, "--restored")
    assert code == 1 and "snapshot_test cannot be read" in said

    (tmp_path / "setup.sh").write_text(f"touch '{site}/snapshot_test'\n")
    second = json.loads(run("build", "--setup-file", "setup.sh", "--json")[1])
    code, said = run("diff", short, second["key"][:16])
    assert (code, said.count("\n")) == (1, 1)
    assert said.startswith("command 001: ")
    assert run("inspect", "abcdef0")[0] == 2

    assert run("prune", "--unused-days", "0", "--keep-latest", "1", "--dry-run")[1].startswith(short)
    run("prune", "--unused-days", "0", "--keep-latest", "1")
    assert run("list")[1].startswith(second["key"][:16])


def test_a_command_that_fails_is_reported_in_one_line(run: Run) -> None:
    if os.geteuid() != 0:
        pytest.skip("overlays over the environment of these tests need root")
    code, said = run("build", "--setup", "echo no such thing; exit 4")
    assert code == 1
    assert said == "set-up command 'echo no such thing; exit 4' ended with 4: no such thing"
    assert "robust-setup" not in "".join(os.listdir("."))


def test_what_a_system_wide_install_changes_is_refused_by_name(run: Run) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can change the system")
    place = Path("/usr/robust-run-test-outside")
    try:
        code, said = run("build", "--setup", f"echo x > {place}")
    finally:
        place.unlink(missing_ok=True)  # where no overlay could watch
    assert code == 1
    assert str(place) in said and "--setup-root" in said


def test_a_short_token_is_no_token(run: Run, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("short\n")
    (tmp_path / "token").chmod(0o600)
    code, said = run("list", "--token-file", tmp_path / "token")
    assert code == 2 and "has 5 characters, needs 16" in said
    (tmp_path / "token").write_text("long enough for a token\n")
    (tmp_path / "token").chmod(0o640)
    code, said = run("list", "--token-file", tmp_path / "token")
    assert code == 2 and "(mode 0640): chmod 600" in said
    assert SnapshotManifest.__struct_fields__[0] == "schema"
