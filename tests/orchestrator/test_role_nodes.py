"""Jobs of several roles on two nodes: two launchers on this machine that go by other names."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from authorities import node_options
from jobs import kill, running, script, unused_port, wait_for
from role_jobs import FILE, ROLLOUT, TRAINER, RoleJob, nodes_of

from robust_run.orchestrator.model.node_words import KILL_S, LEASE_S, JobOver
from robust_run.orchestrator.nodes.telling import how_it_ended
from robust_run.process_start import started_at

LONG_S = 120


@contextmanager
def two_nodes(
    folder: Path, count: int = 60, text: str = "", options: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> Iterator[tuple[RoleJob, RoleJob]]:
    """Start a job on nodes a and b; a leads."""
    script(folder, TRAINER.replace("COUNT", str(count)), "trainer.py")
    script(folder, ROLLOUT, "rollout.py")
    (folder / "count").write_text(str(count))
    (folder / "roles.toml").write_text(text or FILE % "")
    meets = (
        "--nnodes",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"127.0.0.1:{unused_port()}",
        "--rdzv-id",
        "r",
        *options,
    )
    with running(folder, "--roles", "roles.toml", *meets, "--node-name", "a", env=env) as first:
        wait_for(lambda: list(folder.glob("runs/*/roles.place")), "a to lead")
        with running(folder, "--roles", "roles.toml", *meets, "--node-name", "b", env=env) as second:
            yield RoleJob(first, folder), RoleJob(second, folder)


def test_members_are_spread_and_each_node_ends_with_the_job(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as (a, b):
        a.done()
        assert b.job.finish() == 0, b.job.err
        assert {name for nodes in nodes_of(a).values() for name in nodes} == {"a", "b"}
        b.job.assert_nothing_left()


def test_a_node_that_is_told_to_leave_gives_its_members_to_the_other(tmp_path: Path) -> None:
    with two_nodes(tmp_path, count=200) as (a, b):
        a.trained(20)
        on_b = [name for name, nodes in nodes_of(a).items() if nodes == ["b"]]
        assert on_b
        b.job.signal(signal.SIGTERM)
        assert b.job.finish() == 143, b.job.err
        b.job.assert_nothing_left()
        a.done()
        assert "b leaves: it was sent SIGTERM" in a.job.err
        for name in on_b:
            assert nodes_of(a)[name.replace(".1", ".2")] == ["a"]
        assert a.job.err.count("its node b is gone (it was sent SIGTERM); it is started anew\n") == len(on_b)


def test_when_the_leader_is_killed_the_other_node_s_workers_go_on(tmp_path: Path) -> None:
    with two_nodes(tmp_path, count=120) as (a, b):
        names = ("trainer-0", "rollout-0", "rollout-1")
        pids = {name: a.pid(name) for name in names}
        a.trained(10)
        kill(a.leader())
        a.trained(60)
        a.done()
        assert b.job.finish() == 0, b.job.err
        assert {name: a.ran(name) for name in names} == {name: {"1.0": pid} for name, pid in pids.items()}


def test_what_follows_on_a_node_is_killed_and_comes_back_to_its_launchers(tmp_path: Path) -> None:
    with two_nodes(tmp_path, count=120) as (a, b):
        names = ("trainer-0", "rollout-0", "rollout-1")
        pids = {name: a.pid(name) for name in names}
        a.trained(10)
        kill(b.leader())
        a.trained(60)
        a.done()
        assert b.job.finish() == 0, b.job.err
        assert {name: a.ran(name) for name in names} == {name: {"1.0": pid} for name, pid in pids.items()}


@pytest.mark.timeout(LONG_S + 60)
def test_a_node_that_stands_still_is_gone_only_when_its_own_guard_has_killed_what_ran_there(tmp_path: Path) -> None:
    """What follows the leader is stopped: it cannot end its members itself. Nobody runs twice."""
    (tmp_path / "hold").touch()
    with two_nodes(tmp_path) as (a, b):
        for member in ("trainer-0", "rollout-0", "rollout-1"):
            a.pid(member)
        on_b = [name for name, nodes in nodes_of(a).items() if nodes == ["b"]]
        pids = {name: a.pid(name.partition(".")[0]) for name in on_b}
        before = {name: (pid, started_at(pid)) for name, pid in pids.items()}  # numbers of processes come again
        os.kill(b.leader(), signal.SIGSTOP)
        for name in on_b:
            member = name.partition(".")[0]
            wait_for(lambda one=member: a.ran(one).get("2.0"), f"{member} on a", LONG_S)  # type: ignore[misc]
            pid, then = before[name]
            assert started_at(pid) != then, "it ran twice"
        (tmp_path / "hold").unlink()
        a.done()
        assert "b is gone: it has been silent for 45 s" in a.job.err
        os.kill(b.leader(), signal.SIGCONT)
        b.job.signal(signal.SIGTERM)
        b.job.finish()


@pytest.mark.timeout(LONG_S + 60)
def test_a_node_that_stood_still_for_half_a_minute_comes_back_and_nothing_has_failed(tmp_path: Path) -> None:
    """Its guard has ended what ran there. Old answers of the leader, which it finds when it goes on, renew nothing."""
    (tmp_path / "hold").touch()
    with two_nodes(tmp_path) as (a, b):
        for member in ("trainer-0", "rollout-0", "rollout-1"):
            a.pid(member)
        on_b = [name for name, nodes in nodes_of(a).items() if nodes == ["b"]]
        pids = {name: a.pid(name.partition(".")[0]) for name in on_b}
        before = {name: (pid, started_at(pid)) for name, pid in pids.items()}
        follower = b.leader()
        os.kill(follower, signal.SIGSTOP)
        time.sleep(LEASE_S + KILL_S + 5)
        assert [name for name, (pid, then) in before.items() if started_at(pid) == then] == [], (
            "its guard has killed them"
        )
        os.kill(follower, signal.SIGCONT)
        for name in on_b:
            member = name.partition(".")[0]
            wait_for(lambda one=member: a.ran(one).get("2.0"), f"{member} again", LONG_S)  # type: ignore[misc]
        (tmp_path / "hold").unlink()
        a.done()
        assert b.job.finish() == 0, b.job.err
        assert "b is gone" not in a.job.err


def test_who_waits_for_a_leader_ends_when_told_to(tmp_path: Path) -> None:
    (tmp_path / "roles.toml").write_text('[roles.a]\ncommand = "a.py"\n')
    meets = (
        "--nnodes",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"127.0.0.1:{unused_port()}",
        "--rdzv-id",
        "r",
    )
    with running(tmp_path, "--roles", "roles.toml", *meets, "--rdzv-conf", "is_host=0") as waiting:
        roles = RoleJob(waiting, tmp_path)
        roles.leader()
        time.sleep(1.0)
        waiting.signal(signal.SIGINT)
        assert waiting.finish(30) == 130
        waiting.assert_nothing_left()


def test_a_port_that_is_taken_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "roles.toml").write_text('[roles.a]\ncommand = "a.py"\n')
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        meets = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "r")
        with running(tmp_path, "--roles", "roles.toml", *meets, "--rdzv-conf", "is_host=1") as job:
            assert job.finish() == 1
            assert f"port {port} of this machine, where the nodes are to meet, cannot be listened on" in job.err
            assert "Traceback" not in job.err


def test_a_run_directory_that_others_can_write_is_not_used_on_any_node(tmp_path: Path) -> None:
    """It will hold the job's secret, and what workers print."""
    (tmp_path / "roles.toml").write_text('[roles.a]\ncommand = "a.py"\n')
    script(tmp_path, "import time\ntime.sleep(60)", "a.py")
    meets = (
        "--nnodes",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"127.0.0.1:{unused_port()}",
        "--rdzv-id",
        "r",
    )
    with running(tmp_path, "--roles", "roles.toml", *meets, "--node-name", "a") as first:
        wait_for(lambda: list(tmp_path.glob("runs/*/roles.place")), "a to lead")
        there = tmp_path / "elsewhere" / first.run_id
        there.mkdir(parents=True)
        there.chmod(0o777)
        with running(
            tmp_path, "--roles", "roles.toml", *meets, "--node-name", "b", log_dir=tmp_path / "elsewhere"
        ) as second:
            assert second.finish() == 2
            assert "others can write to it" in second.err
            assert list(there.glob("*.place")) == []
        first.signal(signal.SIGTERM)
        assert first.finish() == 143


