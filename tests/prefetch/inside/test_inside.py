"""Programs run inside an image: on every rung this machine allows, as who we are and as an ordinary user."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prefetch.private_mounts import privately
from servers.model_origin import ModelOrigin

from robust_run.mounts.ladder import KernelFacts
from robust_run.prefetch import blockmap, inside
from robust_run.prefetch.cache import Cache
from robust_run.prefetch.errors import InsideFailed
from robust_run.prefetch.image import build
from robust_run.prefetch.image.identify import identify
from robust_run.prefetch.inside import binds
from robust_run.prefetch.rules.mount_ladder import Rung
from robust_run.prefetch.rules.types import BlockMap, FetchLimits
from robust_run.prefetch.server import ServeOptions
from tests.prefetch.image.test_identify import sif
from tests.prefetch.inside.plans import can, eventually, family, plan
from tests.prefetch.inside.rootfs import make_image

RUNGS: tuple[Rung, ...] = ("kernel", "userns", "unpack")


@contextmanager
def place(wanted: inside.InsidePlan) -> Iterator[inside.Inside]:
    made = inside.start(wanted)
    try:
        yield made
    finally:
        made.stop()


def run(made: inside.Inside, script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        made.command(["bash", "-c", script], str(folder)),
        env=made.environment(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("rung", RUNGS)
def test_a_program_sees_the_image_and_its_own_folder(
    image: tuple[str, BlockMap], tmp_path: Path, my_facts: KernelFacts, rung: Rung
) -> None:
    can(my_facts, rung)
    with place(plan(image, tmp_path, rungs=(rung,))) as made:
        done = run(
            made, "cat /etc/only-in-image; ls /; echo $IMAGE_VARIABLE; touch here; touch /there; exit 7", tmp_path
        )
        assert made.ready.rung == rung
        assert (made.status() is None) == (rung == "unpack")
    assert done.returncode == 7
    assert done.stdout.startswith("image\nbin\n")
    assert done.stdout.endswith("from the image\n")
    assert "srv" not in done.stdout.split()
    assert "Read-only file system" in done.stderr
    assert (tmp_path / "here").exists()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_a_program_keeps_its_pid_and_an_absent_one_is_named(image: tuple[str, BlockMap], tmp_path: Path) -> None:
    with place(plan(image, tmp_path)) as made:
        process = subprocess.Popen(
            made.command(["bash", "-c", "echo $$"], str(tmp_path)), env=made.environment({}), stdout=subprocess.PIPE
        )
        said, _ = process.communicate(timeout=60)
        absent = subprocess.run(
            made.command(["not-there"], str(tmp_path)), env=made.environment({}), capture_output=True, timeout=60
        )
    assert int(said) == process.pid
    assert absent.returncode == 127
    assert absent.stderr == b"robust-run: not-there: No such file or directory inside the image\n"


def test_binds_lie_where_they_are_wanted_and_hostile_links_lead_nowhere(
    image: tuple[str, BlockMap], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    (data / "inner").mkdir(parents=True)
    (data / "file").write_text("data\n")
    other = tmp_path / "other"
    other.mkdir()
    (other / "o").write_text("other\n")
    more = (
        binds.parse(f"{data}:/a/b/c:ro"),
        binds.parse(f"{other}:/a/b/c/inner"),
        binds.parse(f"{data}/file:/etc/deep/file"),
        binds.parse(f"{data}:/way/through"),
    )
    with place(plan(image, tmp_path, *more)) as made:
        shown = "/a/b/c/file /a/b/c/inner/o /etc/deep/file /opt/through/file /etc/only-in-image"
        done = run(made, f"cat {shown}; touch /a/b/c/x; touch /a/b/c/inner/x", tmp_path)
    assert done.stdout == "data\nother\ndata\ndata\nimage\n"
    assert "/a/b/c/x': Read-only file system" in done.stderr
    assert (other / "x").exists()
    assert not Path("/opt/through").exists()


def test_a_bind_without_a_source_is_named(image: tuple[str, BlockMap], tmp_path: Path) -> None:
    with pytest.raises(InsideFailed, match=r"--bind /not-there: the host has no such"):
        inside.start(plan(image, tmp_path, binds.parse("/not-there:/x")))


def test_a_bind_into_another_ones_folder_needs_a_place_there(image: tuple[str, BlockMap], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(InsideFailed, match="make it there, or bind to another place"):
        inside.start(plan(image, tmp_path, binds.parse(f"{tmp_path}/data:{tmp_path}/missing")))
    assert not (tmp_path / "missing").exists()


def test_the_stage_is_not_seen_inside_though_its_folder_is_bound(image: tuple[str, BlockMap], tmp_path: Path) -> None:
    with place(plan(image, tmp_path)) as made:
        done = run(made, f"ls -A {tmp_path}/cache/stage; cat /proc/self/mountinfo", tmp_path)
    assert str(tmp_path) in done.stdout
    assert "stage" not in done.stdout.replace(f"{tmp_path}", "")


@pytest.mark.parametrize("rung", RUNGS)
def test_a_writable_image_is_changed_in_memory_or_in_a_folder(
    image: tuple[str, BlockMap], tmp_path: Path, my_facts: KernelFacts, rung: Rung
) -> None:
    can(my_facts, rung, writable=True)
    changes = tmp_path / "changes"
    changes.mkdir()
    for _launch, writable, seen in ((1, "memory", ""), (2, str(changes), ""), (3, str(changes), "new\n")):
        with place(plan(image, tmp_path, rungs=(rung,), writable=writable)) as made:
            script = "cat /opt/new; rm -f /etc/only-in-image; mkdir -p /new/folder; echo new > /opt/new; ls /etc/only-in-image"
            done = run(made, script, tmp_path)
        assert done.stdout == seen
        assert done.returncode == 2


def test_two_jobs_do_not_write_to_one_folder(
    image: tuple[str, BlockMap], tmp_path: Path, my_facts: KernelFacts
) -> None:
    can(my_facts, "kernel" if my_facts.mount_namespace == "" else "userns", writable=True)
    with place(plan(image, tmp_path, writable=str(tmp_path))), pytest.raises(InsideFailed, match="another job uses it"):
        inside.start(plan(image, tmp_path, writable=str(tmp_path)))


def test_the_end_of_squashfuse_is_told(image: tuple[str, BlockMap], tmp_path: Path, my_facts: KernelFacts) -> None:
    can(my_facts, "userns")
    told: list[str] = []
    made = inside.start(plan(image, tmp_path, rungs=("userns",)), on_problem=told.append)
    try:
        for pid in family(made.pid):
            if "squashfuse" in Path(f"/proc/{pid}/comm").read_text():
                os.kill(pid, 9)
        assert eventually(lambda: bool(told))
        assert told == ["squashfuse was killed by signal 9: what reads the image from now on gets errors"]
        assert made.reason == told[0], "the place is lost: the next attempt needs another one"
    finally:
        made.stop()


def test_an_environment_image_is_mounted_where_it_belongs(
    public_folder: Path, tmp_path: Path, my_facts: KernelFacts
) -> None:
    can(my_facts, "kernel" if my_facts.mount_namespace == "" else "userns")
    folder = tmp_path / "image"
    folder.mkdir()
    (tmp_path / "beside").write_text("beside\n")
    (tmp_path / "link").symlink_to("beside")
    mount_at = tmp_path / "missing/env"
    made_image = make_image(folder, str(mount_at))
    wanted = inside.InsidePlan(image_url=made_image[0], block_map=made_image[1], cache_root=str(tmp_path / "cache"))
    with place(wanted) as made:
        done = run(made, f"cat {mount_at}/etc/only-in-image {tmp_path}/beside {tmp_path}/link; which ls", tmp_path)
        assert made.ready.mount_at == str(mount_at)
        assert made.python == f"{mount_at}/bin/python", "a link to one of this machine, as in a virtual environment"
    assert done.stdout.splitlines() == ["image", "beside", "beside", f"{mount_at}/bin/ls"]
    assert list(mount_at.iterdir()) == [], "the host has an empty folder there now"


def test_an_environment_whose_folder_may_not_be_made_lies_in_a_likeness_that_takes_no_files(
    tmp_path: Path, my_facts: KernelFacts
) -> None:
    can(my_facts, "kernel" if my_facts.mount_namespace == "" else "userns")
    folder = tmp_path / "image"
    folder.mkdir()
    mount_at = "/sys/missing/env"  # not even root makes a folder there
    made_image = make_image(folder, mount_at)
    wanted = inside.InsidePlan(image_url=made_image[0], block_map=made_image[1], cache_root=str(tmp_path / "cache"))
    with place(wanted) as made:
        done = run(made, f"cat {mount_at}/etc/only-in-image; ls /sys; touch /sys/added || echo refused", tmp_path)
    assert {"image", "missing", "refused", *os.listdir("/sys")} <= set(done.stdout.split())


def test_who_reads_the_image_does_not_hold_what_serves_it(
    image: tuple[str, BlockMap], tmp_path: Path, my_facts: KernelFacts
) -> None:
    """Killed with all others while it reads, it would hold up the end of its own read for ever."""
    can(my_facts, "kernel" if my_facts.mount_namespace == "" else "userns")

    def holds(task: str) -> bool:
        folder = f"/proc/{made.pid}/task/{task}/fd"
        return any(os.readlink(f"{folder}/{each}") == "/dev/fuse" for each in os.listdir(folder))

    with place(plan(image, tmp_path)) as made:
        found = {task: holds(task) for task in os.listdir(f"/proc/{made.pid}/task")}
        assert not found.pop(str(made.pid))
        assert any(found.values())


@pytest.mark.parametrize("rung", RUNGS)
def test_what_is_laid_over_an_image_is_mounted_before_it_is_here(
    image: tuple[str, BlockMap], tmp_path: Path, my_facts: KernelFacts, rung: Rung
) -> None:
    can(my_facts, rung)
    (tmp_path / "changes/r0/etc").mkdir(parents=True)
    (tmp_path / "changes/r0/etc/laid").write_text("laid over it\n")
    (tmp_path / "store").mkdir()
    path = tmp_path / "store/changes.sqsh"
    build.build(str(tmp_path / "changes"), str(path), build.BuildOptions())
    with ModelOrigin(tmp_path / "store") as origin:
        blocks = inside.LaidBlocks(
            image_url=f"{origin.url}changes.sqsh", block_map=blockmap.make(str(path)), cache_root=str(tmp_path / "laid")
        )
        wanted = plan(
            image, tmp_path, rungs=(rung,), laid=inside.Laid(path="", layers=("r0",), blocks=blocks), writable="memory"
        )
        if rung == "unpack":
            with pytest.raises(InsideFailed, match="brought as a whole"):
                inside.start(wanted)
            return
        with place(wanted) as made:
            done = run(made, "cat /etc/laid /etc/only-in-image; echo more > /etc/laid; cat /etc/laid", tmp_path)
            assert made.ready.laid_control_path not in {"", made.ready.control_path}
        assert done.stdout == "laid over it\nimage\nmore\n", done.stderr
        assert origin.bytes_sent > 0
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_what_is_read_is_recorded_until_the_window_closes(
    image: tuple[str, BlockMap], tmp_path: Path, my_facts: KernelFacts
) -> None:
    can(my_facts, "kernel" if my_facts.mount_namespace == "" else "userns")
    with place(plan(image, tmp_path)) as made:
        run(made, "id", tmp_path)
        made.close_window()
        touches, window_s = made.touches()
        run(made, "readlink /way; env", tmp_path)
        assert made.touches() == (touches, window_s)
    assert touches
    assert window_s > 0


def test_a_holder_can_be_started_before_its_plan_is_known(
    image: tuple[str, BlockMap], tmp_path: Path, my_facts: KernelFacts
) -> None:
    can(my_facts, "kernel" if my_facts.mount_namespace == "" else "userns")
    unused, begun = inside.begin(), inside.begin()
    unused.close()
    assert unused.process.returncode is not None
    made = inside.start(plan(image, tmp_path), begun=begun)
    try:
        assert made.pid == begun.process.pid
        assert run(made, "cat /etc/only-in-image", tmp_path).stdout == "image\n"
    finally:
        made.stop()


def test_a_local_image_needs_no_server(image: tuple[str, BlockMap], tmp_path: Path, my_facts: KernelFacts) -> None:
    can(my_facts, "kernel" if my_facts.mount_namespace == "" else "userns")
    with place(plan(image, tmp_path, served=False)) as made:
        assert made.status() is None
        assert run(made, "cat /etc/only-in-image", tmp_path).stdout == "image\n"


def hide_fuse(folder: Path) -> None:
    """Have /dev/fuse where nobody may open it, in this mount namespace."""
    (folder / "no-devices").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nodev", "tmpfs", str(folder / "no-devices")], check=True, timeout=20)
    os.mknod(folder / "no-devices/fuse", stat.S_IFCHR | 0o666, os.makedev(10, 229))
    subprocess.run(["mount", "--bind", str(folder / "no-devices/fuse"), "/dev/fuse"], check=True, timeout=20)


@pytest.mark.parametrize("damaged", [False, True])
@privately
def test_without_fuse_all_of_a_cached_image_is_verified_before_it_is_mounted(
    image: tuple[str, BlockMap], tmp_path: Path, my_facts: KernelFacts, damaged: bool
) -> None:
    can(my_facts, "kernel")
    can(my_facts, "unpack")
    cache = Cache(str(tmp_path / "cache"), image[1])
    data = Path(image[0]).read_bytes()
    for index in range(image[1].blocks):
        size = image[1].block_bytes
        cache.put(index, data[index * size : (index + 1) * size])
    if damaged:
        with open(cache.path, "r+b") as file:
            file.seek(len(data) // 2)
            file.write(bytes(byte ^ 0xFF for byte in data[len(data) // 2 :][:64]))
    cache.close()
    hide_fuse(tmp_path)
    notes: list[str] = []
    made = inside.start(plan((image[0], image[1]), tmp_path), on_note=notes.append)
    try:
        assert made.ready.rung == ("unpack" if damaged else "kernel"), made.ready.chosen
        assert run(made, "cat /etc/only-in-image", tmp_path).stdout == "image\n"
    finally:
        made.stop()
    assert bool(notes) == damaged
    if damaged:
        assert f"1 block in the cache {tmp_path}/cache did not match its digest" in notes[0]
    assert (Path(cache.folder) / "image").read_bytes() == data


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("served", [True, False])
def test_the_window_of_a_sif_is_an_image_too(
    image: tuple[str, BlockMap], tmp_path: Path, my_facts: KernelFacts, rung: Rung, served: bool
) -> None:
    can(my_facts, rung)
    path = tmp_path / "image.sif"
    path.write_bytes(sif(Path(image[0]).read_bytes(), offset=36 << 10))
    with place(plan((str(path), build.describe(str(path))), tmp_path, rungs=(rung,), served=served)) as made:
        assert run(made, "cat /etc/only-in-image", tmp_path).stdout == "image\n"


def test_a_damaged_image_is_refused_in_one_line(image: tuple[str, BlockMap], tmp_path: Path) -> None:
    bad = tmp_path / "bad.sqsh"
    bad.write_bytes(b"hsqs" + os.urandom(200_000))
    with pytest.raises(InsideFailed) as caught:
        inside.start(plan((str(bad), blockmap.make(str(bad))), tmp_path))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize("rung", RUNGS)
def test_an_image_whose_folders_make_no_sense_is_named_and_no_bind_is_blamed(
    image: tuple[str, BlockMap], tmp_path: Path, my_facts: KernelFacts, rung: Rung
) -> None:
    can(my_facts, rung)
    data = bytearray(Path(image[0]).read_bytes())
    found = identify(image[0]).squashfs
    assert found is not None
    for place in range(found.inode_table, found.inode_table + 200):
        data[place] ^= 0x5A
    bad = tmp_path / "bad.sqsh"
    bad.write_bytes(data)
    with pytest.raises(InsideFailed) as caught:
        inside.start(plan((str(bad), blockmap.make(str(bad))), tmp_path, served=False, rungs=(rung,)))
    assert str(caught.value).startswith(str(bad)) or rung == "unpack", "there it is that of the copy"
    assert "--bind" not in str(caught.value)


@pytest.mark.parametrize("rung", ["kernel", "userns"])
@pytest.mark.parametrize("fault", ["wrong", "error"])
def test_reads_that_fail_while_it_is_mounted_are_named_with_their_origin(
    image: tuple[str, BlockMap], tmp_path: Path, my_facts: KernelFacts, rung: Rung, fault: str
) -> None:
    """The superblock comes; the tables at the end do not."""
    can(my_facts, rung)
    (tmp_path / "origin").mkdir()
    path = tmp_path / "origin/train.sqsh"
    path.write_bytes(Path(image[0]).read_bytes())
    made = blockmap.make(str(path), block_bytes=64 << 10)
    with ModelOrigin(tmp_path / "origin") as origin:
        cache = Cache(str(tmp_path / "cache"), made)
        cache.put(0, path.read_bytes()[: 64 << 10])
        cache.close()
        origin.fault = fault  # type: ignore[assignment]
        options = ServeOptions(limits=FetchLimits(read_limit_s=5.0, back_off_s=0.2, keep_free_bytes=0))
        wanted = plan((f"{origin.url}train.sqsh", made), tmp_path, rungs=(rung,), serve_options=options)
        with pytest.raises(InsideFailed) as caught:
            inside.start(wanted)
    assert re.match(r"http://127.*/train.sqsh: it cannot be mounted: block \d+ could not be read: ", str(caught.value))
    assert ("wrong bytes" if fault == "wrong" else "500") in str(caught.value)
