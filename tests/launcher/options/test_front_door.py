"""What somebody sees who types `robust-run` where they typed `torchrun`: the whole command, from outside."""

from __future__ import annotations

import ast
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import run, running, script, wait_for

from robust_run.launcher.records.journal_reading import read as read_journal
from robust_run.launcher.records.memory_folders import remove_dead_memory

ROOT = Path(__file__).parents[3]
COMMAND = (sys.executable, "-m", "robust_run")


def plain(tmp_path: Path, *arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    """Run the command as it is and wait for its end."""
    options = {"capture_output": True, "text": True, "cwd": tmp_path, "timeout": 120, **more}
    return subprocess.run([*COMMAND, *arguments], **options)  # type: ignore[call-overload, no-any-return]


def mistakes(tmp_path: Path) -> dict[str, tuple[list[str], str]]:
    """Return wrong command lines, each with what its message must name."""
    (tmp_path / "train.py").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "a_file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    not_executable = tmp_path / "program"
    not_executable.write_text("#!/bin/sh\n")
    return {
        "no such script": (["trian.py"], "train.py"),
        "a folder that is no program": (["empty"], "__main__.py"),
        "a pipe": (["pipe"], "pipe"),
        "a descriptor": (["/dev/stdin"], "/dev/stdin"),
        "no script": (["--nproc-per-node", "2"], "script"),
        "unknown flag": (["--nporc-per-node", "2", "train.py"], "--nproc-per-node"),
        "nodes are nonsense": (["--nnodes", "x", "train.py"], "x"),
        "no nodes": (["--nnodes", "0", "train.py"], "0"),
        "no place to meet": (["--nnodes", "2", "--rdzv-backend", "c10d", "train.py"], "--rdzv-endpoint"),
        "range upside down": (["--nnodes", "2:1", "train.py"], "2:1"),
        "workers are nonsense": (["--nproc-per-node", "zz", "train.py"], "zz"),
        "no workers": (["--nproc-per-node", "0", "train.py"], "0"),
        "negative restarts": (["--max-restarts", "-1", "train.py"], "-1"),
        "log dir is a file": (["--log-dir", "a_file", "train.py"], "a_file"),
        "log dir cannot be made": (["--log-dir", "/proc/no/such", "train.py"], "/proc"),
        "program is not executable": (["--no-python", "./program"], "program"),
        "program does not exist": (["--no-python", "no-such-program-here"], "no-such-program-here"),
        "two ways to run": (["--no-python", "-m", "train"], "--no-python"),
        "own log code": (["--logs-specs", "mine", "train.py"], "--log-dir"),
        "run id with a slash": (["--run-id", "../x", "train.py"], "--run-id"),
        "redirects are nonsense": (["--redirects", "9", "train.py"], "9"),
    }


MISTAKES = (
    "no such script|a folder that is no program|a pipe|a descriptor|no script|unknown flag|nodes are nonsense|no nodes|"
    "no place to meet|range upside down|workers are nonsense|no workers|negative restarts|log dir is a file|"
    "log dir cannot be made|program is not executable|program does not exist|two ways to run|own log code|"
    "run id with a slash|redirects are nonsense"
).split("|")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_command_line_gets_one_clear_line_and_exit_code_2(tmp_path: Path, mistake: str) -> None:
    arguments, named = mistakes(tmp_path)[mistake]
    result = plain(tmp_path, *arguments)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("robust-run: ")
    assert named in result.stderr
    assert result.stdout == ""
    assert not (tmp_path / "robust-runs").exists(), "nothing was started, nothing was made"


def test_a_python_that_cannot_be_run_is_said_before_anything_starts(tmp_path: Path) -> None:
    result = plain(tmp_path, script(tmp_path, ""), env={**os.environ, "PYTHON_EXEC": "/no/such/python"})
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "/no/such/python" in result.stderr


def test_a_package_that_is_missing_is_one_line_and_no_traceback() -> None:
    without = "import sys; sys.modules['click'] = None; from robust_run.cli import run; sys.exit(run(['train.py'], {}))"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "its Python package click is not installed" in done.stderr and "without --no-deps" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv to give up rights")
def test_a_script_that_may_not_be_read_is_said_before_anything_starts(tmp_path: Path) -> None:
    """As root without the right to read everything: another user may not be let in to where Python or the tests lie."""
    secret = tmp_path / "secret.py"
    secret.write_text("")
    secret.chmod(0)
    without = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all", "--ambient-caps=-all")
    if subprocess.run([*without, "cat", str(secret)], capture_output=True).returncode == 0:
        pytest.skip("root may read everything")
    argv = [*without, *COMMAND, "--log-dir", str(tmp_path / "runs"), str(secret)]
    result = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 2
    assert "secret.py" in result.stderr
    assert "read" in result.stderr


def test_help_and_version_say_it_on_stdout(tmp_path: Path) -> None:
    helped, version = plain(tmp_path, "--help"), plain(tmp_path, "--version")
    assert (helped.returncode, version.returncode) == (0, 0)
    assert "--nproc-per-node" in helped.stdout
    assert "--restart-grace" in helped.stdout
    assert "robust-run" in version.stdout


@pytest.mark.parametrize(
    "name", ["with space.py", 'quote\'s "and" $HOME;.py', "new\nline.py", "naïve-Übung-训练.py", "-dash.py"]
)
def test_scripts_with_awkward_names_run(tmp_path: Path, name: str) -> None:
    path = script(tmp_path, "import sys; print([sys.argv[1:], __name__])", name)
    code, job = run(tmp_path, path, "a b", "--lr", "")
    assert code == 0
    assert job.out == "[['a b', '--lr', ''], '__main__']\n"


def test_names_and_arguments_that_are_no_text_reach_the_script(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\xfe.py"
    with open(path, "w") as file:
        file.write("import os, sys; print([os.fsencode(a) for a in sys.argv[1:]], os.environb[b'ODD'])\n")
        file.write("sys.stdout.flush(); os._exit(0 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '1' else 9)\n")
    env = {**os.environb, b"ODD": b"\xfe"}
    argv = [*map(os.fsencode, COMMAND), b"--run-id", b"odd", path, b"a\xffb"]
    result = subprocess.run(argv, capture_output=True, cwd=tmp_path, env=env)
    assert result.returncode == 0, result.stderr
    assert result.stdout == b"[b'a\\xffb'] b'\\xfe'\n" * 2
    header, entries = read_journal(str(tmp_path / "robust-runs" / "odd" / "journal.jsonl"))
    assert header.job.nproc == 1
    assert entries


ENV_CONTRACT = """
import json, os
print(json.dumps({k: v for k, v in os.environ.items()
    if k.split("_")[0] in ("RANK", "LOCAL", "GROUP", "ROLE", "WORLD", "MASTER", "TORCHELASTIC", "TORCH", "OMP", "SENTINEL")}))
"""


def test_workers_get_torchruns_environment(tmp_path: Path) -> None:
    code, job = run(
        tmp_path, "--nproc-per-node", "2", "--role", "trainer", script(tmp_path, ENV_CONTRACT), env={"SENTINEL": "kept"}
    )
    assert code == 0
    seen = {env["RANK"]: env for env in map(json.loads, job.out.splitlines())}
    for rank in ("0", "1"):
        env = seen[rank]
        port = env.pop("MASTER_PORT")
        error_file = env.pop("TORCHELASTIC_ERROR_FILE")
        assert 0 < int(port) < 65536
        assert error_file.endswith(f"attempt_0/{rank}/error.json")
        assert env == {
            "RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": "0", "ROLE_RANK": rank, "ROLE_NAME": "trainer",
            "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1", "ROLE_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "3",
            "TORCHELASTIC_RUN_ID": job.run_id, "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "1", "SENTINEL": "kept",
        }  # fmt: skip


@pytest.mark.parametrize(
    "how",
    [
        ("train.py",),
        ("-m", "pack.age"),
        ("--run-path", "train.py"),
        ("--no-python", sys.executable, "train.py"),
        ("folder",),
    ],
    ids=lambda how: how[0],
)
def test_every_way_to_name_a_program_runs_it(tmp_path: Path, how: tuple[str, ...]) -> None:
    text = "import sys, os; print(__name__, sys.argv[1:], os.environ['RANK'])"
    script(tmp_path, text)
    for folder in ("pack", "folder"):
        (tmp_path / folder).mkdir()
    script(tmp_path / "pack", text, "age.py")
    script(tmp_path / "folder", text, "__main__.py")
    how = tuple(str(tmp_path / word) if how[0] == "--run-path" and word.endswith(".py") else word for word in how)
    code, job = run(tmp_path, *how, "--x", "${local_rank}")
    assert code == 0
    assert job.out == "__main__ ['--x', '0'] 0\n"


def test_output_is_kept_and_passed_through_whole_lines(tmp_path: Path) -> None:
    text = """
        import os, sys
        rank = os.environ["RANK"]
        for i in range(2000):
            sys.stdout.write(f"out {rank} {i} " + "x" * 50 + "\\n")
            sys.stderr.write(f"err {rank} {i}\\n")
    """
    code, job = run(tmp_path, "--nproc-per-node", "4", script(tmp_path, text))
    assert code == 0
    wanted = {f"out {rank} {i} " + "x" * 50 for rank in range(4) for i in range(2000)}
    assert len(job.out.splitlines()) == len(wanted)
    assert set(job.out.splitlines()) == wanted
    for rank in range(4):
        folder = job.run_dir / "attempt_0" / str(rank)
        assert (folder / "stdout.log").read_text().splitlines() == [f"out {rank} {i} " + "x" * 50 for i in range(2000)]
        assert (folder / "stderr.log").read_text().splitlines() == [f"err {rank} {i}" for i in range(2000)]


def test_tee_prefixes_and_redirect_hides_and_filters_choose(tmp_path: Path) -> None:
    text = "import os, sys; print('loss', os.environ['RANK']); print('noise', file=sys.stderr)"
    arguments = ("--nproc-per-node", "3", "--tee", "0:1,2:1", "--redirects", "1:3", "--local-ranks-filter", "0,1")
    filters = ("--duplicate-stdout-filters", "loss,nothing")
    code, job = run(tmp_path, *arguments, *filters, script(tmp_path, text))
    assert code == 0
    assert job.out == "[default0]:loss 0\n"
    assert [line for line in job.err.splitlines() if "robust-run" not in line] == ["noise"]
    assert (job.run_dir / "attempt_0" / "1" / "stdout.log").read_text() == "loss 1\n"
    assert "loss 0" in (job.run_dir / "attempt_0" / "filtered_stdout.log").read_text()


def test_the_prefix_template_is_torchruns(tmp_path: Path) -> None:
    template = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${role_name} ${rank}/${local_rank}] "}
    code, job = run(tmp_path, "--tee", "3", "--role", "r", script(tmp_path, "print('hi')"), env=template)
    assert (code, job.out) == (0, "[r 0/0] hi\n")


def test_with_a_virtual_local_rank_each_worker_sees_one_device_as_its_first(tmp_path: Path) -> None:
    text = "import os; print(os.environ['RANK'], os.environ['LOCAL_RANK'], os.environ['CUDA_VISIBLE_DEVICES'])"
    arguments = ("--nproc-per-node", "2", "--virtual-local-rank", script(tmp_path, text))
    code, job = run(tmp_path, *arguments, env={"CUDA_VISIBLE_DEVICES": "5,7"})
    assert (code, sorted(job.out.splitlines())) == (0, ["0 0 5", "1 0 7"])


def test_numa_binding_gives_each_worker_its_cpus(tmp_path: Path) -> None:
    text = "import os; print(os.environ['RANK'], sorted(os.sched_getaffinity(0)))"
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2 or not Path("/sys/devices/system/node/node0/cpulist").exists():
        pytest.skip("needs two CPUs and NUMA nodes in /sys")
    code, job = run(tmp_path, "--nproc-per-node", "2", "--numa-binding", "exclusive", script(tmp_path, text))
    if code == 2 and "core" in job.err:
        pytest.skip("the CPUs of this machine are threads of one core")
    shares = [set(ast.literal_eval(line.partition(" ")[2])) for line in job.out.splitlines()]
    assert code == 0
    assert shares[0] and shares[1]
    assert not shares[0] & shares[1]
    assert shares[0] | shares[1] <= set(cpus)


def test_pet_variables_are_read(tmp_path: Path) -> None:
    code, job = run(tmp_path, script(tmp_path, "print('hi')"), env={"PET_NPROC_PER_NODE": "3", "PET_TEE": "1"})
    assert (code, sorted(job.out.splitlines())) == (0, ["[default0]:hi", "[default1]:hi", "[default2]:hi"])


def test_sixty_four_workers_start_on_a_small_machine(tmp_path: Path) -> None:
    code, job = run(tmp_path, "--nproc-per-node", "64", script(tmp_path, "import os; print(os.environ['RANK'])"))
    assert code == 0
    assert sorted(map(int, job.out.split())) == list(range(64))


def test_a_terminal_stays_a_terminal(tmp_path: Path) -> None:
    """Progress bars must draw as they do without a launcher."""
    path = script(
        tmp_path,
        """
        import os, sys
        print(sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size(1).columns)
        sys.stdout.write("50%\\r100%\\n")
        """,
    )
    master, slave = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 123, 0, 0))
    argv = [*COMMAND, "--log-dir", str(tmp_path / "runs"), path]
    process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    seen = read_terminal(master)
    assert process.wait() == 0
    assert b"True True 123\r\n" in seen
    assert b"50%\r100%\r\n" in seen


