"""`--ckpt-dir URL --ckpt-mount` in real jobs: scripts open paths, the store is read once, and nothing is ever left mounted."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from counting_server import counting_server
from fake_torch import write_fake_torch
from jobs import PATIENT, Job, kill, run, running, script, unused_port, wait_for
from made_checkpoints import make_checkpoint

from robust_run.ckpt_io.mount.mounts import ours
from robust_run.clock import SystemClock
from robust_run.launcher.agent.checkpoint.mount import CheckpointMount
from robust_run.launcher.records.memory_folders import FILES, remove_tree
from tests.launcher.images.image_ground import needs_images

MIB = 1 << 20
CONTENT = {"x": os.urandom(8 * MIB), "sub/y": os.urandom(3)}
TOTAL = sum(map(len, CONTENT.values()))

#: Knows of paths alone, but for one rank, which has our library: that takes a path as well.
TRAIN = """
import hashlib, os, sys
attempt, rank, top = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"], os.environ["ROBUST_RESUME"]
assert os.path.dirname(top) == os.environ["ROBUST_CKPT_MOUNTED"] and os.environ["ROBUST_RESUME_STEP"] == "7"
print("seen", os.listdir(os.environ["ROBUST_CKPT_MOUNTED"]), sorted(os.listdir(top)), os.getuid(), flush=True)
digest = hashlib.sha256()
for name in ("x", "sub/y"):
    with open(f"{top}/{name}", "rb") as file:
        digest.update(file.read())
if rank == "1":
    from robust_run.ckpt_io.reading import open_checkpoint
    with open_checkpoint(top) as checkpoint:
        assert checkpoint.url == os.environ["ROBUST_CKPT_DIR"] + "/step-7", checkpoint.url
try:
    open(f"{top}/new", "w")
except OSError as error:
    print("writing:", error.strerror, flush=True)
