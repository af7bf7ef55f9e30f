"""`resolve`: a job with nothing left to guess, or one line that says what cannot be done."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from worlds import PYTHON, Machine

from robust_run.errors import UserError
from robust_run.launcher.model.job import NO_PORT, JobSpec
from robust_run.launcher.start.options.command import parse
from robust_run.launcher.start.options.patience_use import parse_patience_s
from robust_run.launcher.start.options.validate import parse_signals, resolve


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def job(machine: Machine, *options: str, env: dict[str, str] | None = None) -> JobSpec:
    world = machine.world()
    if env is not None:
        world = machine.world(env={**world.env, **env})
    return resolve(parse([*options, "train.py", "--lr", "1"], {}), world)


def refusal(machine: Machine, *options: str, env: dict[str, str] | None = None) -> str:
    with pytest.raises(UserError) as caught:
        job(machine, *options, env=env)
    message = str(caught.value)
    assert message.isprintable()
    return message


def test_a_plain_command_line_is_a_job_with_every_default(machine: Machine) -> None:
    spec = job(machine)
    assert spec.argv == (PYTHON, "-u", "train.py", "--lr", "1")
    assert (spec.nproc, spec.role, spec.max_restarts, spec.restart_grace_s) == (1, "default", 3, 3.0)
    assert (spec.master_addr, spec.master_port) == ("127.0.0.1", None)
    assert (spec.log_dir, spec.run_id, spec.rdzv_id) == (
        "/job/robust-runs",
        "20260309-140506-0123",
        "20260309-140506-0123",
    )
    assert spec.end_signals == (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    assert (spec.shutdown_timeout_s, spec.progress_after_s) == (30.0, 600.0)
    assert spec.notes == ()


def test_what_is_asked_for_reaches_the_job(machine: Machine) -> None:
    spec = job(
        machine,
        *("--nproc-per-node", "3", "--role", "actor", "--max-restarts", "0", "--restart-grace", "0", "--tee", "3"),
        *("--progress-after", "5", "--progress-path", "ckpt/*.pt", "--progress-path", "~/x", "--virtual-local-rank"),
        *("--numa-binding", "exclusive"),
    )
    assert (spec.nproc, spec.role, spec.max_restarts, spec.restart_grace_s) == (3, "actor", 0, 0.0)
    assert (spec.progress_after_s, spec.progress_paths) == (5.0, ("/job/ckpt/*.pt", "/home/ann/x"))
    assert (spec.virtual_local_rank, spec.numa_binding) == (True, "exclusive")
    assert [tee.out and tee.err for tee in spec.streams.tee] == [True] * 3


@pytest.mark.parametrize("nnodes", ["1", "1:1", " 1 "])
def test_one_node_is_fine(machine: Machine, nnodes: str) -> None:
    assert job(machine, "--nnodes", nnodes).nproc == 1


def test_one_node_needs_no_network(machine: Machine) -> None:
    spec = job(machine)
    assert (spec.many, spec.http_port) == (None, None)


def test_several_nodes_meet_where_they_were_told(machine: Machine) -> None:
    spec = job(machine, "--nnodes", "2:4", "--master-addr", "node0", "--master-port", "1234", "--rdzv-id", "exp7")
    assert spec.many is not None
    assert (spec.many.fewest, spec.many.most, spec.many.host, spec.many.port) == (2, 4, "node0", 1234)
    assert (spec.rdzv_id, spec.run_id) == ("exp7", "exp7_01234567")


def test_the_workers_of_several_nodes_do_not_meet_at_the_controllers_port(machine: Machine) -> None:
    spec = job(machine, "--nnodes", "2", "--master-addr", "node0", "--master-port", "1234")
    assert (spec.master_addr, spec.master_port) == ("127.0.0.1", None)


def test_a_run_directory_that_another_node_made_is_no_obstacle(machine: Machine) -> None:
    machine.write("/job/robust-runs/exp7/journal.jsonl")
    assert job(machine, "--nnodes", "2", "--run-id", "exp7").run_id == "exp7"
    assert "exists" in refusal(machine, "--run-id", "exp7")
    assert "is no name" in refusal(machine, "--nnodes", "2", "--run-id", "../exp7")


def test_a_port_for_people_may_be_chosen_or_free(machine: Machine) -> None:
    assert job(machine, "--http-port", "8080").http_port == 8080
    assert job(machine, "--http-port", "0").http_port == 0
    assert job(machine, "--http-port", "off").http_port == NO_PORT
    for wrong in ("65536", "-1", "on", "8080.5", "9" * 5000):
        assert refusal(machine, f"--http-port={wrong}").startswith(f"--http-port {wrong} is not a port")


def test_the_address_of_the_port_is_this_machines_alone_unless_one_is_named(machine: Machine) -> None:
    assert job(machine, "--http-port", "8080").http_host == ""
    assert job(machine, "--http-host", "0.0.0.0").http_host == "0.0.0.0"
    assert job(machine, "--http-host", "[::]").http_host == "::"
    assert refusal(machine, "--http-host", "a b").startswith("--http-host 'a b' is not a host name or address")


def test_a_port_of_a_job_of_several_nodes_that_no_other_machine_reaches_is_said(machine: Machine) -> None:
    nodes = ("--nnodes", "2", "--master-addr", "node0")
    said = "--http-port: only the controller's own machine reaches it; --http-host 0.0.0.0 opens it to others"
    assert said in job(machine, *nodes, "--http-port", "8080").notes
    for quiet in ((), ("--http-port", "off"), ("--http-port", "8080", "--http-host", "0.0.0.0")):
        assert said not in job(machine, *nodes, *quiet).notes
    assert said not in job(machine, "--http-port", "8080").notes


def test_who_is_to_be_found_by_prometheus_serves_at_a_free_port(machine: Machine) -> None:
    found = job(machine, "--prometheus-dir", "/shared/prometheus")
    assert (found.prometheus_dir, found.http_port) == ("/shared/prometheus", 0)
    assert job(machine, "--prometheus-dir", "/shared/prometheus", "--http-port", "8080").http_port == 8080
    assert job(machine, "--prometheus-dir", "targets").prometheus_dir.endswith("/targets")
    with pytest.raises(UserError, match="--prometheus-dir needs the web server"):
        job(machine, "--prometheus-dir", "targets", "--http-port", "off")


def test_checkpoints_lie_in_a_folder(machine: Machine) -> None:
    assert job(machine).ckpt_dir is None
    assert job(machine, "--ckpt-dir", "ckpt").ckpt_dir == "/job/ckpt"


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("hdfs://nn/run/", "hdfs://nn/run"),
        ("http://host:80/a%20b", "http://host:80/a%20b"),
        ("abfs://box@account/run", "abfs://box@account/run"),
        ("file:///ckpt", "/ckpt"),
    ],
)
def test_checkpoints_lie_at_a_url(machine: Machine, given: str, used: str) -> None:
    assert job(machine, "--ckpt-dir", given).ckpt_dir == used


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("http://me:secret@host/run", "leave out what stands before '@'"),
        ("http://me@host/run", "leave out what stands before '@'"),
        ("https://host/run?signature=secret", "after '?'"),
        ("http:///run", "has no host"),
        ("gopher://host/run", "no library here opens such URLs"),
        ("hdfs://nn/../run", "'..'"),
        ("rrck:///ckpt", "the URL of a folder is needed"),
        ("file://other/ckpt", "three slashes"),
        ("", "is empty"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(machine: Machine, given: str, why: str) -> None:
    said = refusal(machine, "--ckpt-dir", given)
    assert why in said
    assert "secret" not in said


def test_files_in_memory_need_a_folder_behind_them(machine: Machine) -> None:
    assert "a folder of this machine" in refusal(machine, "--ckpt-memory-dir", "m", "--ckpt-dir", "hdfs://nn/run")


@pytest.mark.parametrize("nnodes", ["0", "0:1", "2:1", "x", "1:2:3", "-1", "1.5", "1:", "", "100001", "9" * 5000])
def test_nonsense_for_nnodes_is_refused(machine: Machine, nnodes: str) -> None:
    assert refusal(machine, f"--nnodes={nnodes}").startswith("--nnodes")


def test_one_node_has_rank_0(machine: Machine) -> None:
    assert refusal(machine, "--node-rank", "1").startswith("--node-rank 1: the only node of a job has rank 0")


@pytest.mark.parametrize(("asked", "workers"), [("1", 1), ("4096", 4096), ("cpu", 6), ("auto", 6)])
def test_workers_are_a_number_or_counted(machine: Machine, asked: str, workers: int) -> None:
    assert job(machine, "--nproc-per-node", asked).nproc == workers


@pytest.mark.parametrize("asked", ["0", "-1", "4097"])
def test_an_impossible_number_of_workers_is_refused(machine: Machine, asked: str) -> None:
    assert refusal(machine, f"--nproc-per-node={asked}") == f"--nproc-per-node {asked}: must be 1 to 4096 workers"


@pytest.mark.parametrize("asked", ["gpus", "2.0", "", "all"])
def test_a_word_that_counts_nothing_is_refused(machine: Machine, asked: str) -> None:
    assert refusal(machine, f"--nproc-per-node={asked}") == (
        f"--nproc-per-node {asked!r} is neither a number nor one of auto, cpu, gpu, xpu"
    )


@pytest.mark.parametrize(
    "option",
    [
        "--max-restarts=-1",
        "--restart-grace=-0.1",
        "--restart-grace=nan",
        "--progress-after=inf",
        "--progress-after=-1",
        "--monitor-interval=0",
        "--monitor-interval=nan",
        "--shutdown-timeout=-1",
    ],
)
def test_impossible_numbers_are_refused(machine: Machine, option: str) -> None:
    name = option.split("=")[0]
    assert refusal(machine, option).startswith(f"{name} ")


def test_acting_on_slow_ranks_without_comparing_them_is_refused(machine: Machine) -> None:
    message = refusal(machine, "--on-slow", "evict", "--slow-round", "0")
    assert message.startswith("--on-slow evict: --slow-round 0 compares no ranks")
    assert job(machine, "--slow-round", "0").slow_round_s == 0.0


def test_the_shutdown_timeout_comes_from_the_option_then_the_variable(machine: Machine) -> None:
    env = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}
    assert job(machine, "--shutdown-timeout", "5", env=env).shutdown_timeout_s == 5
    assert job(machine, env=env).shutdown_timeout_s == 7
    assert refusal(machine, env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "soon"}) == (
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT='soon' is not a number of seconds; unset it or write one, like 30"
    )


def test_signals_are_named_in_any_way_people_write_them() -> None:
    assert parse_signals("SIGTERM, usr1,sigusr2,TERM") == (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SIGTRM", "there is no signal 'SIGTRM'; did you mean SIGTERM?"),
        ("", "there is no signal ''; "),
        ("SIGTERM,,SIGINT", "there is no signal ''; "),
        ("15", "there is no signal '15'; "),
        ("SIGTERM,kill", "no program can handle SIGKILL; take it out of the list"),
        ("SIGSTOP", "no program can handle SIGSTOP; take it out of the list"),
    ],
)
def test_signals_that_are_none_or_cannot_be_handled_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_signals(text)
    assert str(caught.value).startswith(f"--signals-to-handle: {message}")


@pytest.mark.parametrize(
    ("options", "env", "defaulted"),
    [
        (["--nproc-per-node", "2"], {}, True),
        (["--nproc-per-node", "2"], {"OMP_NUM_THREADS": ""}, False),
        (["--nproc-per-node", "1"], {}, False),
    ],
)
def test_threads_are_limited_where_several_workers_share_cpus_and_nobody_chose(
    machine: Machine, options: list[str], env: dict[str, str], defaulted: bool
) -> None:
    assert job(machine, *options, env=env).omp_threads_defaulted is defaulted


def test_log_plug_ins_are_refused_with_what_to_use_instead(machine: Machine) -> None:
    assert "use --log-dir, --redirects and --tee" in refusal(machine, "--logs-specs", "mine")


def test_options_that_do_nothing_here_say_so_only_when_they_ask_for_something(machine: Machine) -> None:
    assert job(machine, "--event-log-handler", "null", "--start-method", "spawn").notes == ()
    notes = job(machine, "--event-log-handler", "console", "--start-method", "fork").notes
    assert [note.split(" does nothing")[0] for note in notes] == ["--event-log-handler console", "--start-method fork"]
    assert "there is no handler 'mine'" in refusal(machine, "--event-log-handler", "mine")


def test_a_named_job_shows_its_name_to_the_workers_and_in_the_folder(machine: Machine) -> None:
    spec = job(machine, "--rdzv-id", "exp 7/a")
    assert (spec.rdzv_id, spec.run_id) == ("exp 7/a", "exp-7-a_01234567")


def test_a_standalone_job_has_a_fresh_id(machine: Machine) -> None:
    spec = job(machine, "--standalone", "--rdzv-id", "exp7")
    assert spec.rdzv_id == spec.run_id == "20260309-140506-0123"


def test_whom_to_tell_is_checked_and_files_are_absolute(tmp_path: Path) -> None:
    from robust_run.launcher.agent.workers.this_machine import system_world
    from robust_run.launcher.start.options.notify_use import resolve_notify

    hook = tmp_path / "hook"
    hook.write_text("https://hooks.example.com/secret\n")
    world = system_world()
    assert resolve_notify((f"@{hook}", "page-me"), world) == (f"@{hook}", "page-me")
    with pytest.raises(UserError, match="is not there"):
        resolve_notify((f"@{tmp_path / 'none'}",), world)
    hook.write_text("ftp://example.com/secret\n")
    with pytest.raises(UserError) as caught:
        resolve_notify((f"@{hook}",), world)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("auto", None), ("90", 90.0), ("90s", 90.0), (" 5M ", 300.0), ("2h", 7200.0)]
)
def test_patience_with_hangs_is_a_time_or_left_to_torch(text: str, seconds: float | None) -> None:
    assert parse_patience_s(text, 5.0) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5 min", "-1", "0", "nan", "inf", "infm", "5d"])
def test_a_patience_that_is_no_time_is_refused_with_what_may_be_written(text: str) -> None:
    with pytest.raises(UserError, match=r"--hang-patience .* is no time; write 90s, 5m, 2h or auto"):
        parse_patience_s(text, 5.0)


def test_a_patience_shorter_than_the_time_until_anybody_looks_is_refused() -> None:
    with pytest.raises(UserError, match=r"--hang-patience 3s: must be --hang-after \(5 s\) or more"):
        parse_patience_s("3s", 5.0)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("auto", (True, None, None)),
        ("off", (False, None, None)),
        ("64G", (True, 64 << 30, None)),
        ("64G,500M", (True, 64 << 30, 500 << 20)),
        ("auto,1G", (True, None, 1 << 30)),
    ],
)
def test_how_much_is_fetched_ahead(machine: Machine, given: str, used: tuple[bool, int | None, int | None]) -> None:
    found = job(machine, "--ckpt-ahead", given)
    assert (found.ckpt_ahead, found.ckpt_ahead_bytes, found.ckpt_ahead_bytes_s) == used


@pytest.mark.parametrize("given", ["much", "64G,", "off,1G", "1,1", "64G,fast", "64G,1G,1G"])
def test_nonsense_for_what_is_fetched_ahead_is_refused(machine: Machine, given: str) -> None:
    assert "--ckpt-ahead" in refusal(machine, "--ckpt-ahead", given)


def test_a_mount_is_of_a_url(machine: Machine) -> None:
    assert not job(machine, "--ckpt-dir", "hdfs://nn/run").ckpt_mount
    assert job(machine, "--ckpt-dir", "hdfs://nn/run", "--ckpt-mount").ckpt_mount
    assert "give --ckpt-dir" in refusal(machine, "--ckpt-mount")
    assert "is for a --ckpt-dir that is a URL" in refusal(machine, "--ckpt-dir", "here", "--ckpt-mount")