def test_a_member_of_two_nodes_is_one_world(tmp_path: Path) -> None:
    script(
        tmp_path,
        """
        import os
        from pathlib import Path
        import torch.distributed as dist
        from robust_run import roles
        dist.init_process_group("gloo")
        Path(f"world-{dist.get_world_size()}-{dist.get_rank()}-{roles.me().rank}").touch()
        dist.barrier()
        """,
        "world.py",
    )
    text = '[roles.world]\ncommand = "world.py"\nnodes = 2\nends = "job"\n'
    with two_nodes(tmp_path, text=text) as (a, b):
        assert a.job.finish() == 0, a.job.err
        assert b.job.finish() == 0, b.job.err
        assert sorted(each.name for each in tmp_path.glob("world-*")) == ["world-2-0-0", "world-2-1-1"]


def test_a_member_of_two_nodes_trusts_what_the_job_s_nodes_trust(tmp_path: Path) -> None:
    """Its launchers have the same secret and the same certificates; there is no other secret on these machines."""
    token = tmp_path / "token"
    token.write_text("a secret of this job and of no other\n")
    token.chmod(0o600)
    home = tmp_path / "home"
    script(
        tmp_path,
        """
        from pathlib import Path
        from robust_run import roles
        me = roles.me()
        queue = roles.queue("q")
        queue.put(b"from %d" % me.rank, key=str(me.rank))
        Path(f"done-{me.rank}").touch()
        """,
        "world.py",
    )
    text = '[roles.world]\ncommand = "world.py"\nnodes = 2\nends = "job"\n'
    trust = ("--token-file", str(token), *node_options(tmp_path))
    env = {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "ROBUST_TOKEN": ""}
    with two_nodes(tmp_path, text=text, options=trust, env=env) as (a, b):
        assert a.job.finish() == 0, a.job.err
        assert b.job.finish() == 0, b.job.err
        assert sorted(each.name for each in tmp_path.glob("done-*")) == ["done-0", "done-1"]
        assert not list(home.rglob("token")), "no other secret was made"