def read_terminal(master: int) -> bytes:
    """Return everything shown until the last process lets go of the terminal."""
    seen = b""
    while True:
        assert select.select([master], [], [], 60)[0], seen
        try:
            chunk = os.read(master, 65536)
        except OSError:
            break
        if not chunk:
            break
        seen += chunk
    os.close(master)
    return seen


def test_stdin_is_the_users(tmp_path: Path) -> None:
    result = plain(tmp_path, script(tmp_path, "print(input().upper())"), input="hello\n")
    assert (result.returncode, result.stdout) == (0, "HELLO\n")


def test_a_reader_that_goes_away_does_not_end_training(tmp_path: Path) -> None:
    path = script(tmp_path, "for i in range(100000): print(i)\nopen('done', 'w').close()")
    line = f"{' '.join(COMMAND)} --log-dir runs {path} 2>/dev/null | head -n 1"
    assert subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, cwd=tmp_path).stdout == "0\n"
    wait_for((tmp_path / "done").exists, "the job to finish")


def test_a_reader_that_stops_reading_does_not_stop_training(tmp_path: Path) -> None:
    path = script(tmp_path, "for i in range(400000): print(i, 'x' * 100)\nopen('done', 'w').close()")
    with running(tmp_path, path) as job:
        wait_for((tmp_path / "done").exists, "the worker to finish although nobody reads")
        job.finish()
    assert "are missing here" in job.out
    (log,) = job.run_dir.glob("attempt_0/0/stdout.log")
    assert len(log.read_bytes().splitlines()) == 400000


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_reason_not_to_train(tmp_path: Path, closed: str) -> None:
    path = script(tmp_path, "import os; print('x'); os.close(os.open('done', os.O_CREAT))")
    line = f"{' '.join(COMMAND)} --log-dir runs {path} {closed}; echo $? > code"
    subprocess.run(["/bin/sh", "-c", line], capture_output=True, cwd=tmp_path)
    assert (tmp_path / "code").read_text() == "0\n"
    assert (tmp_path / "done").exists()
    assert next((tmp_path / "runs").glob("*/attempt_0/0/stdout.log")).read_text() == "x\n"


