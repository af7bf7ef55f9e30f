"""Nodes on one machine that were not told which of them leads: one gets the port, the others join it; a stranger is refused."""

from __future__ import annotations

import signal
import socket
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from jobs import running, script, unused_port, wait_for

from robust_run.orchestrator.listening import hold
from robust_run.orchestrator.meeting import is_this_machine
from robust_run.orchestrator.rules.looking import LEADERLESS_S, STRANGE_S, limit_s, why_strange


def meets(port: int, nodes: int = 2, name: str = "r") -> tuple[str, ...]:
    where = f"127.0.0.1:{port}"
    return ("--nnodes", str(nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", where, "--rdzv-id", name)


def roles_file(folder: Path, text: str = "") -> None:
    (folder / "roles.toml").write_text(
        f'[roles.a]\ncommand = "a.py"\nmembers = 2\nrestart = "alone"\nends = "job"\n{text}'
    )
    script(folder, "", "a.py")


@pytest.mark.parametrize("nodes", [2, 3])
def test_nodes_that_are_started_at_the_same_moment_are_one_job(tmp_path: Path, nodes: int) -> None:
    roles_file(tmp_path)
    port = unused_port()
    with ExitStack() as all_of_them:
        jobs = [
            all_of_them.enter_context(
                running(tmp_path, "--roles", "roles.toml", *meets(port, nodes), "--node-name", f"x{number}")
            )
            for number in range(nodes)
        ]
        assert [job.finish() for job in jobs] == [0] * nodes, [job.err for job in jobs]
        assert sum("leads the job at" in job.err for job in jobs) == 1
        assert len(list(tmp_path.glob("runs/*/roles.jsonl"))) == 1


def test_who_loses_the_race_for_the_port_waits_for_a_leader_that_does_not_answer_yet(tmp_path: Path) -> None:
    """It listens, and takes nobody in: it may still import."""
    roles_file(tmp_path)
    with closing(hold(0)) as early:
        port = early.getsockname()[1]
        early.settimeout(60)
        with running(tmp_path, "--roles", "roles.toml", *meets(port), "--node-name", "late") as late:
            came, _ = early.accept()
            early.close()
            with running(tmp_path, "--roles", "roles.toml", *meets(port), "--node-name", "first") as first:
                came.close()
                assert [first.finish(), late.finish()] == [0, 0], first.err + late.err
                assert "first leads the job at" in first.err


def test_a_strange_program_at_the_port_is_said_in_a_line(tmp_path: Path) -> None:
    roles_file(tmp_path)
    with closing(hold(0)) as strange:
        port = strange.getsockname()[1]

        def answer() -> None:
            there, _ = strange.accept()
            with there:
                there.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                there.recv(1 << 16)

        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        with running(tmp_path, "--roles", "roles.toml", *meets(port)) as job:
            assert job.finish() == 1
            assert f"port {port} of this machine, where the nodes are to meet, cannot be listened on" in job.err
            assert "nobody of this job answers there" in job.err
            assert "give all nodes an endpoint with another one" in job.err
            assert not (tmp_path / "runs" / job.run_id).exists()
        answering.join(60)


def test_another_job_at_the_port_is_not_joined(tmp_path: Path) -> None:
    roles_file(tmp_path)
    port = unused_port()
    with running(tmp_path, "--roles", "roles.toml", *meets(port, name="one"), "--node-name", "a") as first:
        wait_for(lambda: list(tmp_path.glob("runs/*/roles.place")), "a to lead")
        with running(tmp_path, "--roles", "roles.toml", *meets(port, name="two"), "--node-name", "b") as second:
            assert second.finish() == 1
            assert "who answers does not know this job's secret" in second.err
        first.signal(signal.SIGTERM)
        assert first.finish() == 143


def test_who_is_silent_is_waited_for_a_minute_where_it_has_our_port_and_longer_elsewhere() -> None:
    assert limit_s(600.0, taken="in use", leaves="", is_in=False) == STRANGE_S
    assert limit_s(30.0, taken="in use", leaves="", is_in=False) == 30.0
    assert limit_s(600.0, taken="", leaves="", is_in=False) == 600.0
    assert limit_s(600.0, taken="in use", leaves="SIGTERM", is_in=False) == LEADERLESS_S
    assert limit_s(600.0, taken="in use", leaves="SIGTERM", is_in=True) == 600.0, "the job may have moved"


def test_who_was_let_in_once_has_found_its_job() -> None:
    assert why_strange("in use", "nonsense", is_in=False) == "in use; nobody of this job answers there: nonsense"
    assert why_strange("in use", "", is_in=False) == "in use; nobody of this job answers there"
    assert why_strange("in use", None, is_in=False) == "", "a leader that refuses this node is one"
    assert why_strange("in use", "", is_in=True) == ""
    assert why_strange("", "nonsense", is_in=False) == "", "on another machine"


def test_one_of_two_holds_a_port_and_a_name_of_elsewhere_is_not_this_machine() -> None:
    with closing(hold(0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            hold(port)
        with closing(hold(port, 0)) as other:
            assert other.getsockname()[1] != port
        with closing(socket.create_connection(("127.0.0.1", port))):
            assert is_this_machine("127.0.0.1", port)
    assert not is_this_machine("192.0.2.1", 1)
