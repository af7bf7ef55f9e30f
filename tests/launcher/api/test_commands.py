"""`robust status` and its kin as a user types them: of live jobs, of dead ones, and of none."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from controllers import refusing
from robust_forks import RobustForks

from robust_run.launcher.model.events import SignalReceived
from robust_run.launcher.model.node_events import NodeEvicted
from robust_run.launcher.operator.reading.life_signs import is_local
from robust_run.launcher.operator.reading.place import ApiEndpoint, this_boot, write_place
from robust_run.launcher.operator.server.server import HttpPlace
from robust_run.launcher.records.token import write_token

Serve = Callable[..., Any]
Robust = Callable[..., subprocess.CompletedProcess[str]]
TCP = HttpPlace(address="127.0.0.1", name="127.0.0.1")


def done(result: subprocess.CompletedProcess[str]) -> str:
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def refused(result: subprocess.CompletedProcess[str], exit_code: int) -> str:
    """A refusal is one line on stderr, nothing on stdout."""
    assert (result.returncode, result.stdout) == (exit_code, "")
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("robust: ")
    return result.stderr


# --- a live job ---


@pytest.mark.parametrize("named", ["", "run", "robust-runs/run"])
def test_status_of_the_newest_a_named_and_a_given_run(serve: Serve, robust: Robust, named: str) -> None:
    serve()
    lines = done(robust("status", *filter(None, [named]))).splitlines()
    assert lines[0] == "running: attempt 0 on 4 nodes (32 ranks); up 1 h 0 min"
    assert lines[1].startswith("  job run (train.py), needs 4 nodes, started 1 h 0 min ago; controller")


def test_status_from_inside_a_job(serve: Serve, robust: Robust, tmp_path: Path) -> None:
    served = serve()
    (tmp_path / "robust-runs").rename(tmp_path / "elsewhere")
    path = str(tmp_path / "elsewhere" / "run")
    served.run_directory = Path(path)
    assert robust("status").returncode == 1
    assert robust("status", env={"ROBUST_RUN_DIR": path}).returncode == 0


def test_nodes_are_a_table(serve: Serve, robust: Robust) -> None:
    serve()
    lines = done(robust("nodes")).splitlines()
    assert lines[0].split()[:3] == ["NODE", "STANDING", "RANKS"]
    assert lines[2].split()[:3] == ["gpu-2", "active", "8-15"]


def test_everything_is_json_on_request(serve: Serve, robust: Robust) -> None:
    served = serve()
    assert json.loads(done(robust("status", "--json")))["world_size"] == 32
    assert len(json.loads(done(robust("nodes", "--json")))["nodes"]) == 4
    assert json.loads(done(robust("evict", "gpu-2", "--json")))["node"] == "gpu-2"
    assert json.loads(done(robust("readmit", "gpu-2", "--json")))["done"].startswith("readmitted")
    lines = done(robust("events", "--json")).splitlines()
    assert lines == Path(served.controller.journal_path).read_text().splitlines()[1:]
    assert json.loads(done(robust("stop", "--json")))["done"].startswith("stopping")


def test_evict_says_what_it_does_and_warns(serve: Serve, robust: Robust) -> None:
    served = serve()
    result = robust("evict", "gpu-2", "--reason", "bad memory")
    assert result.returncode == 0
    assert result.stdout.startswith("robust: evicted gpu-2")
    assert result.stderr == ("robust: warning: 3 of 4 needed nodes left, 0 standbys: the job will wait for a node\n")
    event = served.controller.told[-1]
    assert isinstance(event, NodeEvicted)
    assert event.reason == "bad memory"
    assert event.by.endswith(f"@{socket.gethostname()}")


def test_a_refusal_is_one_line_and_exit_code_1(serve: Serve, robust: Robust) -> None:
    serve()
    assert "did you mean gpu-2" in refused(robust("evict", "gpu2"), 1)
    assert "not evicted" in refused(robust("readmit", "gpu-2"), 1)


def test_restart_and_stop(serve: Serve, robust: Robust) -> None:
    served = serve()
    assert done(robust("restart", "--reason", "stuck")).startswith("robust: attempt 0 is ended")
    served.on_loop(served.controller.end_attempt)
    served.on_loop(served.controller.open)
    assert done(robust("stop")) == "robust: stopping: the workers have 30 s to end\n"
    assert done(robust("stop")).startswith("robust: the job is being stopped already")
    assert done(robust("stop", "--now")) == "robust: stopping: at once\n"


def test_events_can_be_cut_to_the_last_ones(serve: Serve, robust: Robust) -> None:
    serve()
    whole = done(robust("events")).splitlines()
    assert done(robust("events", "-n", "2")).splitlines() == whole[-2:]
    assert "attempt 0 starts: 32 ranks on 4 nodes" in whole[-1]
    assert len(done(robust("events", "--all")).splitlines()) > len(whole)


def test_events_follow_a_job_to_its_end(serve: Serve, robust: Robust) -> None:
    from concurrent.futures import ThreadPoolExecutor

    served = serve()
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(robust, "events", "--follow", "--json")
        served.on_loop(lambda: served.controller.tell(SignalReceived(signal=15)))
        served.on_loop(served.controller.end_attempt)
        served.end()
        result = following.result(60)
    lines = done(result).splitlines()
    assert lines == Path(served.controller.journal_path).read_text().splitlines()[1:]
    assert '"finish"' in lines[-1]


def test_an_action_without_a_name_needs_the_job_to_be_the_only_one(
    serve: Serve, robust: Robust, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        folder = tmp_path / "robust-runs" / name
        folder.mkdir(parents=True)
        serve(folder=folder)
    text = refused(robust("stop"), 2)
    assert "one" in text
    assert "two" in text
    assert done(robust("stop", "two")).startswith("robust: stopping")
    assert done(robust("status")).startswith("stopping")  # the one with the latest news


# --- from another machine ---


def test_a_job_is_reached_by_address_and_token(serve: Serve, robust: Robust, tmp_path: Path, token: str) -> None:
    url = serve(http_place=TCP).place.http
    (tmp_path / "secret").write_text(f"{token}\n")
    (tmp_path / "secret").chmod(0o644)
    why = "others can use the secret in secret (mode 0644): chmod 600 secret"
    assert why in refused(robust("status", "--url", url, "--token-file", "secret"), 2)
    (tmp_path / "secret").chmod(0o600)
    assert done(robust("status", "--url", url, "--token-file", "secret")).startswith("running")
    assert done(robust("status", "--url", url, env={"ROBUST_JOB_TOKEN": token})).startswith("running")
    assert "ROBUST_JOB_TOKEN" in refused(robust("status", "--url", url), 2)
    assert "token" in refused(robust("status", "--url", url, env={"ROBUST_JOB_TOKEN": "wrong"}), 1)
    assert "is no address" in refused(robust("status", "--url", "ftp://x", "--token-file", "secret"), 2)
    assert "is not there" in refused(robust("status", "--url", url, "--token-file", "none"), 2)


def refuses(run_directory: Path) -> None:
    """Leave a socket that refuses, as it does on every machine but the controller's."""
    path = run_directory / "api.sock"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))


