"""A node whose `robust-run` is started anew while its job goes on under another leader takes part in it, and founds no other."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
from jobs import kill, running, unused_port, wait_for
from role_jobs import RoleJob, nodes_of, three_nodes

from robust_run.orchestrator.journal import NAME
from robust_run.orchestrator.model.node_words import Several
from robust_run.orchestrator.model.succession_words import Voter
from robust_run.orchestrator.succession import coming_back
from robust_run.orchestrator.succession.door import Door
from robust_run.orchestrator.succession.record import Record, boot_id, why_void, write_record
from robust_run.version import RUN_DIR_SCHEMA

if TYPE_CHECKING:
    from robust_run.orchestrator.server import RoleServer
    from robust_run.orchestrator.succession.replica import Replica

SECRET = b"s" * 32
OVER = {"at": 1.0, "mono": 1.0, "event": {"type": "tick"}, "actions": [{"type": "finish", "code": 0, "sentence": ""}]}


ENDPOINT = Voter("first", "127.0.0.1", 1)


def meeting(name: str = "a") -> Several:
    return Several(host=ENDPOINT.address, port=ENDPOINT.port, nodes=3, name=name, secret=SECRET)


def made(log_dir: Path, run: str, *names: str, voters: tuple[Voter, ...] = (ENDPOINT,), of: str = "") -> Path:
    """Make what is left of a run: records of these voters. `of`: another run whose they are."""
    folder = log_dir / run
    (folder / "voters").mkdir(parents=True)
    folder.chmod(0o700)
    for name in names:
        record = Record(run_id=of or run, name=name, boot="b", voters=voters)
        write_record(str(folder / "voters" / f"{name}.json"), record)
    return folder


def age(folder: Path, at_s: float) -> None:
    os.utime(folder / "voters", (at_s, at_s))


def write_journal(folder: Path, *lines: object) -> None:
    head = {"schema": RUN_DIR_SCHEMA, "roles": None}
    (folder / NAME).write_text("".join(f"{json.dumps(each)}\n" for each in (head, *lines)))


def found(log_dir: Path, name: str = "a") -> list[str]:
    return [each.run_id for each in coming_back.runs(str(log_dir), meeting(name))]


def test_runs_are_looked_at_the_newest_first_and_not_all(tmp_path: Path) -> None:
    for number in range(7):
        age(made(tmp_path, f"r{number}", "a"), 1000.0 + number)
    for number in range(7):
        age(made(tmp_path, f"other{number}", "a", voters=(Voter("first", "127.0.0.1", 2),)), 2000.0 + number)
    assert found(tmp_path) == ["r6", "r5", "r4", "r3", "r2"]


def test_a_record_of_this_node_is_taken_before_one_of_another(tmp_path: Path) -> None:
    folder = made(tmp_path, "r", "b", "c")
    made_for_a = Record(run_id="r", name="a", boot="b", voters=(ENDPOINT, Voter("a", "::1", 1)))
    assert [each.voters for each in coming_back.runs(str(tmp_path), meeting())] == [(ENDPOINT,)]
    write_record(str(folder / "voters" / "a.json"), made_for_a)
    assert [each.voters for each in coming_back.runs(str(tmp_path), meeting())] == [(ENDPOINT, Voter("a", "::1", 1))]


def test_what_is_no_run_that_goes_on_is_left_out(tmp_path: Path) -> None:
    write_journal(made(tmp_path, "over", "a"), OVER)
    (made(tmp_path, "of-another-version", "a") / NAME).write_text('{"schema": "robust-run 99"}\n')
    made(tmp_path, "moved", "a", of="elsewhere")
    (made(tmp_path, "damaged", "a") / "voters" / "a.json").write_text("{")
    made(tmp_path, "without-voters")
    made(tmp_path, "of-another-endpoint", "a", voters=(Voter("first", "127.0.0.1", 2), ENDPOINT))
    made(tmp_path, "open-to-others", "a").chmod(0o777)
    (tmp_path / "a-file").write_text("")
    assert found(tmp_path) == []
    assert found(tmp_path / "missing") == []
    write_journal(made(tmp_path, "goes-on", "a"))
    assert found(tmp_path) == ["goes-on"]


class Voting:
    """Who has a vote in a run, as a door knows it."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id

    is_over = False

    def may_act(self) -> bool:
        return True

    def went(self, worker: object) -> None:
        """Whoever asked is gone."""


THERE = {
    "nobody": (None, SECRET, False),
    "one that waits for its job to begin": ("", SECRET, False),
    "one of this run that leads nothing": ("r", SECRET, True),
    "one of another run": ("other", SECRET, False),
    "one of another job": ("r", b"o" * 32, False),
}


