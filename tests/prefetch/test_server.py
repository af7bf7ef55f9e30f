"""The block server as a whole: a real process, a real FUSE mount, an origin on a modelled network, and all that goes wrong."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from prefetch.images import MIB, make_image
from prefetch.private_mounts import privately
from servers.model_origin import ModelOrigin

from robust_run.mounts.errors import MountRefused
from robust_run.prefetch import blockmap
from robust_run.prefetch.cache import Cache
from robust_run.prefetch.errors import CacheRefused, ControlFailed, ServerFailed
from robust_run.prefetch.rules import hotlist
from robust_run.prefetch.rules.types import BlockMap, BlockRun, FetchLimits, HotKey, Status
from robust_run.prefetch.server import Background, ServeOptions, ServerHandle, control, start
from tests.prefetch.inside.rootfs import ordinary_user

COUNT = 12
#: So patient that a busy machine is not taken for a bad origin, and nothing is asked for twice.
PATIENT = FetchLimits(
    width=8, demand_width=4, request_limit_s=60.0, stall_s=60.0, hedge_after_s=60.0, keep_free_bytes=0
)
#: Soon to ask again, and longer in giving up than the machine is ever busy.
QUICK = msgspec.structs.replace(
    PATIENT, read_limit_s=5.0, request_limit_s=1.0, stall_s=0.5, hedge_after_s=0.2, back_off_s=0.5, refusal_s=0.0
)
WAIT_S = 60.0


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it did not happen")


class Bench:
    """An image at an origin, and what was started to serve it."""

    def __init__(self, folder: Path, origin: ModelOrigin) -> None:
        self.folder, self.origin = folder, origin
        self.path, self.map = make_image(folder / "origin", COUNT * MIB - 999)
        self.data = self.path.read_bytes()
        self.problems: list[str] = []
        self._handles: list[ServerHandle] = []

    def start(
        self, name: str = "mount", *, limits: FetchLimits = PATIENT, block_map: BlockMap | None = None, **more: object
    ) -> ServerHandle:
        """Start a server on a mount of its own; all share one cache. `more`: fields of `ServeOptions`, and `hot`."""
        mount = self.folder / name
        mount.mkdir()
        hot = more.pop("hot", ())
        handle = start(
            f"{self.origin.url}train.sqsh",
            block_map or self.map,
            str(self.folder / "cache"),
            str(mount),
            hot=hot,  # type: ignore[arg-type]
            options=ServeOptions(limits=limits, **more),  # type: ignore[arg-type]
            on_problem=self.problems.append,
        )
        self._handles.append(handle)
        return handle

    def impatient(self) -> ServerHandle:
        """Start one that soon gives a read up. What a start reads is here before, or a busy machine might end the start."""
        cache = Cache(str(self.folder / "cache"), self.map)
        cache.put(0, self.data[:MIB])
        cache.close()
        return self.start(limits=QUICK)

    def close(self) -> None:
        for handle in self._handles:
            handle.stop()


@pytest.fixture(name="bench")
def _bench(tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "origin").mkdir()
    with ModelOrigin(tmp_path / "origin", latency_s=0.002) as origin:
        bench = Bench(tmp_path, origin)
        yield bench
        bench.close()


def read(handle: ServerHandle, offset: int, size: int) -> bytes:
    with open(handle.image_path, "rb", buffering=0) as file:
        return os.pread(file.fileno(), size, offset)


class Reading(threading.Thread):
    """A read that goes on while the test goes on."""

    def __init__(self, handle: ServerHandle, offset: int, size: int) -> None:
        super().__init__(daemon=True)
        self._place = handle, offset, size
        self.result: bytes | OSError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = read(*self._place)
        except OSError as error:
            self.result = error

    def done(self) -> bytes | OSError | None:
        self.join(WAIT_S)
        assert not self.is_alive(), "the read hangs"
        return self.result


@privately
def test_the_file_is_the_image_and_only_what_is_read_is_fetched(bench: Bench) -> None:
    handle = bench.start()
    found = os.stat(handle.image_path)
    assert (found.st_size, found.st_mode & 0o777) == (len(bench.data), 0o444)
    assert os.listdir(os.path.dirname(handle.image_path)) == ["image"]
    assert [asked.size_bytes for asked in bench.origin.asked] == [MIB], "its beginning, before start returned"
    assert read(handle, 5 * MIB - 3, 10) == bench.data[5 * MIB - 3 : 5 * MIB + 7]
    assert sorted({asked.offset_bytes // MIB for asked in bench.origin.asked}) == [0, 4, 5]
    assert read(handle, 0, len(bench.data)) == bench.data[: len(bench.data)]
    with open(handle.image_path, "rb") as file:
        assert file.read() == bench.data
    assert bench.origin.bytes_sent == len(bench.data), "each block once"
    assert handle.status().present == COUNT
    with pytest.raises(OSError, match=r"Read-only|Permission") as caught:
        open(handle.image_path, "r+b").close()
    assert caught.value.errno in (errno.EROFS, errno.EACCES)


@privately
def test_what_was_read_is_recorded_until_the_window_closes_and_prefetched_by_the_next_launch(bench: Bench) -> None:
    first = bench.start("first", max_readahead_bytes=0)
    for offset in (9 * MIB, 2 * MIB, 3 * MIB):
        read(first, offset, 4096)
    first.close_window()
    read(first, 6 * MIB, 4096)
    touches = first.touches()
    assert {touch.quantum // 8 for touch in touches} == {9, 2, 3}
    told = control.ask(first.control_path, control.AskTouches(), control.Touches)
    assert list(told.touches) == touches
    first.stop()
    shutil.rmtree(bench.folder / "cache")
    bench.origin.asked.clear()

    key = HotKey(image=blockmap.identity(bench.map), launch="l", machine="m")
    hot = hotlist.merged(None, key, touches, told.window_s)
    second = bench.start("second", hot=hotlist.plan(hot, bench.map, lambda _block: False))
    until(lambda: second.status().hot_left == 0)
    fetched = bench.origin.bytes_sent
    assert fetched == 4 * MIB, "the hot blocks and the beginning"
    assert read(second, 9 * MIB, 100) == bench.data[9 * MIB : 9 * MIB + 100]
    status = second.status()
    assert (status.hot_total, status.waited) == (3, 1), "only the beginning had to be waited for"
    assert bench.origin.bytes_sent == fetched


@privately
def test_neighbours_are_prefetched_with_few_requests(bench: Bench) -> None:
    limits = msgspec.structs.replace(PATIENT, run_bytes=4 * MIB, first_small=0)
    handle = bench.start(hot=[BlockRun(0, 8), BlockRun(8, 4)], limits=limits)
    until(lambda: handle.status().present == COUNT)
    sizes = sorted(asked.size_bytes // MIB for asked in bench.origin.asked)
    assert sum(sizes) >= COUNT - 1
    assert len(sizes) <= 5, "three runs of four blocks, and at most the beginning on top"


@privately
def test_a_server_that_is_killed_is_replaced_and_no_read_is_lost(bench: Bench) -> None:
    handle = bench.start()
    with open(handle.image_path, "rb", buffering=0) as file:
        bench.origin.fault = "silent"
        readings = [Reading(handle, block * MIB, 1000) for block in range(2, 8)]
        until(lambda: len(bench.origin.met) >= len(readings))
        before = handle.touches()
        first = handle.status()
        bench.origin.fault = None
        os.kill(first.pid, signal.SIGKILL)
        for number, reading in enumerate(readings, start=2):
            assert reading.done() == bench.data[number * MIB : number * MIB + 1000]
        assert os.pread(file.fileno(), 10, 11 * MIB) == bench.data[11 * MIB : 11 * MIB + 10], (
            "the file that was open still is"
        )
    until(lambda: handle.state == "serving")  # the keeper hears a moment after the readers that it does
    assert handle.restarts == 1
    assert handle.status().pid != first.pid
    assert "was killed by signal 9" in handle.reason
    assert sum("a new one takes over" in problem for problem in bench.problems) == 1
    assert handle.touches()[: len(before)] == before, "the record goes on"


def cut_short(cache: Path, image: Path) -> None:
    os.truncate(image, 1000)


def turn_bytes(cache: Path, image: Path) -> None:
    with image.open("r+b") as file:
        for block in range(COUNT):
            file.seek(block * MIB + 5)
            file.write(b"damage")


def forget_all_blocks(cache: Path, image: Path) -> None:
    (image.parent / "have").unlink()


def clear_all_away(cache: Path, image: Path) -> None:
    shutil.rmtree(cache)


@privately
@pytest.mark.parametrize("damage", [cut_short, turn_bytes, forget_all_blocks, clear_all_away])
def test_a_cache_that_is_damaged_or_cleared_away_costs_no_byte_however_often_the_server_is_killed(
    bench: Bench, damage: Callable[[Path, Path], None]
) -> None:
    handle = bench.start(alive_every_s=0.1)
    assert read(handle, 3 * MIB, 100) == bench.data[3 * MIB : 3 * MIB + 100]
    [image] = (bench.folder / "cache").glob("*/image")
    damage(bench.folder / "cache", image)
    assert Reading(handle, 3 * MIB, 9000).done() == bench.data[3 * MIB : 3 * MIB + 9000]
    for killed in range(2):
        os.kill(handle.status().pid, signal.SIGKILL)
        for block in (3, 7 + killed):
            begin = block * MIB + killed * 100_000  # what the kernel has not read before
            assert Reading(handle, begin, 9000).done() == bench.data[begin : begin + 9000]
        until(lambda killed=killed: handle.restarts == killed + 1 and handle.state == "serving")  # type: ignore[misc]


@privately
def test_a_server_whose_socket_has_no_name_any_more_is_alive(bench: Bench) -> None:
    handle = bench.start(alive_every_s=0.05)
    pid = handle.status().pid
    os.unlink(handle.control_path)
    asked = threading.Event()
    for _ in range(10):
        asked.wait(0.05)  # it is asked as often, and nothing is to come of it
    assert handle.status().pid == pid
    assert handle.restarts == 0


@privately
def test_a_server_that_is_stopped_is_replaced_too(bench: Bench) -> None:
    handle = bench.start(alive_every_s=0.1, alive_limit_s=5.0)
    os.kill(handle.status().pid, signal.SIGSTOP)
    assert Reading(handle, 5 * MIB, 10).done() == bench.data[5 * MIB : 5 * MIB + 10]
    until(lambda: handle.restarts == 1)


@privately
def test_a_child_of_the_keeper_that_lives_on_does_not_keep_readers_waiting(bench: Bench) -> None:
    handle = bench.start()
    bench.origin.fault = "silent"
    devices = [int(name) for name in os.listdir("/proc/self/fd") if _is_fuse(name)]
    with subprocess.Popen(["sleep", "60"], pass_fds=devices) as child:  # holds them, as a forked warm process does
        reading = Reading(handle, 5 * MIB, 10)
        until(lambda: bool(bench.origin.met))
        os.kill(handle.status().pid, signal.SIGSTOP)
        handle.stop(limit_s=2.0)
        assert isinstance(reading.done(), OSError)
        child.kill()


def _is_fuse(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}") and os.readlink(f"/proc/self/fd/{name}") == "/dev/fuse"


@privately
def test_a_server_that_always_dies_is_given_up_and_reads_fail(bench: Bench) -> None:
    handle = bench.start()
    bench.origin.fault = "silent"
    reading = Reading(handle, 5 * MIB, 10)
    pids: set[int] = set()

    def killed_for_good() -> bool:
        try:
            pid = handle.status(limit_s=1.0).pid
        except (ControlFailed, ServerFailed):
            return handle.state == "failed"
        if pid not in pids:
            pids.add(pid)
            os.kill(pid, signal.SIGKILL)
        return False

    until(killed_for_good)
    assert isinstance(reading.done(), OSError)
    assert len(pids) == 5
    assert "it was given up after 5 deaths" in handle.reason
    until(lambda: handle.reason in bench.problems)
    with pytest.raises(OSError):
        open(handle.image_path, "rb").close()
    with pytest.raises(ServerFailed, match="given up"):
        handle.status()


@privately
@pytest.mark.parametrize("fault", ["wrong", "error", "silent", "stuck", "gone", "drop", "dribble"])
def test_a_read_from_a_bad_origin_ends_with_an_error_and_works_again_later(bench: Bench, fault: str) -> None:
    handle = bench.impatient()
    bench.origin.fault = fault  # type: ignore[assignment]
    result = Reading(handle, 5 * MIB, 10).done()
    assert isinstance(result, OSError)
    assert result.errno == errno.EIO
    assert bench.origin.met, "the fault happened"
    status = handle.status()
    assert status.failed >= 1
    assert any("train.sqsh" in problem or "block" in problem for problem in status.problems)
    assert status.present == 1
    told = "block 5 could not be read: "
    until(lambda: any(problem.startswith(told) and "train.sqsh" in problem for problem in bench.problems))
    assert len(bench.problems) == 1, "the kernel asks again, and again, and is not worth a line each time"
    bench.origin.fault = None
    until(lambda: Reading(handle, 5 * MIB, 10).done() == bench.data[5 * MIB : 5 * MIB + 10])


@privately
@pytest.mark.parametrize("fault", ["silent", "error", "drop"])
def test_a_short_fault_of_the_origin_is_not_seen_by_readers(bench: Bench, fault: str) -> None:
    handle = bench.start(limits=FetchLimits(stall_s=1.0, keep_free_bytes=0))
    bench.origin.fault = fault  # type: ignore[assignment]
    reading = Reading(handle, 5 * MIB, 10)
    until(lambda: bool(bench.origin.met))
    bench.origin.fault = None
    assert reading.done() == bench.data[5 * MIB : 5 * MIB + 10]


@privately
@pytest.mark.parametrize(
    ("fault", "limit_s", "words"),
    [
        ("wrong", 20.0, "sends wrong bytes"),
        ("gone", 20.0, "train.sqsh"),
        ("silent", 20.0, "sent no byte"),
        ("silent", 1.0, "the beginning of the image could not be read within 1 s"),
    ],
)
def test_a_start_that_cannot_work_says_why_and_leaves_no_mount(
    bench: Bench, fault: str, limit_s: float, words: str
) -> None:
    bench.origin.fault = fault  # type: ignore[assignment]
    # Each reason has its time: that of silence comes first, and the read is given up long after the start.
    limits = msgspec.structs.replace(QUICK, request_limit_s=60.0, read_limit_s=5.0 if words == "sent no byte" else 60.0)
    with pytest.raises(ServerFailed, match=words):
        bench.start(start_limit_s=limit_s, limits=limits)
    assert str(bench.folder) not in Path("/proc/thread-self/mountinfo").read_text()
    assert os.listdir(bench.folder / "cache" / "control") == []


@privately
def test_two_servers_share_one_cache_and_fetch_each_block_once(bench: Bench) -> None:
    runs = [BlockRun(block, 1) for block in range(COUNT)]
    one, two = bench.start("one", hot=runs), bench.start("two", hot=runs)
    until(lambda: one.status().hot_left == 0 and two.status().hot_left == 0)
    assert one.status().present == two.status().present == COUNT
    assert bench.origin.bytes_sent == len(bench.data)
    with open(one.image_path, "rb") as first, open(two.image_path, "rb") as second:
        assert first.read() == second.read() == bench.data


@privately
def test_one_of_two_servers_that_is_killed_does_not_hinder_the_other(bench: Bench) -> None:
    one, two = bench.start("one"), bench.start("two")
    bench.origin.fault = "silent"
    Reading(one, 5 * MIB, 10)
    until(lambda: bool(bench.origin.met))
    os.kill(one.status().pid, signal.SIGKILL)
    bench.origin.fault = None
    assert Reading(two, 5 * MIB, 10).done() == bench.data[5 * MIB : 5 * MIB + 10]


@privately
def test_what_is_in_the_cache_is_served_without_the_origin(bench: Bench) -> None:
    cache = Cache(str(bench.folder / "cache"), bench.map)
    for index in range(COUNT):
        cache.put(index, bench.data[index * MIB : (index + 1) * MIB])
    cache.close()
    bench.origin.fault = "gone"
    handle = bench.start()
    with open(handle.image_path, "rb") as file:
        assert file.read() == bench.data
    assert bench.origin.met == []


@privately
def test_what_was_damaged_in_the_cache_is_put_right_under_its_readers(bench: Bench) -> None:
    first = bench.start()
    assert read(first, 0, len(bench.data)) == bench.data
    first.stop()
    [image] = (bench.folder / "cache").glob("*/image")
    with image.open("r+b") as file:
        for block in range(COUNT):
            file.seek(block * MIB + 4000)
            file.write(bytes(64))
    asked = len(bench.origin.asked)
    second = bench.start("second")
    assert read(second, 0, len(bench.data)) == bench.data
    assert len(bench.origin.asked) > asked
    until(lambda: second.status().repaired == COUNT)
    until(lambda: any("did not match its digest; fetched again" in problem for problem in bench.problems))
    assert image.read_bytes() == bench.data
    assert second.status().failed == 0


@privately
def test_the_rest_comes_in_the_background_when_it_may(bench: Bench) -> None:
    handle = bench.start(background=Background(width=4))
    until(lambda: handle.status().present == COUNT)
    assert bench.origin.bytes_sent == len(bench.data)
    handle.background(0)
    assert not handle.status().background


@privately
def test_a_server_can_be_told_that_another_attempt_reads(bench: Bench) -> None:
    handle = bench.start()
    assert control.ask(handle.control_path, control.AskWaitAnew(), control.Done) == control.Done()


@privately
def test_what_another_process_told_a_server_is_known_to_the_next(bench: Bench) -> None:
    handle = bench.start(background=Background(width=4))
    asked = control.AskBackground(Background())
    control.ask(handle.control_path, asked, control.Done)
    os.kill(handle.status().pid, signal.SIGKILL)
    until(lambda: handle.restarts == 1 and handle.state == "serving")
    assert not handle.status().background


@privately
def test_the_window_of_a_larger_file_is_served(bench: Bench) -> None:
    window = blockmap.make(str(bench.path), offset_bytes=3 * MIB + 4096, size_bytes=2 * MIB)
    handle = bench.start(block_map=window)
    with open(handle.image_path, "rb") as file:
        assert file.read() == bench.data[3 * MIB + 4096 : 5 * MIB + 4096]


@privately
def test_a_stopped_server_leaves_no_process_mount_or_socket(bench: Bench) -> None:
    handle = bench.start()
    pid = handle.status().pid
    handle.stop()
    assert handle.state == "left"
    assert not os.path.exists(f"/proc/{pid}")
    assert str(bench.folder) not in Path("/proc/thread-self/mountinfo").read_text()
    assert not os.path.exists(handle.control_path)
    assert isinstance(handle.touches(), list), "the record can still be had"
    handle.stop()


@privately
def test_a_server_leaves_when_its_file_is_unmounted(bench: Bench) -> None:
    handle = bench.start()
    subprocess.run(["umount", os.path.dirname(handle.image_path)], check=True, timeout=20)
    until(lambda: handle.state == "left")
    assert (handle.restarts, handle.reason) == (0, "")


@privately
def test_when_the_keeper_is_killed_the_server_takes_the_mount_away_and_leaves(bench: Bench) -> None:
    mount = bench.folder / "mount"
    mount.mkdir()
    (bench.folder / "map.json").write_bytes(blockmap.encode(bench.map))
    script = (
        "import sys; from robust_run.prefetch import blockmap, server;"
        "h = server.start(sys.argv[1], blockmap.decode(open(sys.argv[2], 'rb').read()), sys.argv[3], sys.argv[4]);"
        "print(h.status().pid, flush=True); sys.stdin.read()"
    )
    places = [f"{bench.origin.url}train.sqsh", *(str(bench.folder / name) for name in ("map.json", "cache", "mount"))]
    with subprocess.Popen(
        [sys.executable, "-c", script, *places], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as keeper:
        assert keeper.stdout is not None
        server = int(keeper.stdout.readline())
        assert (mount / "image").read_bytes() == bench.data
        keeper.kill()
    until(lambda: not _is_alive(server))
    assert str(mount) not in Path("/proc/thread-self/mountinfo").read_text(), "others may have mounts of their own"


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@privately
def test_signals_that_end_a_job_do_not_end_the_server_under_its_readers(bench: Bench) -> None:
    handle = bench.start()
    pid = handle.status().pid
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    assert read(handle, 5 * MIB, 10) == bench.data[5 * MIB : 5 * MIB + 10]
    assert handle.status().pid == pid


@privately
def test_another_process_can_ask_how_it_is(bench: Bench) -> None:
    handle = bench.start()
    status = control.ask(handle.control_path, control.AskStatus(), Status)
    assert (status.image, status.blocks, status.window_open) == (blockmap.identity(bench.map), COUNT, True)
    assert status.sources[0].name.endswith("train.sqsh")


@privately
def test_a_mount_that_is_refused_says_so(bench: Bench) -> None:
    with pytest.raises(MountRefused, match="cannot mount there"):
        start(f"{bench.origin.url}train.sqsh", bench.map, str(bench.folder / "cache"), str(bench.folder / "nowhere"))
    assert os.listdir(bench.folder / "cache" / "control") == []
    with pytest.raises(CacheRefused):
        start(f"{bench.origin.url}train.sqsh", bench.map, "/proc/none", str(bench.folder))


@pytest.mark.parametrize("who", ["we", "nobody"])
def test_a_user_namespace_is_enough_to_serve_an_image(tmp_path: Path, who: str) -> None:
    if who == "nobody" and os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    if who == "we" and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("/dev/fuse is not there for us")
    become, python, env = [], sys.executable, dict(os.environ)
    if who == "nobody":
        (*become, python), env = ordinary_user()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, ModelOrigin(tmp_path) as origin:
        place = Path(name)
        path, block_map = make_image(tmp_path, 3 * MIB)
        (place / "map.json").write_bytes(blockmap.encode(block_map))
        (place / "mount").mkdir()
        for each in (place, place / "mount"):
            os.chown(each, *((65534, 65534) if become else (-1, -1)))
        script = (
            "import sys, hashlib; from robust_run.prefetch import blockmap, server;"
            "m = blockmap.decode(open('map.json', 'rb').read());"
            "h = server.start(sys.argv[1], m, 'cache', 'mount');"
            "print(hashlib.sha256(open(h.image_path, 'rb').read()).hexdigest() == m.sha256, h.status().present); h.stop()"
        )
        user = [*become, "unshare", "-Urm", python]
        readable = subprocess.run(
            [*user, "-c", "import robust_run.prefetch.server"], cwd=name, env=env, capture_output=True
        )
        if readable.returncode:
            pytest.skip("another user has no user namespaces, or cannot read this package")
        done = subprocess.run(
            [*user, "-c", script, f"{origin.url}train.sqsh"],
            cwd=name,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.stdout, done.stderr) == ("True 3\n", "")
    assert path.exists()


@privately
def test_a_squashfs_is_mounted_through_it(bench: Bench) -> None:
    if shutil.which("mksquashfs") is None:
        pytest.skip("mksquashfs is not installed")
    tree = bench.folder / "tree"
    for number in range(200):
        (tree / f"d{number % 7}").mkdir(parents=True, exist_ok=True)
        (tree / f"d{number % 7}" / f"f{number}").write_bytes(bench.data[number * 1000 : number * 1000 + 30_000])
    image = bench.folder / "origin" / "train.sqsh"
    image.unlink()
    command = ["mksquashfs", str(tree), str(image), "-comp", "gzip", "-noappend", "-no-progress", "-quiet"]
    subprocess.run(command, check=True, timeout=120, stdout=subprocess.DEVNULL)
    root = bench.folder / "root"
    root.mkdir()
    handle = bench.start(block_map=blockmap.make(str(image)))
    mounted = subprocess.run(
        ["mount", "-t", "squashfs", "-o", "loop,ro", handle.image_path, str(root)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if mounted.returncode:
        pytest.skip(f"no loop mount here: {mounted.stderr.strip()}")
    try:
        os.kill(handle.status().pid, signal.SIGKILL)
        for number in range(0, 200, 9):
            found = root / f"d{number % 7}" / f"f{number}"
            assert found.read_bytes() == bench.data[number * 1000 : number * 1000 + 30_000]
        until(lambda: handle.restarts == 1)
    finally:
        subprocess.run(["umount", str(root)], check=True, timeout=60)