def test_an_error_file_that_is_a_pipe_hangs_nobody(tmp_path: Path) -> None:
    path = script(tmp_path, "import os; os.mkfifo(os.environ['TORCHELASTIC_ERROR_FILE']); os._exit(5)")
    code, _ = run(tmp_path, "--max-restarts", "0", path)
    assert code == 5


def test_no_logs_are_kept_where_the_user_says_so(tmp_path: Path) -> None:
    result = plain(
        tmp_path, "--log-dir", "/dev/null", "--max-restarts", "0", script(tmp_path, "raise ValueError('boom')")
    )
    assert result.returncode == 1
    assert "ValueError: boom" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_a_full_disk_under_the_logs_is_said_once_and_the_job_goes_on(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], capture_output=True).returncode
        != 0
    ):
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        path = script(
            tmp_path,
            """
            import os
            for i in range(20000):
                print(i, "x" * 100)
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os._exit(9)
            """,
        )
        code, job = run(tmp_path, "--nproc-per-node", "2", path, log_dir=small)
        assert code == 0, "it even heals"
        assert job.err.count("the job goes on, what cannot be written is left out") == 1
        assert "No space left" in job.err
        assert "pages are missing or not up to date" in job.err, "the end says what nobody will find"
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_a_disk_that_is_full_before_the_start_ends_no_job_with_a_traceback(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        with pytest.raises(OSError, match="No space"), open(small / "fill", "wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        _, job = run(tmp_path, script(tmp_path, "print('hello')"), log_dir=small)
        assert "Traceback" not in job.err
        assert "No space left" in job.err
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_the_culprits_error_file_is_handed_up_with_its_exit_code(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        from torch.distributed.elastic.multiprocessing.errors import record
        @record
        def main():
            raise ValueError("boom")
        main()
        """,
    )
    target = tmp_path / "error.json"
    code, _ = run(tmp_path, "--max-restarts", "0", path, env={"TORCHELASTIC_ERROR_FILE": str(target)})
    assert code == 1
    message = json.loads(target.read_text())["message"]
    assert message["message"] == "ValueError: boom"
    assert message["errorCode"] == 1


def test_a_failure_is_summed_up_on_the_last_lines(tmp_path: Path) -> None:
    text = "import os, sys, signal; print('my last words', file=sys.stderr); os.kill(os.getpid(), signal.SIGSEGV)"
    code, job = run(tmp_path, "--max-restarts", "0", script(tmp_path, text))
    assert code == 128 + signal.SIGSEGV
    summary = job.err[job.err.index("FAILED") :]
    assert "rank 0 was killed by SIGSEGV (signal 11)" in summary
    assert "my last words" in summary
    assert "attempt_0/0/stderr.log" in summary
    assert "--max-restarts is 0" in summary
    (incident,) = (job.run_dir / "incidents").glob("*.json")
    content = json.loads(incident.read_text())
    assert content["schema"] == 1
    assert content["verdict"]["ranks"] == [0]
    assert content["onset_s"] <= content["detected_s"] <= content["decided_s"]


def test_a_run_directory_is_never_shared(tmp_path: Path) -> None:
    path = script(tmp_path, "")
    first = plain(tmp_path, "--run-id", "mine", path)
    second = plain(tmp_path, "--run-id", "mine", path)
    assert (first.returncode, second.returncode) == (0, 2)
    assert "mine" in second.stderr


def test_the_run_directory_is_the_users_alone(tmp_path: Path) -> None:
    _, job = run(tmp_path, script(tmp_path, ""))
    assert job.run_dir.stat().st_mode & 0o077 == 0


HEAVY = {
    "torch",
    "asyncio",
    "aiohttp",
    "fsspec",
    "rich",
    "prometheus_client",
    "numpy",
    "logging",
    "json",
    "importlib.metadata",
}


def test_nothing_heavy_is_imported_on_the_way_to_the_first_worker(tmp_path: Path) -> None:
    """The launcher is stopped at the moment it starts its first worker, and its modules are listed.

    What killed launchers left in memory is swept by the next one, which needs more: here nothing is left.
    """
    remove_dead_memory()
    code = """
import sys
import robust_run.launcher.agent.workers.workers as workers
def stop(*args, **kwargs):
    print("\\n".join(sys.modules))
    sys.stdout.flush()
    import os
    os._exit(0)
workers.start = stop
from robust_run.cli import run
import os
run(sys.argv[1:], os.environ)
"""
    argv = [
        sys.executable,
        "-c",
        code,
        "--log-dir",
        str(tmp_path / "runs"),
        "--nproc-per-node",
        "2",
        script(tmp_path, ""),
    ]
    result = subprocess.run(argv, capture_output=True, text=True)
    modules = set(result.stdout.split())
    assert "robust_run.launcher.agent.agent" in modules, result.stderr
    assert not modules & HEAVY
    assert len(modules - {"sitecustomize"}) < 230, "the path to the first worker has a budget; see ARCHITECTURE.md"


def test_every_file_is_python_3_10(tmp_path: Path) -> None:
    files = [path for folder in ("robust_run", "bench", "examples", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 40
    for path in files:
        ast.parse(path.read_text(), feature_version=(3, 10))
