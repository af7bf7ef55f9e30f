"""`robust-run --image` with `--setup`: commands run once, inside the image; workers see the image and what they changed in it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from counting_server import counting_server
from jobs import PATIENT, Job, kill, run, running, script, unused_port, wait_for
from servers.model_origin import ModelOrigin
from snapshot.packages import make_wheel

from robust_run.launcher.records.memory_folders import remove_dead_memory
from robust_run.prefetch.image import build
from robust_run.report.startup.types import Startup
from tests.launcher.images.image_ground import (
    loops_on,
    make_environment_image,
    needs_images,
    packages_of,
    root_image_of_run,
)
from tests.launcher.images.setup_ground import needs_setups
from tests.prefetch.inside.rootfs import NOBODY, ordinary_user
from tests.prefetch.private_mounts import fuse_for_root_alone

BLOCK_BYTES = 1 << 20
TOKEN = "a token that all nodes know"
#: Says what a worker finds: the package, where it is, the image's own file, the attempt.
LOOK = """
import os, sys
import tiny
print(tiny.VALUE, tiny.__file__, os.path.exists("/etc/only-in-image"), os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
"""
FAILS_ONCE = f"""{LOOK}
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(3)
"""
WAITS = f"""{LOOK}
import time
open("up-" + os.environ["TORCHELASTIC_RESTART_COUNT"], "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
"""
#: The image's own Python unpacks a wheel to where its packages are, and it is counted.
INSTALL = (
    "python3 -m zipfile -e tiny-{version}-py3-none-any.whl"
    " $(python3 -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))') && echo ran >> $TEST_FOLDER/count"
)
PYTHON = "/opt/python"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_images()
    needs_setups()
    return root_image_of_run(tmp_path_factory)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for one test, in which two versions of a package lie; nothing is mounted in the end, and no work is left."""
    for version in ("1.0", "2.0"):
        make_wheel(tmp_path, "tiny", version, {"tiny/__init__.py": f"VALUE = {float(version):g}\n"})
    (tmp_path / "work").mkdir()
    yield tmp_path
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    wait_for(lambda: not loops_on(tmp_path), "the loop devices to be free")
    assert os.listdir(tmp_path / "work") == []


def options(folder: Path, image: Path | str, command: str | None = None, cache: str = "cache") -> tuple[str, ...]:
    command = INSTALL.format(version="1.0") if command is None else command
    where = ("--image", str(image), "--image-cache", str(folder / cache), "--setup-store", str(folder / "store"))
    return (*where, "--setup", command)


def environment(folder: Path, **more: str) -> dict[str, str]:
    own = {"TMPDIR": str(folder / "work"), "HOME": str(folder), "XDG_CACHE_HOME": "", "TEST_FOLDER": str(folder)}
    return {**own, **more}


def runs(folder: Path) -> int:
    """How often the commands were run."""
    return len((folder / "count").read_text().splitlines())


def report_of(job: Job) -> dict[str, object]:
    (path,) = [each for each in (job.run_dir / "setup").glob("*.json") if each.name != "snapshot.json"]
    return dict(json.loads(path.read_text()))


def fetched(job: Job) -> dict[tuple[str, int], int]:
    """Return bytes by what was fetched, and the attempt that was so started: the rows of the waterfall."""
    startup = msgspec.json.decode((job.run_dir / "startup.json").read_bytes(), type=Startup)
    return {
        (row.fetch.what, attempt.attempt): row.fetch.size_bytes
        for attempt in startup.attempts
        for row in attempt.fetched
    }


def seen(version: str, attempt: int, python: str = PYTHON) -> str:
    return f"{version} {packages_of(python)}/tiny/__init__.py True {attempt}\n"


def test_it_is_installed_once_and_laid_over_the_image_for_every_attempt(folder: Path, images: Path) -> None:
    whole = (images / "root.sqsh").stat().st_size
    with ModelOrigin(images, latency_s=0.005) as origin, counting_server(folder) as server:
        given = (*options(folder, f"{origin.url}root.sqsh"), "--nproc-per-node", "2", script(folder, FAILS_ONCE))
        said = [run(folder, *given, env=environment(folder))]
        shutil.rmtree(folder / "cache/snapshots")  # as on a node that has the image and has yet to get the set-up
        near, far = str(folder / "store"), f"{server.url}/store"
        said.append(run(folder, *(far if each == near else each for each in given), env=environment(folder)))
        assert origin.bytes_sent < 1.1 * whole, "what was fetched for the commands is not fetched for the workers"
    for code, job in said:
        assert code == 0, job.err
        assert job.out.count(seen("1", 0)) >= 1
        assert job.out.count(seen("1", 1)) == 2, "a restart enters the same place"
    assert runs(folder) == 1
    assert ["1 package, built here" in job.err for _, job in said] == [True, False]
    first, second = (fetched(job) for _, job in said)
    if os.geteuid() != 0:
        return  # a user's image is fetched before its commands run, by then no start is timed
    assert {what for what, _attempt in first} == {"image"}
    assert 0 < first["image", 0] <= sum(first.values()) < 1.1 * whole + BLOCK_BYTES, "commands and workers, together"
    assert second["set-up", 0] == next(folder.glob("store/*/*.sqsh")).stat().st_size
    assert ("set-up", 1) not in second, "a restart fetches nothing"
    reports = [report_of(job) for _, job in said]
    assert [each["was_built"] for each in reports] == [True, False]
    assert reports[0]["key"] == reports[1]["key"]
    assert not Path(PYTHON).exists(), "this machine has none of it"


CHANGES = """
import os, shutil
os.unlink("/etc/only-in-image")
shutil.rmtree(os.path.dirname(os.__file__) + "/email")
os.mkdir(os.path.dirname(os.__file__) + "/email")
open(os.path.dirname(os.__file__) + "/email/mine.py", "w").write("X = 1")
os.rename("/opt/filler", "/opt/moved")
os.makedirs("/var/tmp/passing")
os.symlink("moved", "/opt/link")
"""
LIST = """
import os
import email.mine
in_email = sorted(os.listdir(os.path.dirname(os.__file__) + "/email"))
print(sorted(os.listdir("/opt")), os.path.exists("/etc/only-in-image"), in_email)
print(email.mine.X, os.path.exists("/var/tmp/passing"), os.path.getsize("/opt/link") > 0)
try:
    open("/opt/new", "w").close()
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.parametrize("writable", [(), ("--image-writable",)])
def test_what_is_changed_removed_or_replaced_anywhere_in_the_image_is_so_for_workers(
    folder: Path, images: Path, writable: tuple[str, ...]
) -> None:
    (folder / "change.py").write_text(CHANGES)
    given = options(folder, images / "root.sqsh", "python3 change.py")
    code, job = run(folder, *given, *writable, script(folder, LIST), env=environment(folder))
    assert code == 0, job.err
    assert job.out.splitlines() == [
        "['link', 'moved', 'python'] False ['__pycache__', 'mine.py']",
        "1 False True",
        *([] if writable else ["Read-only file system"]),
    ]


def bare_image(folder: Path, images: Path, without: str) -> Path:
    """An image that lacks a shell, or a Python."""
    root = folder / "bare"
    subprocess.run(
        ["unsquashfs", "-quiet", "-no-progress", "-d", str(root), str(images / "root.sqsh")],
        check=True, stdout=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip
    (root / without).unlink()
    build.build(str(root), str(folder / "bare.sqsh"), build.BuildOptions(compression="lz4"))
    shutil.rmtree(root)
    return folder / "bare.sqsh"


REFUSED = {
    "fails": ("echo the reason; exit 7", "", "ended with 7: the reason"),
    "no shell": (None, "bin/sh", "the image has no /bin/sh"),
    "no Python": (None, "opt/python/bin/python3", "no python3 on the PATH of the image"),
    "nowhere to keep it": ("echo x > /opt/x", "", "without one nothing can be set up in an image"),
    "no such file": ("pip install -r nowhere.txt", "", "nowhere.txt"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_cannot_be_set_up_in_an_image_is_said_before_anything_starts(
    folder: Path, images: Path, mistake: str
) -> None:
    command, without, named = REFUSED[mistake]
    image = bare_image(folder, images, without) if without else images / "root.sqsh"
    if mistake == "nowhere to keep it":
        (folder / "store").write_text("this is no folder")
    beside = ("--ckpt-dir", f"http://127.0.0.1:{unused_port()}/ckpt")  # which is looked at while that is found out
    code, job = run(folder, *options(folder, image, command), *beside, script(folder, LOOK), env=environment(folder))
    assert (code in (1, 2), job.out) == (True, "")
    last = job.err.splitlines()[-1]
    assert last.startswith("robust-run: ")
    assert named in last
    assert not list((folder / "runs").glob("*"))
    assert not list(folder.glob("store/*/snapshot.json"))


def test_a_damaged_snapshot_is_said_and_built_anew_and_a_damaged_copy_is_brought_again(
    folder: Path, images: Path
) -> None:
    given = (*options(folder, images / "root.sqsh"), script(folder, LOOK))
    assert run(folder, *given, env=environment(folder))[0] == 0
    (copy,) = (folder / "cache/snapshots/images").glob("*.sqsh")
    damage(copy)
    code, job = run(folder, *given, env=environment(folder))
    assert (code, job.out) == (0, seen("1", 0)), job.err
    assert runs(folder) == 1
    (stored,) = folder.glob("store/*/*.sqsh")
    damage(stored)
    shutil.rmtree(folder / "cache")
    code, job = run(folder, *given, env=environment(folder))
    assert (code, job.out) == (0, seen("1", 0)), job.err
    assert "damaged, so it is built anew" in job.err
    assert runs(folder) == 2


def damage(path: Path) -> None:
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"damage" * 20)


@pytest.mark.parametrize("victims", ["signal", "agent", "guard", "guard and agent"])
def test_nothing_is_left_of_commands_in_an_image_whoever_is_killed(folder: Path, images: Path, victims: str) -> None:
    waiting = ": > up; test -e go || sleep 1000 & test -e go || sleep 1000; " + INSTALL.format(version="1.0")
    given = (*options(folder, images / "root.sqsh", waiting), script(folder, LOOK))
    with running(folder, *given, env=environment(folder)) as job:
        job.wait_for_file("up", folder)
        if victims == "signal":
            job.signal(signal.SIGTERM)
        else:
            agent = parent_of_inside(job)
            kill(*{"agent": [agent], "guard": [job.pid], "guard and agent": [job.pid, agent]}[victims])
        assert job.finish() != 0
        wait_for(lambda: not job.leftovers(), "all processes to end")
    remove_dead_memory()  # else the next job does
    wait_for(
        lambda: not is_mounted_anywhere(folder / "work"), "commands in the image, which have its environment, to end"
    )
    wait_for(lambda: not any(map(is_locked, (folder / "work").glob("*/lock"))), "the builder's locks to be given back")
    (folder / "go").touch()
    for left in folder.glob("store/*/lease"):  # else it is waited for
        shutil.rmtree(left)
    code, job = run(folder, *given, env=environment(folder))
    assert (code, job.out) == (0, seen("1", 0)), job.err


def is_mounted_anywhere(folder: Path) -> bool:
    """Whether a process of any mount namespace sees something mounted of this folder, or in it."""
    for path in Path("/proc").glob("[0-9]*/mountinfo"):
        with suppress(OSError):
            if str(folder) in path.read_text():
                return True
    return False


def is_locked(path: Path) -> bool:
    with path.open("rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@pytest.mark.parametrize("victims", ["agent", "guard and agent"])
def test_nothing_is_left_whoever_is_killed_while_workers_run_in_what_was_set_up(
    folder: Path, images: Path, victims: str
) -> None:
    given = (*options(folder, images / "root.sqsh"), script(folder, WAITS))
    with running(folder, *given, env=environment(folder)) as job:
        job.wait_for_file("up-0", folder)
        kill(*{"agent": [job.agent_pid()], "guard and agent": [job.pid, job.agent_pid()]}[victims])
        job.finish()
        wait_for(lambda: not job.leftovers(), "all processes to end")
    remove_dead_memory()


def parent_of_inside(job: Job) -> int:
    """The agent: it is the parent of what runs the commands."""
    lines = [line for line in job.leftovers() if "inside.main" in line]
    inside = min(int(line.partition(":")[0]) for line in lines)
    return int(Path(f"/proc/{inside}/status").read_text().split("PPid:\t")[1].split()[0])


def test_a_place_that_is_lost_is_made_again_with_what_was_set_up(folder: Path, images: Path) -> None:
    text = f"{WAITS}\nsys.exit(3 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)\n"
    given = (*options(folder, images / "root.sqsh"), script(folder, text))
    with running(folder, *given, env=environment(folder)) as job:
        job.wait_for_file("up-0", folder)
        (holder,) = [line for line in job.leftovers() if "prefetch.inside.holder" in line]
        kill(int(holder.partition(":")[0]))
        (folder / "go").touch()
        assert job.finish() == 0, job.err
        job.assert_nothing_left()
    # On a busy machine the new place may be refused once; the attempt after that has it.
    assert job.out in [seen("1", 0) + seen("1", attempt) for attempt in (1, 2)], job.err
    assert "the process that kept the image has ended" in job.err
    assert runs(folder) == 1


def test_a_job_that_is_resumed_has_what_it_had(folder: Path, images: Path) -> None:
    requirements = folder / "version"
    requirements.write_text("1.0")
    command = f"test -r {requirements} && " + INSTALL.format(version="$(python3 -c 'print(open(\"version\").read())')")
    given = (*options(folder, images / "root.sqsh", command), script(folder, WAITS))
    with running(folder, *given, env=environment(folder)) as job:
        job.wait_for_file("up-0", folder)
        kill(job.agent_pid(), job.pid)  # in this order: an agent that outlives its guard puts a stop on record
        job.finish()
        wait_for(lambda: not job.leftovers(), "all processes to end")
    remove_dead_memory()
    (folder / "go").touch()
    requirements.write_text("2.0")
    done = subprocess.run(
        [sys.executable, "-m", "robust_run", "--resume", str(job.run_dir)], cwd=folder, env={**os.environ, **environment(folder)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, seen("1", 1)), done.stderr
    assert runs(folder) == 1


def test_an_image_of_an_environment_is_set_up_where_it_belongs(folder: Path) -> None:
    needs_images()
    needs_setups()
    place = folder / "opt/environment"
    make_environment_image(folder, str(place))
    text = LOOK.replace("/etc/only-in-image", f"{place}/in-image")
    given = (*options(folder, folder / "environment.sqsh"), script(folder, text))
    for how in ("built here", "built by"):
        code, job = run(folder, *given, env=environment(folder))
        assert code == 0, job.err
        assert job.out == seen("1", 0, str(place))
        assert how in job.err
    assert not list(place.glob("*"))
    touch = options(folder, folder / "environment.sqsh", ": > /usr/of-a-set-up")
    code, job = run(folder, *touch, script(folder, LOOK), env=environment(folder))
    assert code != 0
    assert not Path("/usr/of-a-set-up").exists(), "this machine around it stays as it is"


def meeting(nnodes: str, *more: str) -> tuple[str, ...]:
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{unused_port()}", "--rdzv-id", "together")
    return ("--nnodes", nnodes, *where, "--rdzv-conf", "keep_alive_max_attempt=30", *more)


def image_at(origin: ModelOrigin) -> str:
    return f"{origin.url}root.sqsh"


def test_several_nodes_build_once_and_a_standby_that_came_late_takes_over_in_what_the_job_has(
    folder: Path, images: Path
) -> None:
    (folder / "version").write_text("1.0")
    command = INSTALL.format(version="$(cat version)")
    words = meeting("2", "--standby", "1")
    path, env = script(folder, WAITS), environment(folder, ROBUST_TOKEN=TOKEN)
    with (
        ModelOrigin(images, latency_s=0.005) as origin,
        running(folder, *words, *options(folder, image_at(origin), command, "a"), path, env=env, prefix=PATIENT) as one,
        running(
            folder, *words, *options(folder, image_at(origin), command, "b"), path, env=env, prefix=PATIENT
        ) as other,
    ):
        one.wait_for_file("up-0", folder)
        assert origin.bytes_sent < 1.7 * (images / "root.sqsh").stat().st_size, (
            "nodes share what they fetch, and the commands' node"
        )
        (folder / "version").write_text("2.0")
        with running(
            folder, *words, *options(folder, image_at(origin), command, "c"), path, env=env, prefix=PATIENT
        ) as late:
            wait_for(lambda: max(len(each.events("node_joined")) for each in (one, other)) == 3, "the standby to join")
            host, guest = (one, other) if one.events("node_joined") else (other, one)
            guest.signal(signal.SIGKILL)
            late.wait_for_file("up-1", folder)
            (folder / "go").touch()
            assert [host.finish(), late.finish()] == [0, 0], one.err + other.err + late.err
            host.assert_nothing_left()
            late.assert_nothing_left()
            guest.finish()
            wait_for(lambda: not guest.leftovers(), "the lost node's processes to end")
    remove_dead_memory()
    assert late.out == seen("1", 1), late.err
    assert seen("1", 1) in host.out
    assert runs(folder) == 1


@pytest.mark.parametrize("has_fuse", [True, False])
def test_an_ordinary_user_has_it_in_a_user_namespace(images: Path, has_fuse: bool) -> None:
    """By squashfuse, or where that user has no /dev/fuse, unpacked. Commands and workers are who the user is."""
    become, env = ordinary_user()
    if os.geteuid() != 0:
        pytest.skip("only root can become another user, with setpriv")
    become = become if has_fuse else [*fuse_for_root_alone(), *become[become.index("setpriv") :]]
    place = Path(tempfile.mkdtemp(prefix="robust-test-", dir="/tmp"))
    try:
        (place / "work").mkdir()
        (place / "change.py").write_text(CHANGES)
        for name in ("root.sqsh", "root.sqsh.blocks.json"):
            shutil.copy(images / name, place)
        subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", str(place)], check=True)
        place.chmod(0o755)
        given = (
            *options(place, place / "root.sqsh", "python3 change.py; id"),
            script(place, f"{LIST}\nprint(os.getuid())"),
        )
        for how in ("built here", "built by"):
            code, job = run(
                place, *given, env={**environment(place), **env}, prefix=tuple(become[:-1]), python=become[-1]
            )
            assert code == 0, job.err
            lines = job.out.splitlines()
            assert lines[0].startswith("['link', 'moved', 'python'] False ")
            assert lines[1:] == ["1 False True", "Read-only file system", str(NOBODY)]
            assert how in job.err
            assert ("userns" if has_fuse else "unpack") in job.err
        assert f"uid={NOBODY}" in next(job.run_dir.parent.glob("*/setup/*.log")).read_text()
        assert os.listdir(place / "work") == []
    finally:
        shutil.rmtree(place)
        with suppress(OSError):
            os.rmdir(f"/dev/shm/robust-run-{NOBODY}")
