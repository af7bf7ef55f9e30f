"""`--ckpt-dir URL` in real jobs: what the attempt starts from is in memory when ranks ask, and left the store once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import pytest
from counting_server import Counting, counting_server
from jobs import Job, run, running, script, unused_port, wait_for
from made_checkpoints import make_checkpoint

from robust_run.ckpt_io.ahead.taking import VARIABLE
from robust_run.launcher.agent.checkpoint.choosing import LOOKING, AssumedShare, next_step
from robust_run.launcher.agent.checkpoint.early import assumed_share, is_wanted
from robust_run.launcher.model.job import ImageUse, JobSpec, ManyNodes, OutputStreams
from robust_run.launcher.model.resume_events import ResumePoint

MIB = 1 << 20
CONTENT = {"x": os.urandom(8 * MIB), "y": os.urandom(3)}
TOTAL = sum(map(len, CONTENT.values()))

TRAIN = """
import hashlib, os, sys, time
from robust_run.ckpt_io.reading import Wanted, open_checkpoint

attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["RANK"]
print("ahead", os.environ.get("ROBUST_CKPT_FETCHED"), flush=True)
while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
digest = hashlib.sha256()
with open_checkpoint(os.environ["ROBUST_RESUME"]) as checkpoint:
    for index, file in enumerate(checkpoint.manifest.files):
        buffer = bytearray(file.size_bytes)
        checkpoint.read([Wanted(index, 0, memoryview(buffer))])
        digest.update(buffer)
print("loaded", attempt, digest.hexdigest(), flush=True)
open(f"loaded-{attempt}-{rank}", "w").close()
while not all(os.path.exists(f"loaded-{attempt}-{rank}") for rank in range(int(os.environ["WORLD_SIZE"]))):
    time.sleep(0.01)