def test_a_run_directory_shared_with_another_machine_leads_to_the_web_server(
    serve: Serve, robust: Robust, token: str
) -> None:
    served = serve(http_place=HttpPlace(address="0.0.0.0", name="0.0.0.0"))
    path = served.run_directory
    refuses(path)
    write_place(str(path), msgspec.structs.replace(served.place, host="another", boot="another"))
    said = done(robust("status"))
    assert said.startswith(
        "its controller runs or ran on another, which cannot be asked from here; last known: running"
    )
    assert "next: ask on another: robust status" in said
    assert "--resume" not in said
    write_token(str(path), token)
    assert done(robust("status")).startswith("running")


def test_a_web_server_of_another_machine_alone_is_not_looked_for_on_this_one(
    serve: Serve, robust: Robust, run_directory: Path, token: str
) -> None:
    """What listens at that port here is somebody else, and gets no token."""
    served = serve(http_place=TCP)
    refuses(run_directory)
    write_token(str(run_directory), token)
    write_place(str(run_directory), msgspec.structs.replace(served.place, host="another", boot="another"))
    said = done(robust("status"))
    assert "its controller runs or ran on another, which cannot be asked from here: its web server" in said
    assert "listens on that machine alone; ask there, or start jobs with --http-host 0.0.0.0" in said
    assert "--resume" not in said


@pytest.mark.parametrize("boot", ["another", ""], ids=["another kernel", "a run directory of an older robust-run"])
def test_where_nothing_listens_at_another_machine_nobody_is_told_to_start_it_a_second_time(
    make_controller: Callable[..., Any], robust: Robust, run_directory: Path, token: str, boot: str
) -> None:
    """A firewall refuses as well as a machine on which nothing listens."""
    make_controller().start()
    refuses(run_directory)
    write_token(str(run_directory), token)
    with refusing() as port:
        url = f"http://0.0.0.0:{port}"
        place = ApiEndpoint(socket=str(run_directory / "api.sock"), http=url, pid=1, host="another", boot=boot)
        write_place(str(run_directory), place)
        said = done(robust("status"))
    assert "its controller runs or ran on another" in said
    assert "no controller listens at" in said
    assert "--resume" not in said


