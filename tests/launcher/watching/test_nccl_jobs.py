"""Real jobs whose ranks are made ready for NCCL's tracing. They talk gloo: it is all there, only nobody loads the plugin."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import warm_ground
from jobs import PATIENT, Job, run, running, script, wait_for
from small_optimizer import SGD

from robust_run.tracer.plugin import build, layout, reader

#: Trains with dropout, data of its own on each rank and gradients that are summed; leaves every bit of what it learnt.
TRAIN = f"""
import hashlib, os
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
{SGD}
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Dropout(0.3), torch.nn.Linear(64, 1)))
optimizer = SGD(model.parameters(), lr=1e-2)
torch.manual_seed(rank)
losses = []
for step in range(40):
    loss = model(torch.randn(16, 32)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item().hex())
content = b"".join(p.detach().numpy().tobytes() for p in model.parameters()) + repr(losses).encode()
print(rank, hashlib.sha256(content).hexdigest(), "ROBUST_NCCL_TRACE" in os.environ)
dist.destroy_process_group()
"""

#: The same by hand: DistributedDataParallel imports torch._dynamo, which takes as long as torch.
TRAIN_BY_HAND = (
    TRAIN.replace("from torch.nn.parallel import DistributedDataParallel\n", "")
    .replace("DistributedDataParallel(", "(")
    .replace(
        "    optimizer.step()\n", "    [dist.all_reduce(p.grad) for p in model.parameters()]\n    optimizer.step()\n"
    )
)

#: Of jobs that are not to be started again: none starts a warm process for that.
TWO_RANKS_ONCE = ("--nproc-per-node", "2", "--max-restarts", "0")

#: Says what it got, and starts again by being killed, twice.
SHOW = """
import json, os, time
attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["RANK"]
names = ("NCCL_PROFILER_PLUGIN", "ROBUST_NCCL_TRACE")
path = os.environ.get("ROBUST_NCCL_TRACE", "")
size = os.path.getsize(path) if path else 0
with open(f"seen-{attempt}-{rank}.part", "w") as file:
    json.dump({**{name: os.environ.get(name) for name in names}, "size": size}, file)
os.rename(f"seen-{attempt}-{rank}.part", f"seen-{attempt}-{rank}")
while attempt < RESTARTS:
    time.sleep(0.01)
"""


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a user for whom the plugin was built before."""
    if not any(map(shutil.which, build.COMPILERS)):
        pytest.skip("no C compiler here")
    base = tmp_path_factory.mktemp("cache")
    assert build.ensure(str(base / "robust-run")).path
    return {"XDG_CACHE_HOME": str(base)}


@pytest.fixture(scope="module")
def warm_folder(cache: dict[str, str]) -> Iterator[Path]:
    """Of a warm process with that cache, or none of these jobs would start from it."""
    with warm_ground.started(cache) as folder:
        yield folder


def seen(tmp_path: Path, attempt: int, rank: int) -> dict[str, object]:
    return json.loads((tmp_path / f"seen-{attempt}-{rank}").read_text())


def told(job: Job) -> list[str]:
    return [event.get("nccl", "") for event in job.events("attempt_started")]


def test_a_job_trains_bit_for_bit_as_without(tmp_path: Path, cache: dict[str, str]) -> None:
    path = script(tmp_path, TRAIN)
    results = {}
    for option in ("on", "off"):
        options = (*TWO_RANKS_ONCE, "--trace-nccl", option)
        code, job = run(tmp_path, *options, path, env=cache)
        assert code == 0, job.err
        lines = sorted(line.split() for line in job.out.splitlines())
        assert [line[2] for line in lines] == [str(option == "on")] * 2
        results[option] = [line[:2] for line in lines]
        if option == "on":
            assert told(job) == ["NCCL (of unknown version) is traced, though no NVIDIA device is visible on this node"]
    assert results["on"] == results["off"]


