"""`robust-run --image`: real jobs inside images that come from an object store, and what happens when something is killed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from counting_server import counting_server
from fake_torch import write_fake_torch
from jobs import PATIENT, Job, kill, run, running, script, unused_port, wait_for
from made_checkpoints import make_checkpoint
from servers.model_origin import ModelOrigin

from robust_run.prefetch import blockmap
from robust_run.prefetch.bringing import bring
from robust_run.prefetch.errors import ControlFailed
from robust_run.prefetch.rules.types import BlockRun, Status
from robust_run.prefetch.server import control
from tests.launcher.images.image_ground import (
    FILLER_BYTES,
    loops_on,
    make_environment_image,
    needs_images,
    root_image_of_run,
)

LOOK = """
import os, sys
print(sys.executable, os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ.get("OF_IMAGE"), os.getcwd())
print(open("/etc/only-in-image").read().strip(), os.path.exists("/opt/filler"), flush=True)
"""
#: Says that it runs, waits to be let go, and reads a file that nothing has read before.
WAIT = """
import os, sys, time
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
open(f"up-{attempt}", "w").close()
while not os.path.exists("go") and attempt == "0":
    time.sleep(0.01)
with open("/opt/filler", "rb") as file:
    count = len(file.read())
print("attempt", attempt, "read", count, flush=True)
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_images()
    return root_image_of_run(tmp_path_factory)


@pytest.fixture
def origin(images: Path) -> Iterator[ModelOrigin]:
    with ModelOrigin(images, latency_s=0.005) as server:
        yield server


def of_image(origin: ModelOrigin, tmp_path: Path, name: str = "root.sqsh") -> tuple[str, ...]:
    return ("--image", f"{origin.url}{name}", "--image-cache", str(tmp_path / "cache"))


def forget_blocks(cache: Path) -> None:
    """Leave the hot lists and nothing else."""
    for each in cache.iterdir():
        if each.name != "hot":
            shutil.rmtree(each)


def start_of(job: Job) -> dict[str, object]:
    (path,) = (job.run_dir / "image").glob("*.json")
    return dict(json.loads(path.read_text()))


def status(tmp_path: Path) -> Status:
    def ask() -> Status | None:
        for path in (tmp_path / "cache/control").glob("*.sock"):
            try:
                return control.ask(str(path), control.AskStatus(), Status)
            except ControlFailed:
                continue
        return None

    return wait_for(ask, "the block server")  # type: ignore[no-any-return]


def holder(job: Job) -> int:
    def find() -> int | None:
        lines = [line for line in job.leftovers() if "prefetch.inside.holder" in line]
        return int(lines[0].partition(":")[0]) if lines else None

    return wait_for(find, "the image's holder")  # type: ignore[no-any-return]


def test_workers_find_the_image_their_folder_and_their_place_in_the_world(origin: ModelOrigin, tmp_path: Path) -> None:
    code, job = run(tmp_path, *of_image(origin, tmp_path), "--nproc-per-node", "2", script(tmp_path, LOOK))
    assert code == 0, job.err
    lines = job.out.splitlines()
    assert sorted(line for line in lines if line.startswith("/")) == [
        f"/opt/python/bin/python3 {rank} 2 yes {tmp_path}" for rank in (0, 1)
    ]
    assert lines.count("of the image True") == 2
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert not loops_on(tmp_path)


def test_the_second_launch_fetches_what_the_first_one_read(origin: ModelOrigin, tmp_path: Path) -> None:
    text = LOOK + "import json, decimal, argparse\n" + WAIT.partition("with open")[0]
    path = script(tmp_path, text)
    (tmp_path / "go").touch()
    code, first = run(tmp_path, *of_image(origin, tmp_path), path)
    assert code == 0, first.err
    assert start_of(first)["way"] == "first"
    whole = (Path(origin._folder) / "root.sqsh").stat().st_size
    forget_blocks(tmp_path / "cache")
    for left in ("go", "up-0"):
        (tmp_path / left).unlink()
    before, bytes_before = len(origin.asked), origin.bytes_sent
    with running(tmp_path, *of_image(origin, tmp_path), path) as job:
        job.wait_for_file("up-0", tmp_path)
        asked = [each for each in origin.asked[before:] if each.path.endswith(".sqsh")]
        fetched = origin.bytes_sent - bytes_before
        (tmp_path / "go").touch()
        assert job.finish() == 0
        job.assert_nothing_left()
    start = start_of(job)
    assert start["way"] == "hot"
    assert isinstance(start["hit_rate"], float)
    assert start["hit_rate"] > 0.9
    assert 0 < fetched < 0.75 * whole, "what nobody reads is not fetched while it starts"
    assert len(asked) < 40, "neighbouring blocks come with one request"
    assert "hot list" in job.err