def test_a_machine_of_the_same_name_with_another_kernel_is_this_one_only_if_it_has_the_disk(
    make_controller: Callable[..., Any], robust: Robust, run_directory: Path
) -> None:
    make_controller().start()
    refuses(run_directory)
    place = ApiEndpoint(socket=str(run_directory / "api.sock"), pid=1, host=socket.gethostname(), boot="another")
    write_place(str(run_directory), place)
    said = done(robust("status"))
    if is_local(str(run_directory)):  # then it was this very machine
        assert "was started anew since its controller ran" in said
        assert "--resume" in said
    else:
        assert "--resume" not in said
        assert "cannot be asked from here" in said


def test_a_container_that_sees_the_run_directory_at_another_place_asks_the_same_socket(
    serve: Serve, robust: Robust
) -> None:
    served = serve()
    place = msgspec.structs.replace(served.place, host="pod-7", socket="/elsewhere/run/api.sock")
    write_place(str(served.run_directory), place)
    assert done(robust("status")).startswith("running")


def test_an_address_where_nobody_listens_is_one_line(robust: Robust) -> None:
    with refusing() as port:
        result = robust("status", "--url", f"http://127.0.0.1:{port}", env={"ROBUST_JOB_TOKEN": "t"})
    assert "no controller listens at" in refused(result, 1)


def test_an_address_where_something_else_listens_is_one_line(robust: Robust) -> None:
    import threading

    def answer(server: socket.socket) -> None:
        client, _ = server.accept()
        client.recv(4096)
        client.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno!")
        client.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        text = refused(robust("status", "--url", url, env={"ROBUST_JOB_TOKEN": "t"}), 1)
        thread.join(60)
    assert "is no controller of robust-run (HTTP status 404)" in text


# --- dead jobs and none ---


def test_a_job_that_ended_is_read_from_its_journal(make_controller: Callable[..., Any], robust: Robust) -> None:
    controller = make_controller().start(5)
    controller.lose(1)
    controller.tell(SignalReceived(signal=15, by="ann"))
    controller.end_attempt()
    lines = done(robust("status")).splitlines()
    assert lines[0].startswith("stopped with exit code 143 after 2 attempts, ")
    assert lines[0].endswith("stopped by ann")
    assert any("last incident: " in line and "gpu-1" in line for line in lines)
    status = json.loads(done(robust("status", "--json")))
    assert (status["alive"], status["outcome"], status["exit_code"]) == (False, "stopped", 143)
    assert "the job is over: stopped" in done(robust("events", "-f"))
    assert "gpu-1" in done(robust("nodes"))
    told = refused(robust("stop"), 1)
    assert "is over (stopped)" in told
    assert "how it was left" in told


def test_what_a_replaced_controller_still_wrote_does_not_count(
    make_controller: Callable[..., Any], robust: Robust
) -> None:
    controller = make_controller().start()
    lines = Path(controller.journal_path).read_text().splitlines()
    resumed = '{"at":1,"mono":500.0,"term":2,"event":{"type":"controller_resumed","term":2}}'
    stale = '{"at":1,"mono":501.0,"event":{"type":"signal_received","signal":15}}'
    Path(controller.journal_path).write_text("\n".join([*lines, resumed, stale, ""]))
    status = json.loads(done(robust("status", "--json")))
    assert (status["term"], status["stop_asked"]) == (2, False)
    assert status["pid"] == 0, "that of the first controller is not that of this one"
    assert ", pid " not in done(robust("status"))


def test_a_job_whose_controller_was_killed_says_what_continues_it(
    make_controller: Callable[..., Any], robust: Robust, run_directory: Path
) -> None:
    make_controller().start()
    place = ApiEndpoint(socket=str(run_directory / "api.sock"), pid=1, host=socket.gethostname())
    write_place(str(run_directory), place)
    line = done(robust("status")).splitlines()[0]
    assert f"its controller on {socket.gethostname()} is gone" in line
    assert f"robust-run --resume {run_directory} continues it" in line
    assert "gone" in refused(robust("evict", "gpu-1"), 1)


