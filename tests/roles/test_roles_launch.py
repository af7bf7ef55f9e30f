"""Jobs of several roles that Python starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jobs import script

from robust_run import roles
from robust_run.errors import UserError
from robust_run.orchestrator.roles_file import parse

OPTIONS = ("--log-dir", "runs")


def test_what_a_file_would_say_is_run(tmp_path: Path) -> None:
    script(tmp_path, "from pathlib import Path\nPath('ran').touch()", "work.py")
    job = roles.launch({"roles": {"worker": {"command": "work.py"}}}, OPTIONS, cwd=tmp_path)
    assert job.wait(120) == 0
    assert (tmp_path / "ran").exists()
    (run,) = (tmp_path / "runs").glob("[!.]*")
    assert json.loads((run / "roles.jsonl").read_bytes().split(b"\n")[0])["roles"]["name"] == "roles"


def test_a_mistake_is_told_by_the_process(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert roles.launch({"roles": {"worker": {"comand": "work.py"}}}, OPTIONS, cwd=tmp_path).wait(120) == 2
    assert "comand" in capfd.readouterr().err
    assert roles.launch(tmp_path / "none.toml", OPTIONS, cwd=tmp_path).wait(120) == 2
    assert "cannot be read: No such file" in capfd.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_what_no_file_can_hold_is_refused() -> None:
    with pytest.raises(UserError, match="what no file can hold"):
        roles.launch({"roles": {"worker": {"command": {1, 2}}}})


def test_json_is_read_as_toml_is() -> None:
    spec = parse(json.dumps({"name": "a", "roles": {"b": {"command": ["c.py", "x y"]}}}))
    assert (spec.name, spec.role("b").command) == ("a", ("c.py", "x y"))
    with pytest.raises(UserError, match="is no JSON"):
        parse("{")