REFUSED = {
    "no such image": (("--image", "{url}not-there.sqsh"), "robust image build"),
    "no such file": (("--image", "not-there.sqsh"), "no such file"),
    "nobody answers": (("--image", "http://127.0.0.1:9/x.sqsh"), "127.0.0.1:9"),
    "no Python in it": (("--image", "{url}empty.sqsh"), "no python3 on the PATH"),
    "a bind over a bind": (("--image", "{url}root.sqsh", "--bind", "{tmp}:{tmp}/cache/x/y"), "--bind"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_an_image_that_cannot_be_used_is_one_line_before_anything_starts(
    origin: ModelOrigin, images: Path, tmp_path: Path, mistake: str
) -> None:
    if mistake == "no Python in it" and not (images / "empty.sqsh").exists():
        from robust_run.prefetch.image import build

        (tmp_path / "empty/etc").mkdir(parents=True)
        build.build(str(tmp_path / "empty"), str(images / "empty.sqsh"), build.BuildOptions(compression="lz4"))
    words, named = REFUSED[mistake]
    given = [word.format(url=origin.url, tmp=tmp_path) for word in words]
    code, job = run(tmp_path, *given, "--image-cache", str(tmp_path / "cache"), script(tmp_path, LOOK))
    assert code == (2 if mistake == "no such file" else 1)
    assert job.err.count("\n") == 1, job.err
    assert job.err.startswith("robust-run: ")
    assert named in job.err
    assert job.out == ""
    assert not list(tmp_path.glob("runs/*")), "nothing was started, nothing was made"


def test_a_signal_while_the_image_is_fetched_ends_the_launcher(origin: ModelOrigin, tmp_path: Path) -> None:
    origin.fault = "silent"
    with running(tmp_path, *of_image(origin, tmp_path), script(tmp_path, LOOK)) as job:
        wait_for(lambda: origin.met, "the launcher to ask for the image")
        job.signal(signal.SIGINT)
        assert job.finish() == 128 + signal.SIGINT
        job.assert_nothing_left()
    assert "SIGINT came before the image was there" in job.err


def test_binds_and_a_program_of_the_image(origin: ModelOrigin, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/file").write_text("data\n")
    binds = ("--bind", f"{tmp_path}/data:/deep/data:ro", "--bind", "data:/also")
    code, job = run(
        tmp_path, *of_image(origin, tmp_path), *binds, "--no-python", "sh", "-c", "cat /deep/data/file; : > /also/new; echo $RANK"
    )  # fmt: skip
    assert (code, job.out) == (0, "data\n0\n"), job.err
    assert (tmp_path / "data/new").exists()


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_changes_to_a_writable_image(origin: ModelOrigin, tmp_path: Path, where: str) -> None:
    writable = "--image-writable" if where == "memory" else f"--image-writable={tmp_path}/changes"
    text = "import os; print(os.path.exists('/opt/new')); open('/opt/new', 'w').close()"
    arguments = (*of_image(origin, tmp_path), writable, script(tmp_path, text))
    said = [run(tmp_path, *arguments) for _ in range(2)]
    assert [code for code, _ in said] == [0, 0], said[0][1].err
    assert [job.out for _, job in said] == ["False\n", "True\n" if where == "folder" else "False\n"]
    assert not Path("/opt/new").exists()


def test_a_restart_enters_the_same_place(origin: ModelOrigin, tmp_path: Path) -> None:
    text = LOOK + "sys.exit(3 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)\n"
    code, job = run(tmp_path, *of_image(origin, tmp_path), script(tmp_path, text))
    assert code == 0, job.err
    assert job.out.count("of the image True") == 2
    assert len([each for each in origin.asked if each.path.endswith(".json")]) == 1, "the image was opened once"
    assert sum(any(way in line for way in ("kernel", "userns", "unpack")) for line in job.err.splitlines()) == 1


def test_a_killed_block_server_is_replaced_under_the_job(origin: ModelOrigin, tmp_path: Path) -> None:
    with running(tmp_path, *of_image(origin, tmp_path), script(tmp_path, WAIT)) as job:
        job.wait_for_file("up-0", tmp_path)
        os.kill(status(tmp_path).pid, signal.SIGKILL)
        (tmp_path / "go").touch()
        assert job.finish() == 0, job.err
        job.assert_nothing_left()
    assert "attempt 0 read 12582912" in job.out
    assert "a new one takes over" in job.err


def test_an_image_that_is_lost_is_the_cause_and_the_next_attempt_has_it_again(
    origin: ModelOrigin, tmp_path: Path
) -> None:
    with running(tmp_path, *of_image(origin, tmp_path), script(tmp_path, WAIT)) as job:
        job.wait_for_file("up-0", tmp_path)
        server = status(tmp_path).pid
        kill(holder(job), server)
        wait_for(lambda: not os.path.exists(f"/proc/{server}"), "the server to be gone")
        (tmp_path / "go").touch()
        assert job.finish() == 0
        job.assert_nothing_left()
    assert "attempt 1 read 12582912" in job.out
    (incident,) = (job.run_dir / "incidents").glob("*.json")
    verdict = json.loads(incident.read_text())["verdict"]
    assert "the process that kept the image has ended" in verdict["sentence"]
    assert verdict["rule"] == "storage" or os.geteuid() != 0, "a namespace of a user ends with its first process"


#: Reads a file of which one block is wrong at the only origin.
DIE = {
    "read": "open('/opt/filler', 'rb').read()",
    "mapped": "import mmap; file = open('/opt/filler', 'rb'); mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)[:]",
}


@pytest.mark.parametrize("how", DIE)
def test_a_rank_that_dies_of_a_wrong_block_has_the_image_as_its_cause(
    origin: ModelOrigin, images: Path, tmp_path: Path, how: str
) -> None:
    _, wrong = wrong_image(images, "one.sqsh")
    given = of_image(origin, tmp_path, "one.sqsh")
    code, job = run(tmp_path, *given, "--max-restarts", "0", script(tmp_path, DIE[how]))
    assert code != 0
    told = f"block {wrong} could not be read: {origin.url}one.sqsh sends wrong bytes"
    assert told in job.err, job.err
    (incident,) = (job.run_dir / "incidents").glob("*.json")
    verdict = json.loads(incident.read_text())["verdict"]
    assert verdict["rule"] == ("storage" if how == "read" else "died_of_signal")
    assert f"the image {origin.url}one.sqsh failed: {told}" in verdict["sentence"]


READ_ALL = """
import hashlib
whole = hashlib.sha256()
with open("/opt/filler", "rb") as file:
    while data := file.read(1 << 20):
        whole.update(data)
print(whole.hexdigest(), flush=True)
"""


def fill_cache(origin: ModelOrigin, tmp_path: Path) -> Path:
    """Bring all of the image into the cache, and return the file in which it is."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    block_map = blockmap.decode((Path(origin._folder) / "root.sqsh.blocks.json").read_bytes())
    done = bring(f"{origin.url}root.sqsh", block_map, str(cache), [BlockRun(0, block_map.blocks)])
    assert not done.missing
    return cache / blockmap.identity(block_map) / "image"


def damage_all(image: Path) -> int:
    """Alter 64 bytes in each MiB; return how many blocks are wrong then."""
    with image.open("r+b") as file:
        count = file.seek(0, os.SEEK_END) // (1 << 20)
        for block in range(count):
            file.seek((block << 20) + 300_000)
            was = file.read(64)
            file.seek((block << 20) + 300_000)
            file.write(bytes(byte ^ 0xFF for byte in was))
    return count


def test_what_was_damaged_in_the_cache_is_never_seen_by_a_job(origin: ModelOrigin, tmp_path: Path) -> None:
    right = hashlib.sha256(random.Random(1).randbytes(FILLER_BYTES)).hexdigest()
    image = fill_cache(origin, tmp_path)
    count = damage_all(image)
    code, job = run(tmp_path, *of_image(origin, tmp_path), script(tmp_path, READ_ALL))
    assert (code, job.out) == (0, f"{right}\n"), job.err
    assert "all of the image is in the cache" in job.err
    assert f"of root.sqsh in the cache {tmp_path}/cache did not match its digest; fetched again" in job.err
    repaired = start_of(job)["repaired"]
    assert isinstance(repaired, int) and FILLER_BYTES >> 20 <= repaired <= count
    assert re.search(rf"{repaired} block(s were| was) damaged in the cache and fetched again", job.err)


def test_where_a_damaged_block_cannot_be_fetched_again_the_cache_is_in_the_cause(
    origin: ModelOrigin, tmp_path: Path
) -> None:
    image = fill_cache(origin, tmp_path)
    text = READ_ALL.replace(
        "import hashlib",
        "import hashlib, os, time\nopen('up', 'w').close()\nwhile not os.path.exists('go'):\n    time.sleep(0.01)",
    )
    with running(tmp_path, *of_image(origin, tmp_path), "--max-restarts", "0", script(tmp_path, text)) as job:
        job.wait_for_file("up", tmp_path)
        origin.fault = "garbage"
        damage_all(image)
        (tmp_path / "go").touch()
        assert job.finish() != 0
    cause = f"what the cache {tmp_path}/cache had of it did not match its digest"
    assert cause in job.err
    [incident] = (job.run_dir / "incidents").glob("*.json")
    assert cause in incident.read_text()


def test_a_cache_without_room_is_said_with_its_numbers(origin: ModelOrigin, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    (tmp_path / "cache").mkdir()
    script_path = script(tmp_path, LOOK)
    small = f"mount -t tmpfs -o size=200m,mode=0700 tmpfs {tmp_path}/cache && exec"
    argv = [sys.executable, "-m", "robust_run", *of_image(origin, tmp_path), script_path]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{small} "$@"', "sh", *argv], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if f"the cache {tmp_path}/cache is full" in line]
    assert len(said) == 1, done.stderr
    assert "199 MiB are free there, 256 MiB of the disk are left to others, and " in said[0]
    assert "blocks are not kept, so this start and later ones are slower" in said[0]


#: Reads a file of which one block is wrong, when told to, and goes on.
FAILS = """
import os, time
while not os.path.exists("go"):
    time.sleep(0.01)
try:
    open("/opt/filler", "rb").read()
except OSError:
    open("failed", "w").close()
while not os.path.exists("done"):
    time.sleep(0.01)
"""
WORKS = """
import os, time
while not os.path.exists("done"):
    time.sleep(0.01)
"""


def test_reads_that_fail_in_one_job_s_image_are_its_image_s_and_nothing_to_another_job_on_the_machine(
    origin: ModelOrigin, images: Path, tmp_path: Path
) -> None:
    if not os.access("/dev/kmsg", os.R_OK) or os.geteuid() != 0:
        pytest.skip("the kernel's log, or its own mounts, are not for us")
    name = wrong_image(images, "bad.sqsh")[0]
    (tmp_path / "other").mkdir()

    def heard(job: Job) -> list[dict[str, str]]:
        signs = [event["event"] for event in job.events("health_seen")]
        return [sign for sign in signs if "dev loop" in sign["detail"]]

    with (
        running(tmp_path, *of_image(origin, tmp_path, name), script(tmp_path, FAILS)) as job,
        running(tmp_path / "other", script(tmp_path / "other", WORKS)) as other,
    ):
        for each in (job, other):
            wait_for(lambda each=each: each.events("sensors_began"), "sensors")  # type: ignore[misc]
        if not loops_on(tmp_path):
            pytest.skip("this image is not mounted by the kernel")
        (tmp_path / "go").touch()
        job.wait_for_file("failed", tmp_path)
        of_image_, of_other = wait_for(lambda: heard(job), "its own"), wait_for(lambda: heard(other), "the other's")
        for folder in (tmp_path, tmp_path / "other"):
            (folder / "done").touch()
        assert job.finish() == 0
        assert other.finish() == 0
    assert {(each["name"], each["kind"], each["subject"]) for each in of_image_} == {
        ("image.error", "alert", f"image {origin.url}{name}")
    }
    assert {(each["name"], each["kind"]) for each in of_other} == {("disk.error", "note")}
    assert not [action for each in (job, other) for action in each.actions("rule_spoke") if action["rung"] != "report"]
    assert not (other.run_dir / "incidents").exists()


def wrong_image(images: Path, name: str) -> tuple[str, int]:
    """Make an image of which one block's digest is wrong; return its name and the number of the block."""
    filler, whole = random.Random(1).randbytes(FILLER_BYTES), (images / "root.sqsh").read_bytes()
    made = blockmap.make(str(images / "root.sqsh"))
    wrong = whole.index(filler[FILLER_BYTES // 2 :][:64]) // made.block_bytes
    digests = bytearray(made.digests)
    digests[wrong * 16] ^= 1
    shutil.copy(images / "root.sqsh", images / name)
    lying = msgspec.structs.replace(made, digests=bytes(digests))
    (images / f"{name}.blocks.json").write_bytes(blockmap.encode(lying))
    return name, wrong


def test_an_image_that_would_hide_the_job_is_refused(origin: ModelOrigin, images: Path, tmp_path: Path) -> None:
    made = blockmap.make(str(images / "root.sqsh"), mount_at=str(tmp_path))
    shutil.copy(images / "root.sqsh", images / "hides.sqsh")
    (images / "hides.sqsh.blocks.json").write_bytes(blockmap.encode(made))
    code, job = run(tmp_path, *of_image(origin, tmp_path, "hides.sqsh"), script(tmp_path, LOOK))
    assert (code, job.err.count("\n")) == (1, 1)
    assert f"shown at {tmp_path}, and there it would hide the working directory" in job.err


@pytest.mark.parametrize("victims", ["agent", "guard", "guard and agent", "all"])
def test_nothing_stays_mounted_or_running_whoever_is_killed(origin: ModelOrigin, tmp_path: Path, victims: str) -> None:
    with running(tmp_path, *of_image(origin, tmp_path), script(tmp_path, WAIT)) as job:
        job.wait_for_file("up-0", tmp_path)
        chosen = {
            "agent": [job.agent_pid()],
            "guard": [job.pid],
            "guard and agent": [job.pid, job.agent_pid()],
            "all": [job.pid, job.agent_pid(), holder(job), status(tmp_path).pid],
        }[victims]
        kill(*chosen)
        job.finish()
        wait_for(lambda: not job.leftovers(), "all processes to end")
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    wait_for(lambda: not loops_on(tmp_path), "the loop devices to be free")


def test_an_environment_image_lies_where_it_belongs_and_only_for_the_workers(tmp_path: Path) -> None:
    needs_images()
    place = tmp_path / "opt" / "environment"
    make_environment_image(tmp_path, str(place))
    text = f"import sys; print(sys.executable, sys.prefix, open('{place}/in-image').read().strip())"
    with ModelOrigin(tmp_path) as origin:
        code, job = run(tmp_path, *of_image(origin, tmp_path, "environment.sqsh"), script(tmp_path, text))
    assert code == 0, job.err
    assert job.out == f"{place}/bin/python3 {place} of the image\n"
    assert not (place / "in-image").exists()


FAILS_ONCE_WARM = """
import os, sys, time
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(attempt, sys.executable, "decimal" in sys.modules, sorted(name for name in sys.modules if "robust_run" in name), flush=True)
from torch.optim.optimizer import Optimizer
Optimizer().step()
try:
    from robust_run.version import __version__ as found
except ImportError:
    found = "none"
print(attempt, "robust_run", found, any(path.endswith("cache/ours") for path in sys.path), flush=True)
if attempt == "0":
    while not os.path.exists("go"):
        time.sleep(0.01)
    sys.exit(3)
"""


def version_of_its_own(folder: Path) -> ModuleType:
    """A robust_run of another version, as far as an image may have one."""
    made = ModuleType("robust_run")
    made.__file__ = str(folder / "another/__init__.py")
    (folder / "another").mkdir()
    (folder / "another/__init__.py").touch()
    (folder / "another/version.py").write_text("__version__ = '0.0.9'\n")
    return made


@pytest.mark.parametrize("has", ["this one", "another", "none", "none, and hides ours", "none, and cannot use ours"])
def test_a_warm_process_lives_in_the_image_whatever_robust_run_that_has(tmp_path: Path, has: str) -> None:
    """And a program has what the image has: ours, which the warm process may be made of, is not seen."""
    import msgspec

    import robust_run

    needs_images()
    place = tmp_path / "environment"
    packages = {"this one": (robust_run, msgspec), "another": (version_of_its_own(tmp_path),)}.get(has, ())
    make_environment_image(tmp_path, str(place), *packages)
    write_fake_torch(tmp_path)
    path, cannot = script(tmp_path, FAILS_ONCE_WARM), "cannot" in has
    arguments = ("--image", str(tmp_path / "environment.sqsh"), "--image-cache", str(tmp_path / "cache"))
    if cannot:
        (tmp_path / "empty").mkdir()
        arguments += ("--bind", f"{tmp_path}/empty:{tmp_path}/cache/ours/msgspec")
    env = {}
    if has == "another":  # and its Python is named
        env["PYTHON_EXEC"] = f"{place}/bin/python3"
    if "hides" in has:  # robust-run is installed in the very environment that the image replaces
        (place / "ours").mkdir(parents=True)
        (place / "ours/robust_run").symlink_to(os.path.dirname(robust_run.__file__))
        env["PYTHONPATH"] = str(place / "ours")
    with running(tmp_path, *arguments, "--preload", "decimal", path, prefix=PATIENT, env=env) as job:
        known = "warm_refused" if cannot else "standby_ready"
        wait_for(lambda: job.events(known), known)
        (tmp_path / "go").touch()
        assert job.finish() == 0, job.err
        job.assert_nothing_left()
    version = {"this one": robust_run.version.__version__, "another": "0.0.9"}.get(has, "none")
    assert job.out.splitlines() == [
        f"0 {place}/bin/python3 False []",
        f"0 robust_run {version} False",
        f"1 {place}/bin/python3 {not cannot} []",
        f"1 robust_run {version} False",
    ]
    assert ("promoted" in job.err) is not cannot
    assert ("has no robust_run for its Python, and cannot use this one: " in job.err) is cannot
    assert "it had made progress" in job.err, "steps are counted"


def test_each_node_has_a_place_of_its_own_and_they_share_what_they_fetch(origin: ModelOrigin, tmp_path: Path) -> None:
    port = unused_port()
    words = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "shared")
    words += ("--rdzv-conf", "keep_alive_max_attempt=30")  # no node is lost because the machine is busy
    path = script(tmp_path, LOOK)
    env = {"ROBUST_TOKEN": "a token that both nodes know"}
    image = f"{origin.url}root.sqsh"
    with (
        running(tmp_path, *words, "--image", image, "--image-cache", str(tmp_path / "a"), path, env=env) as one,
        running(tmp_path, *words, "--image", image, "--image-cache", str(tmp_path / "b"), path, env=env) as other,
    ):
        assert [one.finish(), other.finish()] == [0, 0], one.err + other.err
        one.assert_nothing_left()
        other.assert_nothing_left()
    said = one.out + other.out
    assert sorted(line.split()[1] for line in said.splitlines() if line.startswith("/")) == ["0", "1"]
    assert said.count("of the image True") == 2
    whole = (Path(origin._folder) / "root.sqsh").stat().st_size
    assert origin.bytes_sent < 1.7 * whole, "a block that one node has is not fetched twice from the origin"
    for cache in ("a", "b"):  # this origin takes no lists, so each node keeps one
        (kept,) = (tmp_path / cache / "hot").rglob("*.json")
        assert json.loads(kept.read_bytes())["launches"] == 1


def test_a_job_that_is_in_the_image_already_starts_plainly(images: Path, tmp_path: Path) -> None:
    image = images / "root.sqsh"
    env = {"APPTAINER_CONTAINER": str(image)}
    arguments = ("--image", str(image), "--image-cache", str(tmp_path / "cache"))
    code, job = run(tmp_path, *arguments, script(tmp_path, "import sys; print(sys.executable)"), env=env)
    assert (code, job.out) == (0, f"{sys.executable}\n"), job.err


def test_without_an_image_nothing_of_images_is_imported(tmp_path: Path) -> None:
    import subprocess

    code = """
import sys, os
import robust_run.launcher.agent.workers.workers as workers
def stop(*args, **kwargs):
    print([name for name in sys.modules if "prefetch" in name or "launcher.image" in name or "read_ahead" in name], flush=True)
    os._exit(0)
workers.start = stop
from robust_run.cli import run
run(sys.argv[1:], os.environ)
"""
    argv = [sys.executable, "-c", code, "--log-dir", str(tmp_path / "runs"), script(tmp_path, "")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_the_files_of_an_environment_are_read_ahead_the_second_time(tmp_path: Path) -> None:
    import venv

    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    packages = next(environment.glob("lib/python3*/site-packages"))
    (packages / "mine.py").write_text("x = 1\n")
    env = {"PYTHON_EXEC": str(environment / "bin/python"), "HOME": str(tmp_path), "XDG_CACHE_HOME": ""}
    path = script(tmp_path, "import mine, os; print(mine.x, [name for name in os.environ if 'ROBUST_ENV' in name])")
    first, second = (run(tmp_path, "--prefetch-env", path, env=env) for _ in range(2))
    assert (first[0], second[0]) == (0, 0), first[1].err
    assert first[1].out == second[1].out == "1 []\n"
    assert "no launch like this was recorded yet" in first[1].err
    assert "hit rate 100 %" in second[1].err
    (lists,) = {each.parent for each in (tmp_path / ".cache/robust-run/environments").glob("*.json")}
    assert any("site-packages/mine.py" in each.read_text() for each in lists.iterdir())


@pytest.mark.parametrize("as_wanted", [True, False])
def test_the_cache_is_a_folder_that_only_we_can_write(origin: ModelOrigin, tmp_path: Path, as_wanted: bool) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    if not as_wanted:
        (tmp_path / "cache").chmod(0o777)
    code, job = run(tmp_path, *of_image(origin, tmp_path), script(tmp_path, LOOK))
    assert (code == 0) is as_wanted
    assert ("--image-cache" in job.err) is not as_wanted


def test_what_is_fetched_of_a_checkpoint_is_found_in_the_image_and_so_are_its_files(
    origin: ModelOrigin, tmp_path: Path
) -> None:
    made = make_checkpoint([tmp_path / "ckpt" / "step-7"], {"x": bytes(4 << 20)}, step=7)
    program = """
import os, socket
place = os.environ["ROBUST_CKPT_FETCHED"]
asking = socket.socket(socket.AF_UNIX)
asking.connect(place)
_, (memory,), _, _ = socket.recv_fds(asking, 1, 1)
head = b""
while b"rrck" not in head:
    head = os.pread(memory, 128, 0)
print(os.path.exists("/opt/filler"), head.startswith(b"rrahead1"), flush=True)
top = os.environ["ROBUST_RESUME"]
print(top == os.environ["ROBUST_CKPT_MOUNTED"] + "/step-7", os.listdir(top), os.stat(f"{top}/x").st_size)
print(open(f"{top}/x", "rb").read() == bytes(4 << 20), flush=True)
"""
    with counting_server(tmp_path) as server:
        words = (
            *of_image(origin, tmp_path),
            "--ckpt-dir",
            f"{server.url}/ckpt",
            "--ckpt-mount",
            script(tmp_path, program),
        )
        code, job = run(tmp_path, *words)
        assert server.sent_bytes < 1.1 * (4 << 20)
    assert (code, job.out) == (0, f"True True\nTrue ['x'] {4 << 20}\nTrue\n"), job.err
    assert made.step == 7