print("loaded", attempt, digest.hexdigest(), flush=True)
sys.exit(3 if attempt == "0" and rank == "0" else 0)
"""
#: Reads the second file only when it is told to.
SLOWLY = """
import os, sys, time
attempt, top = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["ROBUST_RESUME"]
print("first", open(f"{top}/sub/y", "rb").read().hex(), flush=True)
open(f"up-{attempt}", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
print("attempt", attempt, "read", len(open(f"{top}/x", "rb").read()), flush=True)
"""


@pytest.fixture(autouse=True)
def fuse() -> None:
    needs_images()
    pytest.importorskip("mfusepy")


def digest() -> str:
    import hashlib

    return hashlib.sha256(b"".join(CONTENT.values())).hexdigest()


def of_url(url: str, *more: str) -> tuple[str, ...]:
    return ("--ckpt-dir", f"{url}/ckpt", "--ckpt-mount", "--no-warm", *more)


def process_of(job: Job, module: bytes) -> int:
    """Return the pid of a process of a job that runs a module."""

    def find() -> int | None:
        return next((int(line.partition(":")[0]) for line in job.leftovers() if module.decode() in line), None)

    return int(wait_for(find, f"{module!r}"))


def assert_nothing_is_mounted(job: Job) -> None:
    job.assert_nothing_left()
    assert not [each for each in ours() if job.run_id in each.point]


def waits_for_a_file(pid: int) -> bool:
    """Whether a process waits for an answer, or for a page: a server that is told to stop may answer once more."""
    where = Path(f"/proc/{pid}/wchan").read_text()
    return "request_wait" in where or "folio_wait" in where


def right_prefixes() -> list[tuple[str, ...]]:
    return [(), ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")]


@pytest.mark.parametrize("prefix", right_prefixes(), ids=["as root", "without the right to mount"])
def test_a_script_opens_paths_and_the_store_is_read_once(tmp_path: Path, prefix: tuple[str, ...]) -> None:
    if prefix and (os.geteuid() != 0 or shutil.which("setpriv") is None):
        pytest.skip("only root has rights to give up (with setpriv)")
    make_checkpoint([tmp_path / "ckpt" / "step-7"], CONTENT, step=7)
    with counting_server(tmp_path) as server:
        words = of_url(server.url, "--nproc-per-node", "2", "--max-restarts", "1", script(tmp_path, TRAIN))
        code, job = run(tmp_path, *words, prefix=prefix)
        assert code == 0, job.err
        assert {f"loaded {attempt} {digest()}" for attempt in (0, 1)} <= set(job.out.splitlines())
        assert f"seen ['step-7'] ['sub', 'x'] {os.getuid()}" in job.out
        assert "writing: Read-only file system" in job.out
        assert 1.0 <= server.sent_bytes / TOTAL < 1.1, "and a manifest now and then"
    assert_nothing_is_mounted(job)


def test_a_server_that_is_killed_costs_one_attempt_and_is_named(tmp_path: Path) -> None:
    make_checkpoint([tmp_path / "ckpt" / "step-7"], CONTENT, step=7)
    with counting_server(tmp_path) as server:
        words = of_url(server.url, "--max-restarts", "1", script(tmp_path, SLOWLY))
        with running(tmp_path, *words) as job:
            job.wait_for_file("up-0", tmp_path)
            server_pid, (rank_pid,) = process_of(job, b"mount.held"), job.pids()
            os.kill(server_pid, signal.SIGSTOP)
            (tmp_path / "go").touch()
            wait_for(lambda: waits_for_a_file(rank_pid), "the rank to wait for a file")
            os.kill(server_pid, signal.SIGKILL)
            assert job.finish() == 0, job.err
        assert f"attempt 1 read {len(CONTENT['x'])}" in job.out
        why = f"the process that served it (pid {server_pid}) was killed by SIGKILL"
        assert f"mount of the checkpoints: {why}" in job.err
        assert f"rank 0 exited with code 1: the mount of the checkpoints failed: {why}" in job.err
        assert_nothing_is_mounted(job)


def test_a_warm_process_lives_where_the_files_are(tmp_path: Path) -> None:
    make_checkpoint([tmp_path / "ckpt" / "step-7"], CONTENT, step=7)
    write_fake_torch(tmp_path)
    text = SLOWLY + "sys.exit(0 if attempt == '1' else 3)"
    with counting_server(tmp_path) as server:
        words = ("--ckpt-dir", f"{server.url}/ckpt", "--ckpt-mount", "--preload", "decimal", script(tmp_path, text))
        with running(tmp_path, *words, prefix=PATIENT) as job:
            wait_for(lambda: job.events("standby_ready") or job.process.poll() is not None, "a standby worker")
            (tmp_path / "go").touch()
            assert job.finish() == 0, job.err
        assert_nothing_is_mounted(job)
    assert "promoted" in job.err
    assert f"attempt 1 read {len(CONTENT['x'])}" in job.out


@pytest.mark.parametrize("who", ["agent", "launcher", "both"])
def test_nothing_is_left_when_the_job_is_killed(tmp_path: Path, who: str) -> None:
    make_checkpoint([tmp_path / "ckpt" / "step-7"], CONTENT, step=7)
    with counting_server(tmp_path) as server, running(tmp_path, *of_url(server.url, script(tmp_path, SLOWLY))) as job:
        job.wait_for_file("up-0", tmp_path)
        process_of(job, b"mount.held")
        kill(*{"agent": [job.agent_pid()], "launcher": [job.pid], "both": [job.pid, job.agent_pid()]}[who])
        job.finish()
        wait_for(lambda: not job.leftovers(), "all processes to end")
        assert not [each for each in ours() if job.run_id in each.point]


def test_a_damaged_file_is_an_error_and_the_next_attempt_starts_elsewhere(tmp_path: Path) -> None:
    """A program that opens paths does not know what a digest is: who reads for it does, and tells."""
    make_checkpoint([tmp_path / "ckpt" / "step-7"], CONTENT, step=7)
    make_checkpoint([tmp_path / "ckpt" / "step-8"], CONTENT, step=8)
    (part,) = (each for each in (tmp_path / "ckpt" / "step-8").glob("parts-*/*") if each.stat().st_size > MIB)
    with part.open("r+b") as file:
        file.seek(2 * MIB)
        file.write(b"damage")
    (tmp_path / "go").touch()
    with counting_server(tmp_path) as server:
        code, job = run(tmp_path, *of_url(server.url, "--max-restarts", "1", script(tmp_path, SLOWLY)))
    assert code == 0, job.err
    assert [each["step"] for each in job.events("resume_chosen")] == [8, 7]
    assert job.out.count("read") == 1


def test_a_url_with_nothing_in_it_yet_is_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir()
    text = "import os; print('there', os.listdir(os.environ['ROBUST_CKPT_MOUNTED']), os.environ.get('ROBUST_RESUME'))"
    with counting_server(tmp_path) as server:
        code, job = run(tmp_path, *of_url(server.url, script(tmp_path, text)))
    assert code == 0, job.err
    assert "there [] None" in job.out


def test_each_node_has_its_own(tmp_path: Path) -> None:
    make_checkpoint([tmp_path / "ckpt" / "step-7"], CONTENT, step=7)
    (tmp_path / "go").touch()
    words = ("--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{unused_port()}", "--rdzv-id", "mounted")
    words += ("--rdzv-conf", "keep_alive_max_attempt=30")
    env = {"ROBUST_TOKEN": "a token that both nodes know"}
    with counting_server(tmp_path) as server:
        words += of_url(server.url, script(tmp_path, SLOWLY))
        with running(tmp_path, *words, env=env) as one, running(tmp_path, *words, env=env) as other:
            assert [one.finish(), other.finish()] == [0, 0], one.err + other.err
            assert_nothing_is_mounted(one)
            assert_nothing_is_mounted(other)
        assert 1.0 <= server.sent_bytes / TOTAL < 1.1
    assert (one.out + other.out).count(f"attempt 0 read {len(CONTENT['x'])}") == 2


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_where_nothing_can_be_mounted_the_job_does_not_begin(tmp_path: Path, nodes: str) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin "$@"'
    words = of_url("http://127.0.0.1:9", "--nnodes", nodes, "--rdzv-endpoint", f"127.0.0.1:{unused_port()}")
    code, job = run(
        tmp_path, *words, script(tmp_path, "print('begun')"), prefix=("unshare", "-Ur", "sh", "-c", forbid, "-")
    )
    assert code == 1
    assert "--ckpt-mount: " in job.err and "/proc/sys/user/max_user_namespaces is 0" in job.err
    assert "begun" not in job.out and not (job.run_dir / "journal.jsonl").exists()


@pytest.mark.parametrize("is_stopped", [True, False])
def test_without_namespaces_it_is_mounted_in_the_open_and_goes_with_the_run_s_folder(
    tmp_path: Path, is_stopped: bool
) -> None:
    """As under AppArmor's ban of user namespaces. If the agent was killed, the guard or the next launcher removes that folder."""
    if shutil.which("fusermount3") is None:
        pytest.skip("fusermount3 is not installed (fuse3)")
    make_checkpoint([tmp_path / "ckpt" / "step-7"], CONTENT, step=7)
    folder = tmp_path / "memory" / FILES
    mount = CheckpointMount(
        f"file://{tmp_path}/ckpt", str(folder), os.environ, SystemClock(), print, tuple, ways=("open",)
    )
    try:
        assert [each.point for each in ours() if str(tmp_path) in each.point] == [str(folder)]
        assert mount.enter(("program",)) == ("program",)
        assert (folder / "step-7" / "sub" / "y").read_bytes() == CONTENT["sub/y"]
        if is_stopped:
            mount.stop()
        else:
            kill(*mount.pids())
            wait_for(lambda: not mount.pids(), "the server to end")
            remove_tree(str(tmp_path / "memory"))
            assert not folder.exists()
        assert not [each for each in ours() if str(tmp_path) in each.point]
    finally:
        mount.stop()