@pytest.mark.parametrize(("run_id", "secret", "is_waited_for"), THERE.values(), ids=THERE)
def test_where_nobody_says_that_it_leads_the_run_it_does_not_go_on(
    tmp_path: Path, run_id: str | None, secret: bytes, is_waited_for: bool
) -> None:
    async def look(leads: bool = False) -> coming_back.Earlier | None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            where = listener.getsockname()[1] if run_id is not None else unused_port()
            made(tmp_path, "r", "a", voters=(ENDPOINT, Voter("b", "127.0.0.1", where)))
            door = Door(secret, listener)
            door.replica = cast("Replica", Voting(run_id)) if run_id else None
            door.leading = cast("RoleServer", object()) if leads else None
            await door.open()
            try:
                return await coming_back.find(str(tmp_path), meeting(), said.append, leaderless_s=4.0)
            finally:
                door.close()

    said: list[str] = []
    began_s = time.monotonic()
    assert asyncio.run(look()) is None
    assert (time.monotonic() - began_s >= 4.0) == is_waited_for, "only that one may be about to lead"
    assert said == (["nodes of the run r are here, and none leads it: it is waited for 4 s"] if is_waited_for else [])
    shutil.rmtree(tmp_path / "r")
    found_again = asyncio.run(look(leads=True))
    assert (found_again is not None) == is_waited_for


def test_a_node_whose_vote_may_be_what_they_lack_comes_back_at_once(tmp_path: Path) -> None:
    async def look() -> coming_back.Earlier | None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            voters = (ENDPOINT, Voter("b", "127.0.0.1", listener.getsockname()[1]), Voter("a", "127.0.0.1", 3))
            folder = made(tmp_path, "r", "a", voters=voters)
            record = Record(run_id="r", name="a", boot=boot_id(), voters=voters)
            write_record(str(folder / "voters" / "a.json"), record)
            door = Door(SECRET, listener)
            door.replica = cast("Replica", Voting("r"))
            await door.open()
            try:
                return await coming_back.find(str(tmp_path), meeting(), lambda _: None, leaderless_s=60.0)
            finally:
                door.close()

    began_s = time.monotonic()
    earlier = asyncio.run(look())
    assert earlier is not None and earlier.has_vote
    assert time.monotonic() - began_s < 60.0


def test_one_that_listens_and_does_not_answer_may_have_no_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coming_back, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made(tmp_path, "r", "a", voters=(ENDPOINT, Voter("b", "127.0.0.1", listener.getsockname()[1])))
        began_s = time.monotonic()
        said: list[str] = []
        looking = coming_back.find(str(tmp_path), meeting(), said.append, leaderless_s=60.0, silent_s=3.0)
        assert asyncio.run(looking) is None
        assert 3.0 <= time.monotonic() - began_s < 60.0, "or it may be another program"
        assert said == []


def test_a_vote_holds_where_others_can_find_it() -> None:
    record = Record(run_id="r", name="a", boot=boot_id(), voters=(Voter("b", "h", 8), Voter("a", "localhost", 7)))
    assert why_void(record, "r", 7) == ""
    assert "port 7, and it listens on 9" in why_void(record, "r", 9)
    assert "booted" in why_void(msgspec.structs.replace(record, boot="earlier"), "r", 7)


@pytest.mark.parametrize("address", ["192.0.2.1", "no-such-name.invalid"])
def test_a_node_that_has_moved_has_no_vote(tmp_path: Path, address: str) -> None:
    made(tmp_path, "r", "a", voters=(ENDPOINT, Voter("a", address, 7)))
    (earlier,) = coming_back.runs(str(tmp_path), meeting())
    assert earlier.why_void == f"others know it by the address {address}, which is none of this machine's"
    (of_another,) = coming_back.runs(str(tmp_path), meeting("c"))
    assert of_another.why_void == "", "it never had one"


def offers(roles: RoleJob, name: str) -> int:
    return sum(line["event"]["type"] == "node_offered" and line["event"]["node"] == name for line in roles.journal())


@pytest.mark.timeout(600)
def test_the_node_that_founded_the_job_comes_back_to_the_one_that_leads_now(tmp_path: Path) -> None:
    (tmp_path / "not-yet").touch()
    with three_nodes(tmp_path, 60) as (a, b, c):
        a.trained(10)
        arguments = Path(f"/proc/{a.job.pid}/cmdline").read_bytes().split(b"\0")
        arguments = [each.decode() for each in arguments[arguments.index(b"--roles") : -1]]
        kill(a.leader())
        kill(a.job.pid)
        wait_for(lambda: any("b" in nodes or "c" in nodes for nodes in nodes_of(a).values()), "another to lead", 150)
        with running(tmp_path, *arguments) as again:
            wait_for(lambda: offers(a, "a") > 1, "a to come back", 150)
            (tmp_path / "not-yet").unlink()
            for job in (again, b.job, c.job):
                assert job.finish(150) == 0, job.err
            assert f"a comes back to the run in {a.job.run_dir}" in again.err
            assert not again.run_dir.exists(), "no other job was begun"
            for job in (a.job, again, b.job, c.job):
                job.assert_nothing_left()
        assert sorted(map(int, json.loads((tmp_path / "history").read_text()))) == list(range(60))