def test_a_controller_whose_socket_was_removed_is_not_called_gone(
    make_controller: Callable[..., Any], robust: Robust, run_directory: Path
) -> None:
    """It holds its journal, and `robust-run --resume` would be refused for that."""
    controller = make_controller().start()
    place = ApiEndpoint(
        socket=str(run_directory / "api.sock"), pid=os.getpid(), host=socket.gethostname(), boot=this_boot()
    )
    write_place(str(run_directory), place)
    with Path(controller.journal_path).open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        said = done(robust("status"))
    assert "a process holds its journal, so it lives" in said
    assert "--resume" not in said
    assert "--resume" in done(robust("status")), "nothing holds it any more"


def test_a_controller_that_has_yet_to_say_where_it_is_may_live_on_the_host_that_began_the_journal(
    make_controller: Callable[..., Any], robust: Robust, run_directory: Path
) -> None:
    controller = make_controller().start()
    path = Path(controller.journal_path)
    first, rest = path.read_text().split("\n", 1)
    path.write_text("\n".join([json.dumps({**json.loads(first), "host": "another"}), rest]))
    said = done(robust("status"))
    assert "its controller runs or ran on another, which cannot be asked from here" in said
    assert "--resume" not in said


def test_a_process_that_got_the_number_of_a_dead_controller_is_not_it(
    make_controller: Callable[..., Any], robust: Robust
) -> None:
    controller = make_controller().start()
    path = Path(controller.journal_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    older = [{**line, "at": line["at"] - 1e6} if "at" in line else line for line in lines]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in older))
    assert "--resume" in done(robust("status"))


def test_a_journal_torn_at_its_end_is_read_as_far_as_it_goes(
    make_controller: Callable[..., Any], robust: Robust
) -> None:
    controller = make_controller().start()
    with Path(controller.journal_path).open("ab") as file:
        file.write(b'{"at": 1, "mo')
    assert "last known: running" in done(robust("status"))
    told = robust("events")
    assert "attempt 0 starts" in told.stdout
    assert "is not complete (1 line is cut short)" in told.stderr


@pytest.mark.parametrize("act", ["stop", "restart"])
@pytest.mark.parametrize(
    ("named", "again"),
    [
        (["run"], "run"),
        ([], "run"),
        (["robust-runs/run"], "robust-runs/run"),
        (["robust-runs/run/"], "robust-runs/run/"),
        (["{there}/run"], "{there}/run"),
        (["run", "--log-dir", "{there}"], "run --log-dir {there}"),
        (["--log-dir", "robust-runs"], "run --log-dir robust-runs"),
        (["moved/a run"], "'moved/a run'"),
    ],
)
def test_of_a_run_that_is_over_the_next_command_finds_it(
    make_controller: Callable[..., Any],
    robust: Robust,
    run_directory: Path,
    act: str,
    named: list[str],
    again: str,
) -> None:
    controller = make_controller().start()
    controller.tell(SignalReceived(signal=15))
    controller.end_attempt()
    there = str(run_directory.parent)
    (run_directory.parent.parent / "moved").mkdir()
    (run_directory.parent.parent / "moved" / "a run").symlink_to(run_directory)
    said = refused(robust(act, *(each.format(there=there) for each in named)), 1)
    command = f"robust status {again.format(there=there)}"
    assert f"is over (stopped); {command} says how it was left" in said
    assert "stopped" in done(robust(*shlex.split(command)[1:]))


def test_where_there_is_no_run_that_is_said(robust: Robust, tmp_path: Path) -> None:
    assert "no run in" in refused(robust("status"), 1)
    assert "no run 'x' in" in refused(robust("status", "x"), 1)
    assert "is no run directory" in refused(robust("status", "./x"), 1)
    assert "--log-dir" in refused(robust("stop", "--log-dir", str(tmp_path / "none")), 1)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "journal.jsonl").write_text("not a journal\n")
    assert "not a journal" in refused(robust("status", "bad"), 2)


@pytest.mark.parametrize("words", [["status"], ["status", "run"], ["status", "robust-runs/run"]])
def test_where_there_is_no_journal_both_causes_are_named(robust: Robust, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "robust-runs" / "run" / "attempt_0").mkdir(parents=True)
    said = refused(robust(*words), 1)
    assert "has no journal: its controller is on another node, or the file was removed; ask there, give --url" in said
    assert "or put it back" in said


