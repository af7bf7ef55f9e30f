"""SIGTERM to the node that leads a job of several roles, with `--on-sigterm node`: another leads on, and it leaves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from jobs import kill, wait_for
from role_jobs import RoleJob, nodes_of, role_job, three_nodes

from robust_run.orchestrator.rules.raft.state import Followers
from robust_run.orchestrator.succession import handing_over
from robust_run.orchestrator.succession.handing_over import NOBODY_FOLLOWS, HandOver

NAMES = ("trainer-0", "rollout-0", "rollout-1")
TOLD = 128 + signal.SIGTERM


class Voters:
    """What a node that leads knows of the others."""

    def __init__(self) -> None:
        self.leads, self.is_over = True, False
        self.others: Followers = "ready"
        self.log: list[object] = []

    def may_act(self) -> bool:
        return self.leads

    def followers(self) -> Followers:
        return self.others

    def after_commit(self, act: Callable[[], None]) -> None:
        act()

    def resign(self) -> None:
        self.log.append("resigned")

    def end_job(self, number: int, by: str) -> None:
        self.log.append(("ends", number, by))

    def note(self, why: str) -> None:
        self.log.append(("noted", why))


def led(act: Callable[[Voters, HandOver], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Let a node lead; return what it did, without what it said."""
    monkeypatch.setattr(handing_over, "TOGETHER_S", 0.05)
    monkeypatch.setattr(handing_over, "LOOK_S", 0.02)
    voters, said = Voters(), []

    async def run() -> None:
        await act(voters, HandOver(voters, voters.end_job, voters.note, said.append))

    asyncio.run(run())
    voters.log += ["said that nobody follows"] if NOBODY_FOLLOWS in said else []
    return voters.log


NOTED, STAYS = ("noted", "it was sent SIGTERM"), ("noted", "")


def test_it_leads_on_for_a_moment_and_then_resigns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(voters: Voters, hand_over: HandOver) -> None:
        hand_over.told(signal.SIGTERM, "")
        assert voters.log == [NOTED], "whatever becomes of this process, the next one leaves"
        await asyncio.sleep(0.2)

    assert led(act, monkeypatch) == [NOTED, "resigned"]


def test_asked_once_more_it_resigns_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(voters: Voters, hand_over: HandOver) -> None:
        hand_over.told(signal.SIGTERM, "")
        hand_over.told(signal.SIGTERM, "")
        assert voters.log == [NOTED], "some tell a process and its group"
        monkeypatch.setattr(handing_over, "SAME_BREATH_S", 0.0)
        hand_over.told(signal.SIGTERM, "")
        assert voters.log == [NOTED, "resigned"]
        await asyncio.sleep(0.2)

    assert led(act, monkeypatch) == [NOTED, "resigned"]


@pytest.mark.parametrize(("number", "by"), [(signal.SIGINT, ""), (signal.SIGTERM, "the time limit")])
def test_what_is_about_the_job_ends_it(monkeypatch: pytest.MonkeyPatch, number: int, by: str) -> None:
    async def act(voters: Voters, hand_over: HandOver) -> None:
        hand_over.told(signal.SIGTERM, "")
        hand_over.told(number, by)
        await asyncio.sleep(0.2)

    assert led(act, monkeypatch) == [NOTED, STAYS, ("ends", number, by)]


def test_where_nobody_could_lead_on_the_job_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(voters: Voters, hand_over: HandOver) -> None:
        voters.others = "none"
        hand_over.told(signal.SIGTERM, "")

    assert led(act, monkeypatch) == [STAYS, ("ends", signal.SIGTERM, ""), "said that nobody follows"]


def test_a_voter_that_is_away_for_a_moment_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(voters: Voters, hand_over: HandOver) -> None:
        voters.others = "not yet"
        hand_over.told(signal.SIGTERM, "")
        voters.others = "ready"
        await asyncio.sleep(0.2)

    assert led(act, monkeypatch) == [NOTED, "resigned"]


@pytest.mark.parametrize("again", [False, True], ids=["", "asked once more"])
def test_a_job_that_has_ended_meanwhile_stays_as_it_ended(monkeypatch: pytest.MonkeyPatch, again: bool) -> None:
    async def act(voters: Voters, hand_over: HandOver) -> None:
        hand_over.told(signal.SIGTERM, "")
        voters.is_over = True
        if again:
            hand_over.told(signal.SIGTERM, "")
        await asyncio.sleep(0.2)

    assert led(act, monkeypatch) == [NOTED]