def test_who_speaks_no_tls_is_not_let_in(tmp_path: Path) -> None:
    (tmp_path / "roles.toml").write_text('[roles.a]\ncommand = "a.py"\n')
    script(tmp_path, "import time\ntime.sleep(60)", "a.py")
    where = ("--rdzv-endpoint", f"127.0.0.1:{unused_port()}", "--rdzv-id", "r", "--rdzv-conf", "join_timeout=5")
    meets = ("--roles", "roles.toml", "--nnodes", "2", "--rdzv-backend", "c10d", *where)
    with running(tmp_path, *meets, "--node-name", "a", *node_options(tmp_path)) as first:
        wait_for(lambda: list(tmp_path.glob("runs/*/roles.place")), "a to lead")
        with running(tmp_path, *meets, "--node-name", "b") as second:
            assert second.finish() == 69
        assert first.finish() == 1
        assert "1 of 2 nodes came" in first.err


def test_a_node_with_another_secret_is_not_let_in(tmp_path: Path) -> None:
    (tmp_path / "roles.toml").write_text('[roles.a]\ncommand = "a.py"\n')
    script(tmp_path, "import time\ntime.sleep(60)", "a.py")
    meets = (
        "--nnodes",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"127.0.0.1:{unused_port()}",
        "--rdzv-id",
        "r",
    )
    with running(
        tmp_path, "--roles", "roles.toml", *meets, "--node-name", "a", env={"ROBUST_TOKEN": "a" * 40}
    ) as first:
        wait_for(lambda: list(tmp_path.glob("runs/*/roles.place")), "a to lead")
        with running(
            tmp_path, "--roles", "roles.toml", *meets, "--node-name", "b", env={"ROBUST_TOKEN": "b" * 40}
        ) as second:
            assert second.finish() == 1
            assert "does not know this job's secret" in second.err
        first.signal(signal.SIGTERM)
        assert first.finish() == 143


def test_each_node_says_how_the_job_ended(tmp_path: Path) -> None:
    """Also where nobody asked for it in its own shell: the guard of the node that leads was killed."""
    (tmp_path / "hold").touch()
    with two_nodes(tmp_path) as (a, b):
        for member in ("trainer-0", "rollout-0", "rollout-1"):
            a.pid(member)
        os.kill(a.job.pid, signal.SIGKILL)
        assert b.job.finish() == 143, b.job.err
        assert b.job.err.count("ended: the end of the job's guard asked for it") == 1
        b.job.assert_nothing_left()


def test_an_end_is_said_in_a_line_where_nobody_of_the_same_output_says_it() -> None:
    over = JobOver(code=143, sentence="SIGTERM asked for it")
    assert how_it_ended("tiny", over, is_said=False) == "tiny ended: SIGTERM asked for it"
    assert how_it_ended("tiny", over, is_said=True) == ""
    assert how_it_ended("tiny", JobOver(code=0, sentence="a is done"), is_said=False) == ""
    assert how_it_ended("", JobOver(code=1), is_said=False) == "the job ended: exit code 1, as the node that leads says"