def test_spawned_forked_and_promoted_workers_alike_are_made_ready(tmp_path: Path, cache: dict[str, str]) -> None:
    path = script(tmp_path, SHOW.replace("RESTARTS", "2"))
    arguments = ("--nproc-per-node", "2", "--trace-nccl", "on", path)
    with running(tmp_path, *arguments, env={**cache, "ROBUST_WARM_DAEMON": "off"}, prefix=PATIENT) as job:
        for attempt in range(2):
            for rank in range(2):
                job.wait_for_file(f"seen-{attempt}-{rank}", tmp_path)
            if attempt == 0:
                wait_for(lambda: len(job.events("standby_ready")) >= 2, "standby workers")
            os.kill(job.pids(attempt)[0], signal.SIGKILL)
        assert job.finish() == 0
        job.assert_nothing_left()
    ways = {how for event in job.events("attempt_started") for how in event["how"]}
    assert {"spawn", "promote"} <= ways
    files = set()
    for attempt in range(3):
        for rank in range(2):
            got = seen(tmp_path, attempt, rank)
            assert str(got["NCCL_PROFILER_PLUGIN"]).startswith(cache["XDG_CACHE_HOME"])
            assert str(got["ROBUST_NCCL_TRACE"]).endswith(f"attempt_{attempt}-{rank}.steps.nccl")
            assert got["size"] == layout.FILE_BYTES
            files.add(got["ROBUST_NCCL_TRACE"])
    assert len(files) == 6
    assert len([text for text in told(job) if text]) == 1, "it is told once"


def test_a_worker_that_loads_the_plugin_writes_into_the_file_of_its_rank(tmp_path: Path, cache: dict[str, str]) -> None:
    program = """
    import ctypes, os, time
    class Table(ctypes.Structure):
        _fields_ = [(name, ctypes.c_void_p) for name in ("name", "init", "start", "stop", "state", "finalize")]
    plugin = ctypes.CDLL(os.environ["NCCL_PROFILER_PLUGIN"])
    init = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint64, ctypes.POINTER(ctypes.c_int), ctypes.c_char_p,
        ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p,
    )(Table.in_dll(plugin, "ncclProfiler_v6").init)
    context, mask = ctypes.c_void_p(), ctypes.c_int()
    assert init(ctypes.byref(context), 7, ctypes.byref(mask), b"dp_0", 1, 2, int(os.environ["RANK"]), None) == 0
    assert mask.value == 30
    open("up" + os.environ["RANK"], "w").close()
    while not os.path.exists("down"):
        time.sleep(0.01)
    """
    path = script(tmp_path, program)
    with running(tmp_path, "--nproc-per-node", "2", "--trace-nccl", "on", path, env=cache) as job:
        for rank in range(2):
            job.wait_for_file(f"up{rank}", tmp_path)
        traces = [reader.read(str(file)) for file in sorted(Path("/dev/shm").glob(f"robust-run-{job.run_id}-*/*.nccl"))]
        pids = job.pids()
        (tmp_path / "down").touch()
        assert job.finish() == 0, job.err
        job.assert_nothing_left()
    found = [(trace.glance.pid, trace.communicators[0].name, trace.communicators[0].rank) for trace in traces if trace]
    assert found == [(pids[0], "dp_0", 0), (pids[1], "dp_0", 1)]


def test_a_plugin_of_the_user_s_own_stays(tmp_path: Path, cache: dict[str, str]) -> None:
    path = script(tmp_path, SHOW.replace("RESTARTS", "0"))
    env = {**cache, "NCCL_PROFILER_PLUGIN": "/opt/mine.so"}
    code, job = run(tmp_path, "--trace-nccl", "on", path, env=env)
    assert code == 0
    assert seen(tmp_path, 0, 0) == {"NCCL_PROFILER_PLUGIN": "/opt/mine.so", "ROBUST_NCCL_TRACE": None, "size": 0}
    assert job.err.count("NCCL is not traced: the job has a profiler plugin of its own") == 1


@pytest.mark.parametrize(
    ("arguments", "env"), [((), {}), (("--trace-nccl", "off"), {}), (("--trace-nccl", "on"), {"ROBUST_TRACE": "0"})]
)
def test_unless_asked_for_a_job_without_gpus_is_left_alone(
    tmp_path: Path, cache: dict[str, str], arguments: tuple[str, ...], env: dict[str, str]
) -> None:
    if not arguments and os.path.exists("/dev/nvidiactl"):
        pytest.skip("there is a GPU here")
    path = script(tmp_path, SHOW.replace("RESTARTS", "0"))
    code, job = run(tmp_path, *arguments, path, env={**cache, **env})
    assert code == 0
    assert seen(tmp_path, 0, 0) == {"NCCL_PROFILER_PLUGIN": None, "ROBUST_NCCL_TRACE": None, "size": 0}
    assert ("NCCL" in job.err) == bool(env)


