"""A node whose `robust-run` is started anew while its job goes on under another leader takes part in it, and founds no other."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from pathlib import Path

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

SECRET = b"s" * 32
OVER = {"at": 1.0, "mono": 1.0, "event": {"type": "tick"}, "actions": [{"type": "finish", "code": 0, "sentence": ""}]}


def made(log_dir: Path, run: str, *names: str, voters: tuple[Voter, ...] = (), of: str = "") -> Path:
    """Make what is left of a run: records of these voters. `of`: another run whose they are."""
    folder = log_dir / run
    (folder / "voters").mkdir(parents=True)
    for name in names:
        record = Record(run_id=of or run, name=name, boot="b", voters=voters)
        write_record(str(folder / "voters" / f"{name}.json"), record)
    return folder


def age(folder: Path, at_s: float) -> None:
    for path in (folder / "voters").iterdir():
        os.utime(path, (at_s, at_s))


def write_journal(folder: Path, *lines: object) -> None:
    head = {"schema": RUN_DIR_SCHEMA, "roles": None}
    (folder / NAME).write_text("".join(f"{json.dumps(each)}\n" for each in (head, *lines)))


def found(log_dir: Path, name: str = "a") -> list[str]:
    return [each.run_id for each in coming_back.runs(str(log_dir), name)]


def test_runs_are_looked_at_the_newest_first_and_not_all(tmp_path: Path) -> None:
    for number in range(5):
        age(made(tmp_path, f"r{number}", "a"), 1000.0 + number)
    assert found(tmp_path) == ["r4", "r3", "r2"]


def test_a_record_of_this_node_is_taken_before_one_of_another(tmp_path: Path) -> None:
    folder = made(tmp_path, "r", "b", "c")
    made_for_a = Record(run_id="r", name="a", boot="b", voters=(Voter("a", "h", 1),))
    assert [each.voters for each in coming_back.runs(str(tmp_path), "a")] == [()]
    write_record(str(folder / "voters" / "a.json"), made_for_a)
    assert [each.voters for each in coming_back.runs(str(tmp_path), "a")] == [(Voter("a", "h", 1),)]


def test_what_is_no_run_that_goes_on_is_left_out(tmp_path: Path) -> None:
    write_journal(made(tmp_path, "over", "a"), OVER)
    (made(tmp_path, "of-another-version", "a") / NAME).write_text('{"schema": "robust-run 99"}\n')
    made(tmp_path, "moved", "a", of="elsewhere")
    (made(tmp_path, "damaged", "a") / "voters" / "a.json").write_text("{")
    made(tmp_path, "without-voters")
    (tmp_path / "a-file").write_text("")
    assert found(tmp_path) == []
    assert found(tmp_path / "missing") == []
    write_journal(made(tmp_path, "goes-on", "a"))
    assert found(tmp_path) == ["goes-on"]


@pytest.mark.parametrize("there", ["nobody", "one that leads nothing", "one of another job"])
def test_where_nobody_says_that_it_leads_the_run_it_does_not_go_on(tmp_path: Path, there: str) -> None:
    async def look() -> coming_back.Earlier | None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            where = listener.getsockname()[1] if there != "nobody" else unused_port()
            made(tmp_path, "r", "a", voters=(Voter("a", "127.0.0.1", 1), Voter("b", "127.0.0.1", where)))
            door = Door(SECRET if there != "one of another job" else b"o" * 32, listener)
            await door.open()
            try:
                meeting = Several(host="127.0.0.1", port=1, nodes=3, name="a", secret=SECRET)
                return await coming_back.find(str(tmp_path), meeting, leaderless_s=1.5)
            finally:
                door.close()

    began_s = time.monotonic()
    assert asyncio.run(look()) is None
    waited_s = time.monotonic() - began_s
    assert (waited_s >= 1.5) == (there == "one that leads nothing"), "only that one may be about to lead"


def test_a_vote_holds_where_others_can_find_it() -> None:
    record = Record(run_id="r", name="a", boot=boot_id(), voters=(Voter("a", "h", 7), Voter("b", "h", 8)))
    assert why_void(record, "r", 7) == ""
    assert "port 7, and it listens on 9" in why_void(record, "r", 9)
    assert "booted" in why_void(msgspec.structs.replace(record, boot="earlier"), "r", 7)


def offers(roles: RoleJob, name: str) -> int:
    return sum(line["event"]["type"] == "node_offered" and line["event"]["node"] == name for line in roles.journal())


@pytest.mark.timeout(280)
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
