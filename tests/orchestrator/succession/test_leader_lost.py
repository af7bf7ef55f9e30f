"""The node that leads a job of several roles is lost, cut off, or stands still: another leads on."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from hosts import Host, need_hosts
from jobs import kill, wait_for
from role_hosts import HostedRoles, roles_on_hosts
from role_jobs import three_nodes

LONG_S = 150
ROBUST = [sys.executable, "-c", "from robust_run.robust_cli import main; main()"]


def test_when_its_process_is_killed_the_same_node_leads_on_and_no_worker_is_touched(tmp_path: Path) -> None:
    with three_nodes(tmp_path, count=120) as (a, b, c):
        names = ("trainer-0", "rollout-0", "rollout-1")
        pids = {name: a.pid(name) for name in names}
        a.trained(10)
        kill(a.leader())
        a.trained(60)
        assert a.job.finish() == 0, a.job.err
        assert [b.job.finish(), c.job.finish()] == [0, 0], b.job.err + c.job.err
        assert {name: a.ran(name) for name in names} == {name: {"1.0": pid} for name, pid in pids.items()}
        assert sorted(map(int, json.loads((tmp_path / "history").read_text()))) == list(range(120))
        assert "leads the job" not in b.job.err + c.job.err


@pytest.mark.timeout(LONG_S + 60)
def test_a_leader_that_stood_still_finds_out_that_it_is_deposed_before_it_acts(tmp_path: Path) -> None:
    with three_nodes(tmp_path, count=150) as (a, b, c):
        names = ("trainer-0", "rollout-0", "rollout-1")
        for name in names:
            a.pid(name)
        a.trained(10)
        old = a.leader()
        os.kill(old, signal.SIGSTOP)
        wait_for(lambda: any("2.0" in a.ran(name) for name in names), "what ran on a to run elsewhere", LONG_S)
        os.kill(old, signal.SIGCONT)
        for job in (b, c, a):
            assert job.job.finish(LONG_S) == 0, job.job.err
        assert sorted(map(int, json.loads((tmp_path / "history").read_text()))) == list(range(150))
        assert "members are killed" in a.job.err, "its guard has seen to that, before they were started elsewhere"
        assert "a does not lead the job any more" in a.job.err
        assert "leads the job from here (term 2)" in b.job.err + c.job.err
        assert {which for name in names for which in a.ran(name)} <= {"1.0", "2.0"}
        for job in (a, b, c):
            job.job.assert_nothing_left()


@pytest.fixture
def hosts() -> None:
    need_hosts()


def another(roles: HostedRoles) -> Host:
    """Return the host that leads on, once one does."""

    def who() -> Host | None:
        return next(
            (host for host in roles.cluster if f"{host.name} leads the job from here" in roles.said(host)), None
        )

    found: Host = wait_for(who, "another to lead", LONG_S)
    return found


def others_keep_their_workers(roles: HostedRoles, lost: str) -> None:
    """Check that members ran once, but for those of the node that was lost."""
    leads = another(roles)
    for name, nodes in roles.nodes(leads).items():
        member, _, serial = name.rpartition(".")
        assert serial == "1" or lost in roles.nodes(leads)[f"{member}.{int(serial) - 1}"], f"{name} on {nodes}"


@pytest.mark.timeout(LONG_S + 120)
@pytest.mark.parametrize("is_shared", [True, False], ids=["shared folder", "disks of their own"])
def test_the_node_that_leads_loses_its_power_and_the_job_ends_well(
    tmp_path: Path, hosts: None, is_shared: bool
) -> None:
    with roles_on_hosts(tmp_path, 150, is_shared=is_shared) as roles:
        one, two, three = roles.cluster
        roles.trained(20)
        one.power_off()
        another(roles)
        for host in (two, three):
            view = wait_for(lambda host=host: led(roles, host), "robust roles to find who leads")
            assert view["phase"] == "going"
        leads = another(roles)
        roles.done(two, three)
        others_keep_their_workers(roles, one.name)
        assert (roles.run(leads) / "report.html").exists(), "who founded the job cannot leave its page"


def led(roles: HostedRoles, host: Host) -> dict[str, object] | None:
    """Return what `robust roles` says on a host, once a leader answers."""
    said = host.run([*ROBUST, "roles", "show", "--json", str(roles.run(host))], check=False)
    view = json.loads(said.stdout) if said.returncode == 0 else {}
    return view if view.get("is_led") else None


@pytest.mark.timeout(LONG_S + 120)
def test_the_node_that_leads_is_cut_off_and_comes_back_as_one_of_many(tmp_path: Path, hosts: None) -> None:
    with roles_on_hosts(tmp_path, 150) as roles:
        one, two, three = roles.cluster
        (tmp_path / "not-yet").touch()
        roles.trained(20)
        one.cut()
        leads = another(roles)
        wait_for(lambda: f"{one.name} does not lead the job any more" in roles.said(one), "the old one to stop")
        wait_for(lambda: f"{one.name} is gone" in roles.said(leads), "the old one to be gone", LONG_S)
        before = roles.offers(leads, one)
        one.heal()
        wait_for(lambda: roles.offers(leads, one) > before, "the old one to come back", LONG_S)
        (tmp_path / "not-yet").unlink()
        roles.done(two, three, one)
        others_keep_their_workers(roles, one.name)


@pytest.mark.timeout(LONG_S + 120)
def test_a_cut_that_is_short_moves_the_leadership_and_nothing_else(tmp_path: Path, hosts: None) -> None:
    with roles_on_hosts(tmp_path, 400) as roles:
        one, two, three = roles.cluster
        roles.trained(20)
        one.cut()
        leads = another(roles)
        one.heal()
        roles.done(two, three, one)
        assert {name.rpartition(".")[2] for name in roles.nodes(leads)} == {"1"}, "no member was started again"