sys.exit(3 if attempt == 0 else 0)
"""


def sent_in_all(server: Counting) -> float:
    return server.sent_bytes / TOTAL


def digest() -> str:
    import hashlib

    return hashlib.sha256(b"".join(CONTENT.values())).hexdigest()


def test_it_leaves_the_store_once_for_all_ranks_and_a_restart(tmp_path: Path) -> None:
    make_checkpoint([tmp_path / "ckpt" / "step-7"], CONTENT, step=7)
    with counting_server(tmp_path) as server:
        options = ("--nproc-per-node", "2", "--max-restarts", "1", "--ckpt-dir", f"{server.url}/ckpt")
        code, job = run(tmp_path, *options, script(tmp_path, TRAIN))
        assert code == 0, job.err
        loaded = [line for line in job.out.splitlines() if "loaded" in line]
        assert sorted(line[line.index("loaded") :] for line in loaded) == sorted(
            f"loaded {attempt} {digest()}" for attempt in (0, 0, 1, 1)
        )
        assert 1.0 <= sent_in_all(server) < 1.1, "and a manifest now and then"
    job.assert_nothing_left()


def fetcher_of(job: Job) -> int:
    """Return the pid of the process that fetches."""

    def find() -> int | None:
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                argv, environment = (Path(f"/proc/{entry}/{each}").read_bytes() for each in ("cmdline", "environ"))
            except OSError:
                continue
            if b"ahead.process" in argv and f"TEST_JOB={job.run_id}".encode() in environment.split(b"\0"):
                return int(entry)
        return None

    return int(wait_for(find, "the process that fetches"))


def test_ranks_read_themselves_where_the_process_is_gone(tmp_path: Path) -> None:
    make_checkpoint([tmp_path / "ckpt" / "step-7"], CONTENT, step=7)
    with counting_server(tmp_path) as server:
        server.allowed_bytes = 3 * MIB  # it has begun, and cannot be done
        words = ("--max-restarts", "1", "--ckpt-dir", f"{server.url}/ckpt", script(tmp_path, TRAIN), "go")
        with running(tmp_path, *words) as job:
            pid = fetcher_of(job)
            assert server.is_waiting.wait(60)
            os.kill(pid, signal.SIGKILL)
            server.allowed_bytes = float("inf")
            server.may_go_on.set()
            (tmp_path / "go").touch()
            assert job.finish() == 0, job.err
            assert f"loaded 0 {digest()}" in job.out and f"loaded 1 {digest()}" in job.out
        job.assert_nothing_left()


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    make_checkpoint([tmp_path / "ckpt" / "step-7"], CONTENT, step=7)
    with counting_server(tmp_path) as server:
        options = ("--ckpt-ahead", "off", "--max-restarts", "1", "--ckpt-dir", f"{server.url}/ckpt")
        code, job = run(tmp_path, *options, script(tmp_path, TRAIN), env={VARIABLE: "another job's"})
        assert code == 0, job.err
        assert "ahead None" in job.out
        assert sent_in_all(server) > 1.9


SPEC = JobSpec(
    argv=("python", "train.py"), script="train.py", is_python=True, nproc=8, run_id="run", rdzv_id="run", log_dir="/runs",
    streams=OutputStreams(redirects=(), tee=(), shown=()), ckpt_dir="hdfs://nn/run",
)  # fmt: skip
AT_URL = ResumePoint(source="storage", uuid="a", step=7, name="step-7")
URL = "hdfs://nn/run/step-7"


@pytest.mark.parametrize(
    ("running_now", "point", "url", "step"),
    [
        ("", AT_URL, URL, "begin"),
        ("a", AT_URL, URL, "go_on"),
        ("b", AT_URL, URL, "begin"),
        (LOOKING, AT_URL, URL, "tell"),
        (LOOKING, ResumePoint(), "", "end"),
        ("", AT_URL, "/ckpt/step-7", "nothing"),
        ("a", AT_URL, "/ckpt/step-7", "end"),
        ("a", ResumePoint(source="memory", uuid="m", step=9, name="memory-0-9"), "rrck+memory://0/9", "end"),
        ("a", ResumePoint(), "", "end"),
        ("a", None, "", "end"),
        ("", None, "", "nothing"),
        ("", ResumePoint(source="storage", step=7, name="step-7"), URL, "nothing"),
    ],
)
def test_what_is_fetched_is_what_the_attempt_starts_from(
    running_now: str, point: ResumePoint | None, url: str, step: str
) -> None:
    assert next_step(running_now, point, url) == step


def test_a_node_knows_its_share_before_it_meets_the_others_where_the_layout_is_fixed() -> None:
    def share(**more: object) -> AssumedShare | None:
        facts = {"fewest": 4, "most": 4, "host": "n0", "port": 1, "node_rank": 2, **more}
        return assumed_share(msgspec.structs.replace(SPEC, many=msgspec.convert(facts, ManyNodes)))

    assert share() == AssumedShare(own=2, nodes=4, nproc=8)
    assert share(standby=1) == share(), "one more node waits"
    assert share(node_rank=4, standby=1) is None, "this one does"
    assert share(node_rank=None) is None
    assert share(fewest=2) is None
    assert assumed_share(SPEC) is None, "a node that is alone"
    alone, image = SPEC, ImageUse(url="a.sqsh", cache="/cache")
    assert [is_wanted(each) for each in (alone, msgspec.structs.replace(alone, image=image))] == [False, True]


@pytest.mark.parametrize("is_placed", [False, True])
def test_nodes_share_so_that_it_leaves_the_store_once_for_all_of_them(tmp_path: Path, is_placed: bool) -> None:
    """A node that was told its place among a fixed number fetches what falls to it before it meets the others."""
    make_checkpoint([tmp_path / "ckpt" / "step-7"], CONTENT, step=7)
    words = ("--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{unused_port()}", "--rdzv-id", "shared")
    words += ("--rdzv-conf", "keep_alive_max_attempt=30", "--no-warm")
    ranks = [("--node-rank", str(rank)) if is_placed else () for rank in range(2)]
    env = {"ROBUST_TOKEN": "a token that both nodes know"}
    with counting_server(tmp_path) as server:
        words += ("--ckpt-dir", f"{server.url}/ckpt", script(tmp_path, TRAIN.replace("3 if attempt == 0 else 0", "0")))
        with running(tmp_path, *ranks[0], *words, env=env) as one:
            if is_placed:
                wait_for(lambda: sent_in_all(server) >= 1.0, "the first node's part, which is all of so little")
            with running(tmp_path, *ranks[1], *words, env=env) as other:
                assert [one.finish(), other.finish()] == [0, 0], one.err + other.err
                one.assert_nothing_left()
                other.assert_nothing_left()
        assert (one.out + other.out).count(f"loaded 0 {digest()}") == 2
        assert 1.0 <= sent_in_all(server) < 1.1