def test_without_a_compiler_the_job_runs_and_one_line_says_why_it_is_not_traced(tmp_path: Path) -> None:
    if os.path.exists(os.path.join(os.path.dirname(build.SOURCE), build.OBJECT_NAME)):
        pytest.skip("this is an installed wheel, which has the plugin")
    path = script(tmp_path, SHOW.replace("RESTARTS", "0"))
    (tmp_path / "bin").mkdir()
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": str(tmp_path / "bin")}
    code, job = run(tmp_path, "--trace-nccl", "on", path, env=env)
    assert code == 0
    assert "NCCL is not traced: no C compiler (cc, gcc, clang) is on the PATH: install one" in job.err
    assert job.err.count("NCCL is not traced") == 1
    assert seen(tmp_path, 0, 0)["NCCL_PROFILER_PLUGIN"] is None


def test_its_status_says_whether_nccl_is_traced(tmp_path: Path, cache: dict[str, str]) -> None:
    path = script(tmp_path, SHOW.replace("RESTARTS", "1"))
    with running(tmp_path, "--trace-nccl", "on", path, env=cache) as job:
        job.wait_for_file("seen-0-0", tmp_path)
        wait_for(lambda: (job.run_dir / "api.json").exists(), "somebody to ask")
        command = [sys.executable, "-c", "from robust_run.robust_cli import main; main()", "status", str(job.run_dir)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        os.kill(job.pids()[0], signal.SIGKILL)
        assert job.finish() == 0
    assert "\n  NCCL (of unknown version) is traced" in result.stdout, result.stderr


def test_unasked_a_job_with_a_gpu_is_traced_from_the_attempt_on_that_has_the_plugin(tmp_path: Path) -> None:
    """A /dev of our own has what tells of a driver. The first attempt is not held up by a compiler; one runs beside it."""
    if os.path.exists(os.path.join(os.path.dirname(build.SOURCE), build.OBJECT_NAME)):
        pytest.skip("this is an installed wheel, which has the plugin")
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0 or not any(map(shutil.which, build.COMPILERS)):
        pytest.skip("needs root, unshare and a C compiler")
    (tmp_path / "dev").mkdir()
    make = (
        f"D={tmp_path}/dev; mount -t tmpfs none $D && cp -a /dev/null /dev/zero /dev/urandom /dev/random $D && "
        "mkdir $D/shm && touch $D/nvidiactl && mount --move $D /dev && mount -t tmpfs none /dev/shm || exit 77"
    )
    program = SHOW.replace("RESTARTS", "1").replace("while attempt", "import glob\nwhile attempt", 1)
    program += "if attempt == 0:\n    os.kill(os.getpid(), 9)\n"
    program = program.replace(
        "while attempt < 1:", "while attempt < 1 and not glob.glob('cache/robust-run/nccl-plugin-*.so'):"
    )
    path = script(tmp_path, program)
    prefix = (unshare, "-m", "sh", "-c", f'{make}; exec "$@"', "sh")
    with running(tmp_path, path, env={"XDG_CACHE_HOME": str(tmp_path / "cache")}, prefix=prefix, cwd=tmp_path) as job:
        code = job.finish()
        if code == 77:
            pytest.skip("may not mount here")
        job.assert_nothing_left()
    assert code == 0, job.err
    first, second = told(job)
    assert "must be compiled first; the next attempt has it" in first
    assert second.endswith("is traced")
    assert seen(tmp_path, 0, 0)["NCCL_PROFILER_PLUGIN"] is None
    assert str(seen(tmp_path, 1, 0)["NCCL_PROFILER_PLUGIN"]).startswith(str(tmp_path / "cache"))
    assert "NCCL" not in job.err, "nobody asked"


@pytest.mark.parametrize("size", ["0", "64k", "6m"])
def test_a_memory_file_system_that_is_full_is_no_reason_not_to_train(
    tmp_path: Path, cache: dict[str, str], size: str
) -> None:
    """Not even a page is free, or no room for the file; the disk takes the place of a memory that takes no folder."""
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0:
        pytest.skip("needs root and unshare to have a /dev/shm of its own")
    if subprocess.run([unshare, "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("may not unshare here")
    fill = "dd if=/dev/zero of=/dev/shm/full bs=4096 2>/dev/null;" if size == "0" else ""
    mount = f'mount -t tmpfs -o size={"1m" if size == "0" else size} none /dev/shm && {{ {fill} exec "$@"; }}'
    path = script(tmp_path, TRAIN_BY_HAND)
    prefix = (unshare, "-m", "sh", "-c", mount, "sh")
    with running(tmp_path, *TWO_RANKS_ONCE, "--trace-nccl", "on", path, env=cache, prefix=prefix) as job:
        code = job.finish()
        job.assert_nothing_left()
    assert code == 0, job.err
    assert job.err.count("NCCL is not traced") == 1
    assert "/dev/shm has" in job.err
    assert {line.split()[2] for line in job.out.splitlines()} == {"False"}