@pytest.mark.parametrize("words", [["status"], ["status", "run"], ["explain", "robust-runs/run"], ["stop", "run"]])
@pytest.mark.parametrize("kind", ["a folder", "a link that leads nowhere", "no regular file"])
def test_a_journal_that_is_no_file_is_named_so(
    robust: Robust, run_directory: Path, words: list[str], kind: str
) -> None:
    (run_directory / "attempt_0").mkdir()
    path = run_directory / "journal.jsonl"
    match kind:
        case "a folder":
            path.mkdir()
        case "no regular file":
            os.mkfifo(path)
        case _:
            path.symlink_to("gone")
    said = refused(robust(*words), 1)
    assert f"has no journal: its journal.jsonl is {kind}; put the file back" in said
    assert "another node" not in said
    assert kind in done(robust("status", "--all"))


def test_a_removed_journal_is_told_in_a_list_of_runs(robust: Robust, tmp_path: Path) -> None:
    (tmp_path / "robust-runs" / "run" / "attempt_0").mkdir(parents=True)
    assert "on another node, or the file was removed" in done(robust("status", "--all"))


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 99, "pid": 1, "host": "x"}', "x" * 100_000])
def test_a_place_file_of_another_shape_is_told_beside_what_the_journal_says(
    make_controller: Callable[..., Any], robust: Robust, run_directory: Path, content: str
) -> None:
    make_controller().start()
    (run_directory / "api.json").write_text(content)
    line = done(robust("status")).splitlines()[0]
    assert "api.json" in line
    assert "last known: running" in line
    assert "continues it" not in line  # a controller may well run
    assert "api.json" in refused(robust("stop"), 1)


@pytest.mark.parametrize(
    "words",
    [["evict"], ["evict", ""], ["readmit", " "], ["events", "-n", "0"], ["status", "a", "b"], ["status", "--nope"]],
)
def test_a_wrong_command_line_is_exit_code_2(robust: Robust, words: list[str]) -> None:
    assert robust(*words).returncode == 2


def test_a_reader_that_stops_early_is_no_error(
    make_controller: Callable[..., Any], robust: Robust, tmp_path: Path
) -> None:
    import sys

    controller = make_controller().start()
    for number in range(3000):
        controller.tell(NodeEvicted(name=f"gpu-{number}", reason="x" * 100, by="ann"))
    program = f"{sys.executable} -c 'from robust_run.robust_cli import main; main()' events | head -n 1"
    result = subprocess.run(program, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.stdout.startswith("---")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_below_what_is_printed_is_said_in_a_line(
    make_controller: Callable[..., Any], tmp_path: Path, unbuffered: str
) -> None:
    controller = make_controller().start()
    controller.tell(NodeEvicted(name="gpu-1", reason="x", by="ann"))
    argv = [sys.executable, "-c", "from robust_run.robust_cli import main; main()", "events"]
    with open("/dev/full", "w") as full:
        env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        result = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, text=True, env=env, timeout=60)
    assert (result.returncode, result.stderr) == (
        1,
        "robust: what is to be shown cannot be written: No space left on device\n",
    )


def test_a_closed_standard_stream_is_no_fault(make_controller: Callable[..., Any], tmp_path: Path) -> None:
    make_controller().start()
    program = f"{sys.executable} -c 'from robust_run.robust_cli import main; main()' status >&- <&-"
    result = subprocess.run(program, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_suspended_controller_is_not_called_dead(
    make_controller: Callable[..., Any], robust: Robust, run_directory: Path
) -> None:
    """Its socket takes connections and nobody answers: it must not be started twice."""
    make_controller().start()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(run_directory / "api.sock"))
        mute.listen(5)
        place = ApiEndpoint(socket=str(run_directory / "api.sock"), pid=os.getpid(), host=socket.gethostname())
        write_place(str(run_directory), place)
        line = done(robust("status")).splitlines()[0]
    assert "did not answer within 10 s" in line
    assert "continues it" not in line


def test_a_controller_that_could_not_say_where_it_is_is_not_called_dead(
    make_controller: Callable[..., Any], robust: Robust
) -> None:
    make_controller().start()  # the journal's first line names this process
    line = done(robust("status")).splitlines()[0]
    assert line.startswith(f"process {os.getpid()} exists")
    assert "continues it" not in line


def test_a_command_that_is_forked_is_as_one_that_starts_from_nothing(forks: RobustForks, tmp_path: Path) -> None:
    """As most commands of these tests are."""
    for words in (("status",), ("stat",), ("events", "--help"), ("--version",)):
        argv = [sys.executable, "-c", "from robust_run.robust_cli import main; main()", *words]
        started = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
        forked = forks.run(words, tmp_path, os.environ)
        for each in ("returncode", "stdout", "stderr"):
            assert getattr(forked, each) == getattr(started, each)
