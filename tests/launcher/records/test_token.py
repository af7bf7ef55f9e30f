"""The secret all nodes share: where it comes from, who may read it, and what a job's token tells."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from robust_run.errors import PlatformError, UserError
from robust_run.launcher.model.job import ManyNodes
from robust_run.launcher.records.token import (
    READING_NAME,
    find_secret,
    job_name,
    job_token,
    read_token,
    reading_token,
    write_token,
)

SECRET = "correct horse battery"


def refusal(token_file: str = "", **env: str) -> str:
    with pytest.raises(UserError) as caught:
        find_secret(token_file, env)
    message = str(caught.value)
    assert message.isprintable()
    assert SECRET not in message
    return message


def secret_file(folder: Path, text: str = f"{SECRET}\n", mode: int = 0o600) -> str:
    path = folder / "secret"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


# --- where it comes from --------------------------------------------------------------------------------------------


def test_the_file_that_was_named_comes_before_the_variable_and_that_before_the_users_own(tmp_path: Path) -> None:
    env = {**home(tmp_path), "ROBUST_TOKEN": "from the environment"}
    own = find_secret("", home(tmp_path))
    assert find_secret("", env) == "from the environment"
    assert find_secret(secret_file(tmp_path), env) == SECRET
    assert own not in (SECRET, "from the environment")


def test_the_first_job_makes_the_users_own_and_later_ones_find_it(tmp_path: Path) -> None:
    secret = find_secret("", home(tmp_path))
    assert len(bytes.fromhex(secret)) == 32
    assert find_secret("", home(tmp_path)) == secret
    path = tmp_path / ".config" / "robust-run" / "token"
    assert path.read_text() == f"{secret}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == ["token"]


def test_the_configuration_folder_is_respected(tmp_path: Path) -> None:
    find_secret("", {"HOME": "/no/such/home", "XDG_CONFIG_HOME": str(tmp_path)})
    assert (tmp_path / "robust-run" / "token").is_file()


def test_nodes_that_share_a_home_and_start_at_once_agree(tmp_path: Path) -> None:
    for number in range(20):
        shared = tmp_path / str(number)
        shared.mkdir()
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(find_secret, [""] * 8, [home(shared)] * 8))
        assert len(set(found)) == 1
        assert os.listdir(shared / ".config" / "robust-run") == ["token"]


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_secret_that_others_can_read_is_none(tmp_path: Path, mode: int) -> None:
    path = secret_file(tmp_path, mode=mode)
    assert refusal(path) == f"others can use the secret in {path} (mode {mode:04o}): chmod 600 {path}"


@pytest.mark.parametrize("text", ["", "short", "x" * 15 + "\n", "x" * 4097])
def test_a_secret_that_can_be_guessed_is_refused(tmp_path: Path, text: str) -> None:
    assert "characters, needs 16 to 4096" in refusal(secret_file(tmp_path, text))


def test_a_short_variable_is_refused() -> None:
    assert refusal(ROBUST_TOKEN="x" * 15).startswith("the secret in ROBUST_TOKEN has 15 characters")


def test_a_file_that_was_named_is_not_made(tmp_path: Path) -> None:
    assert "does not exist" in refusal(str(tmp_path / "none"))
    assert os.listdir(tmp_path) == []


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "is not a file" in refusal(str(tmp_path / "pipe"))
    (tmp_path / "folder").mkdir(0o700)
    assert "is not a file" in refusal(str(tmp_path / "folder"))


@pytest.mark.parametrize("env", [{}, {"HOME": ""}, {"HOME": "relative"}, {"HOME": "/no/such/home"}])
def test_without_a_home_the_user_is_told_what_to_export(env: dict[str, str]) -> None:
    message = refusal(**env)
    assert "export ROBUST_TOKEN with 16 or more random characters, the same on every node" in message
    assert not os.path.exists("/no")


# --- a job's token --------------------------------------------------------------------------------------------------


def test_a_token_opens_one_job() -> None:
    tokens = {job_token(secret, name) for secret in ("s" * 16, "t" * 16) for name in ("a", "b", "endpoint h:1")}
    assert len(tokens) == 6
    assert {len(token) for token in tokens} == {64}
    assert job_token("s" * 16, "a") == job_token("s" * 16, "a")


@pytest.mark.parametrize(
    ("many", "name"),
    [
        (ManyNodes(fewest=1, most=2, host="node0", port=1, job="exp7"), "exp7"),
        (ManyNodes(fewest=1, most=2, host="Node0.", port=1), "endpoint node0:1"),
        (ManyNodes(fewest=1, most=2, host="::1", port=29400), "endpoint ::1:29400"),
    ],
)
def test_a_job_is_known_by_its_name_or_by_where_it_meets(many: ManyNodes, name: str) -> None:
    assert job_name(many) == name


def test_the_token_lies_in_the_run_directory_for_its_owner_alone(tmp_path: Path) -> None:
    write_token(str(tmp_path), "a" * 64)
    write_token(str(tmp_path), "b" * 64)
    assert read_token(str(tmp_path)) == "b" * 64
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["token", "token.read"]


def test_beside_it_lies_one_that_tells_nothing_of_it(tmp_path: Path) -> None:
    write_token(str(tmp_path), "a" * 64)
    reading = (tmp_path / READING_NAME).read_text().strip()
    assert reading == reading_token("a" * 64) != "a" * 64
    assert len(reading) == 64
    assert reading_token("b" * 64) != reading
    assert stat.S_IMODE((tmp_path / READING_NAME).stat().st_mode) == 0o600


def test_a_token_that_cannot_be_written_or_found_is_said(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match="cannot write the job's token"):
        write_token(str(tmp_path / "none"), "a" * 64)
    with pytest.raises(UserError, match="no token in"):
        read_token(str(tmp_path))
