"""Workers of one job have the same keys; nobody else has, and a key tells nothing of the secret."""

from __future__ import annotations

import hashlib
import hmac
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run import roles
from robust_run.errors import UserError
from robust_run.roles.client import Place
from robust_run.roles.peer_keys import derive
from robust_run.roles.wire import OrchestratorHalf, WorkerHalf
from robust_run.roles.words import Me

SECRET = bytes(range(32))
PROGRAM = "from robust_run import roles; print(roles.peer_key('rows').hex())"


def place(folder: Path, secret: bytes = SECRET, port: int = 1) -> Path:
    path = folder / "roles.place"
    path.write_bytes(msgspec.json.encode(Place(address="127.0.0.1", port=port, secret=secret, roles=("a",))))
    return path


def key_in_worker(path: Path, role: str) -> str:
    env = {**os.environ, "ROBUST_ROLES_PLACE": str(path), "ROBUST_ROLE": role, "ROBUST_ROLE_INDEX": "0"}
    env["ROBUST_ROLE_SERIAL"] = "1"
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_workers_of_all_roles_have_the_same_key_before_anything_is_connected(tmp_path: Path) -> None:
    path = place(tmp_path)
    keys = {key_in_worker(path, role) for role in ("attention", "expert")}
    place(tmp_path, port=2)  # what leads the job was started again
    assert keys == {key_in_worker(path, "expert")} == {derive(SECRET, "rows").hex()}


def test_who_is_no_worker_of_such_a_job_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROBUST_ROLES_PLACE", raising=False)
    with pytest.raises(UserError, match="no worker of a job of several roles"):
        roles.peer_key("rows")


@given(st.binary(min_size=32, max_size=32), st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=200))
def test_each_purpose_and_each_job_has_its_own(secret: bytes, purpose: str, other: str) -> None:
    key = derive(secret, purpose)
    assert len(key) == 32
    assert key not in (secret, derive(hashlib.sha256(secret).digest(), purpose))
    assert (key == derive(secret, other)) is (purpose == other)


def test_it_is_no_key_or_proof_of_the_connection_to_what_leads_the_job() -> None:
    worker = WorkerHalf(SECRET, Me(role="a", index=0, rank=0, serial=1, attempt=0), "1", bytes(32))
    orchestrator = OrchestratorHalf(SECRET, bytes(32))
    challenge = orchestrator.challenge(worker.hello)
    proof, key_in, key_out = worker.answer(challenge)
    said = {challenge.proof, proof.proof, key_in, key_out}
    label = b"robust-run roles 1\0"
    for purpose in ("orchestrator", "worker", "to worker", "from worker", label.decode() + "worker"):
        assert derive(SECRET, purpose) not in said
    assert hmac.digest(SECRET, b"rows", "sha256") != derive(SECRET, "rows")


@pytest.mark.parametrize("purpose", ["", "a" * 201, b"bytes", None])
def test_a_purpose_that_is_none_is_refused(purpose: str) -> None:
    with pytest.raises(UserError, match="needs a purpose of 1 to 200 characters"):
        derive(SECRET, purpose)