def test_where_all_others_leave_meanwhile_the_job_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(voters: Voters, hand_over: HandOver) -> None:
        hand_over.told(signal.SIGTERM, "")
        voters.others = "not yet"
        await asyncio.sleep(0.2)

    assert led(act, monkeypatch) == [NOTED, STAYS, ("ends", signal.SIGTERM, ""), "said that nobody follows"]


def test_a_leader_that_is_not_sure_to_lead_decides_nothing_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(voters: Voters, hand_over: HandOver) -> None:
        hand_over.told(signal.SIGTERM, "")
        voters.leads = False
        await asyncio.sleep(0.2)
        assert voters.log == [NOTED]
        voters.leads = True
        await asyncio.sleep(0.2)

    assert led(act, monkeypatch) == [NOTED, "resigned"]


def has_left(told: RoleJob, *others: RoleJob, count: int) -> None:
    """Check that a job goes on without the node that was told to leave, to its good end. The node says so, and is not missed."""
    wait_for(lambda: any(line["event"]["type"] == "node_leads" for line in told.journal()), "another to lead")
    (told.folder / "not-yet").unlink()
    assert told.job.finish() == TOLD, told.job.err
    for other in others:
        assert other.job.finish() == 0, other.job.err
    said = "".join(other.job.err for other in others)
    assert "leads the job from here (term 2)" in said
    assert "a leaves: it was sent SIGTERM" in said
    assert "a is gone: it was sent SIGTERM" in said
    history = json.loads((told.folder / "history").read_text())
    assert sorted(map(int, history)) == list(range(count))
    for job in (told, *others):
        job.job.assert_nothing_left()


@pytest.mark.timeout(600)
def test_another_node_leads_on_and_only_what_ran_on_the_first_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "not-yet").touch()
    with three_nodes(tmp_path, 60, "--on-sigterm", "node") as (a, b, c):
        for name in NAMES:
            a.pid(name)
        a.trained(10)
        (restarted, *_) = [name for name, nodes in nodes_of(a).items() if nodes == ["a"]]
        kill(a.launcher(restarted.removesuffix(".1")))
        a.pid(restarted.removesuffix(".1"), "2.0")
        before = {name: max(a.ran(name)) for name in NAMES}
        on_a = {name for name in NAMES if nodes_of(a)[f"{name}.{before[name][0]}"] == ["a"]}
        a.job.signal(signal.SIGTERM)
        os.kill(a.leader(), signal.SIGTERM)  # as systemd does, which tells every process of a service
        has_left(a, b, c, count=60)
        assert "leaves the job in 5 s" in a.job.err
        assert "page:" not in a.job.err, "the job is not over when its first node leaves"
        assert "is started again" not in a.job.err
        for name in NAMES:
            assert (max(a.ran(name)) > before[name]) == (name in on_a)


@pytest.mark.timeout(600)
def test_a_leader_that_is_killed_while_it_waits_leaves_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "not-yet").touch()
    with three_nodes(tmp_path, 60, "--on-sigterm", "node") as (a, b, c):
        a.trained(10)
        a.job.signal(signal.SIGTERM)
        time.sleep(1.5)
        kill(a.leader())
        a.job.signal(signal.SIGTERM)  # and asked once more, while it has not found the new leader
        has_left(a, b, c, count=60)


def test_where_all_nodes_are_told_the_job_ends(tmp_path: Path) -> None:
    (tmp_path / "not-yet").touch()
    with three_nodes(tmp_path, 60, "--on-sigterm", "node") as (a, b, c):
        a.trained(10)
        for job in (a, b, c):
            job.job.signal(signal.SIGTERM)
        assert [job.job.finish() for job in (a, b, c)] == [TOLD] * 3
        assert NOBODY_FOLLOWS in a.job.err
        for job in (a, b, c):
            job.job.assert_nothing_left()


def test_without_the_option_or_enough_nodes_the_job_ends(tmp_path: Path) -> None:
    (tmp_path / "not-yet").touch()
    with role_job(tmp_path, 60, env={"ROBUST_ON_SIGTERM": "node"}) as roles:
        roles.trained(10)
        roles.job.signal(signal.SIGTERM)
        assert roles.job.finish() == TOLD
        assert "--on-sigterm node needs 3 nodes with --roles" in roles.job.err
