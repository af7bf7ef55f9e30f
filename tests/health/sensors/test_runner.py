"""Sensors at work: what hangs, fails or floods hurts nobody else, and is told."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sensor_ground import LIMIT_S, Tree, Watched

from robust_run.health.sensors import mounts, stores
from robust_run.health.sensors.budget import MOST_EVENTS_PER_MINUTE
from robust_run.health.sensors.mounts import MountSample, MountState
from robust_run.health.sensors.runner import MOST_TEXT_CHARS, Post, SensorRunner, cleaned, hung
from robust_run.health.sensors.settings import MountSettings, StoreSettings
from robust_run.health.sensors.stores import StoreSample, StoreState
from robust_run.health.sensors.types import AbsentError, Event, Sensor, SensorWorld

WORLD = SensorWorld()


def sensor(
    read: Callable[[SensorWorld], Any], name: str = "made", judge: Any = None, timeout_s: float = LIMIT_S
) -> Sensor:
    def passing(state: Any, sample: Any, now_s: float) -> Any:
        return state, sample

    return Sensor(
        name=name,
        about="made for a test",
        interval_s=0.01,
        timeout_s=timeout_s,
        read=read,
        judge=judge or passing,
        start=0,
    )


def event(name: str = "made.up") -> Event:
    return Event(name=name, kind="alert", subject="", detail="it happened", at_s=0.0)


def test_a_sensor_that_hangs_is_an_alert_and_the_others_go_on(watch: Callable[..., Watched]) -> None:
    release = threading.Event()
    turned = threading.Event()

    def hang(_: SensorWorld) -> tuple[Event, ...]:
        release.wait(LIMIT_S)
        return ()

    def work(_: SensorWorld) -> tuple[Event, ...]:
        turned.set()
        return ()

    watched = watch(WORLD, sensor(hang, "nfs", timeout_s=0.2), sensor(work, "other"))
    said = watched.wait_for("nfs.hung")
    assert "(limit 0.2 s): made for a test" in said.detail
    turned.clear()
    assert turned.wait(LIMIT_S), "the other sensor stands still too"
    release.set()
    watched.wait_for("nfs.hung", "clear")


def test_absent_hardware_is_said_once_and_the_sensor_ends(watch: Callable[..., Watched]) -> None:
    turns: list[int] = []

    def absent(_: SensorWorld) -> None:
        turns.append(1)
        raise AbsentError("there is none")

    watched = watch(WORLD, sensor(absent))
    assert watched.wait_for("made.absent", "note").detail == "there is none"
    watched.runner.stop(LIMIT_S)
    assert (len(turns), len(watched.events)) == (1, 1)


def test_a_sensor_that_finds_nobody_listening_stops_all() -> None:
    """Its own thread does it, so it cannot wait for the threads to end."""
    went_well: queue.Queue[bool] = queue.Queue()

    def hang_up(_: Event) -> None:
        runner.stop()
        went_well.put(True)

    runner = SensorRunner([sensor(lambda _: (event(),))], WORLD, hang_up)
    runner.start()
    assert went_well.get(timeout=LIMIT_S)
    runner.stop(LIMIT_S)


def test_what_cannot_be_read_is_said_once_until_it_can_be_read_again() -> None:
    answers: list[Any] = [OSError(5, "Input/output error"), OSError(5, "Input/output error"), (), OSError(5, "x"), ()]

    def read(_: SensorWorld) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    post = Post(sensor(read))
    said = [post.turn(WORLD, lambda: 0.0) for _ in range(5)]
    assert [[each.kind for each in events] for events, _ in said] == [["note"], [], ["clear"], ["note"], ["clear"]]
    assert {each.name for events, _ in said for each in events} == {"made.unreadable"}
    assert all(goes_on for _, goes_on in said)


def test_a_mistake_in_one_sensor_ends_only_that_one(watch: Callable[..., Watched]) -> None:
    watched = watch(WORLD, sensor(lambda _: {}["nothing"], "faulty"), sensor(lambda _: (event(),), "good"))
    assert "KeyError" in watched.wait_for("faulty.broken", "note").detail
    watched.wait_for("made.up")


def test_a_flood_is_cut_and_told_and_ends_with_the_minute() -> None:
    now = [0.0]
    post = Post(sensor(lambda _: (event(),) * 1000))
    first, _ = post.turn(WORLD, lambda: now[0])
    assert len(first) == MOST_EVENTS_PER_MINUTE + 1
    assert first[-1].name == "made.flood"
    assert post.turn(WORLD, lambda: now[0])[0] == ()
    now[0] = 61.0
    assert len(post.turn(WORLD, lambda: now[0])[0]) == MOST_EVENTS_PER_MINUTE + 1


def test_a_flood_does_not_hide_what_takes_a_node_out_and_is_told_whenever_it_began() -> None:
    batches = [(event(),) * MOST_EVENTS_PER_MINUTE, (event(),) * 9, (event("gpu.lost"), event("made.other"))]
    post = Post(sensor(lambda _: batches.pop(0)))
    names = [[each.name for each in post.turn(WORLD, lambda: 0.0)[0]] for _ in range(3)]
    assert names[1:] == [["made.flood"], ["gpu.lost", "made.other"]]


def test_a_reading_hangs_only_after_its_own_limit() -> None:
    post = Post(sensor(lambda _: (), timeout_s=10.0))
    assert hung([post], 100.0) == []
    post.reading_since_s = 95.0
    assert hung([post], 100.0) == []
    assert [condition.name for condition in hung([post], 105.5)] == ["made.hung"]


def test_the_first_reading_may_take_longer_because_it_opens_what_is_read() -> None:
    post = Post(dataclasses.replace(sensor(lambda _: (), timeout_s=10.0), open_s=120.0))
    post.reading_since_s = 0.0
    assert hung([post], 129.0) == []
    assert len(hung([post], 131.0)) == 1
    post.turn(WORLD, lambda: 0.0)
    post.reading_since_s = 0.0
    assert len(hung([post], 11.0)) == 1


def test_a_standstill_of_the_whole_process_is_no_sensor_s_fault() -> None:
    now = [0.0]
    said: list[Event] = []
    reading, release = threading.Event(), threading.Event()

    def hang(_: SensorWorld) -> tuple[Event, ...]:
        reading.set()
        release.wait(LIMIT_S)
        return ()

    runner = SensorRunner([sensor(hang, timeout_s=10.0)], WORLD, said.append, lambda: now[0])
    runner.start()
    assert reading.wait(LIMIT_S)
    for second in (1.0, 2.0, 100.0, 104.0, 108.0):
        now[0] = second
        runner.look()
    assert said == []
    for second in (110.0, 111.0):
        now[0] = second
        runner.look()
    assert [event.name for event in said] == ["made.hung"]
    release.set()
    runner.stop(LIMIT_S)


def test_names_that_others_choose_cannot_steer_a_terminal() -> None:
    evil = Event(name="x", kind="alert", subject="\x1b[2Jproc", detail="a\nb" + "c" * 5000, at_s=0.0)
    shown = cleaned(evil)
    assert (shown.subject, shown.detail[:3], len(shown.detail)) == ("?[2Jproc", "a?b", MOST_TEXT_CHARS)
    assert cleaned(event()) == event()


def test_network_mounts_are_found_and_local_ones_are_not_asked(tree: Tree, world: SensorWorld) -> None:
    tree.put(
        "proc/7/mountinfo",
        "1 0 8:1 / / rw - ext4 a rw\n2 1 0:5 / /nfs rw - nfs4 b rw\n3 1 0:6 / /ssh rw - fuse.sshfs c rw\n"
        "4 1 0:7 / /own rw - fuse.mine d rw\n5 1 0:8 / /other rw - fuse.mine e rw\n",
    )
    world = SensorWorld(proc=world.proc, pid=7, folders=("/own/run",))
    assert [found.subject for found in mounts.sensors(MountSettings(), world)] == ["/nfs", "/ssh", "/own"]


def answered(*errors: int) -> list[Event]:
    state, events = MountState(), []
    for turn, error in enumerate(errors):
        state, new = mounts.judge("/nfs", 30.0, state, MountSample(error=error), 10.0 * turn)
        events += new
    return events


def test_a_stale_handle_is_told_from_other_errors_and_said_again_while_it_lasts() -> None:
    assert [event.name for event in answered(0, 116, 116, 116, 116)] == ["mount.stale", "mount.stale"]
    assert [(event.name, event.kind) for event in answered(116, 0)] == [
        ("mount.stale", "alert"),
        ("mount.stale", "clear"),
    ]
    assert [event.name for event in answered(107)] == ["mount.error"]
    assert [event.kind for event in answered(116, 0)] == ["alert", "clear"]


def test_a_mount_that_refuses_us_lives() -> None:
    def refuse(_: str) -> None:
        raise PermissionError(13, "Permission denied")

    assert mounts.read("/nfs", refuse).error == 0


HUNG_MOUNT = """if True:
    import ctypes, json, os, time
    from robust_run.health.sensors import mounts
    from robust_run.health.sensors.runner import SensorRunner
    from robust_run.health.sensors.settings import MountSettings
    from robust_run.health.sensors.types import SensorWorld
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"nobody", b"/mnt", b"fuse.sshfs", 0, options):
        raise SystemExit(f"mount: {os.strerror(ctypes.get_errno())}")
    world = SensorWorld(folders=FOLDERS)
    sensors = mounts.sensors(MountSettings(interval_s=0.1, timeout_s=0.5), world)
    events = []
    runner = SensorRunner(sensors, world, events.append)
    runner.start()
    deadline_s = time.monotonic() + LIMIT
    while not events and time.monotonic() < deadline_s:
        runner.look()
        time.sleep(0.02)
    print(json.dumps([[event.name, event.subject] for event in events]), flush=True)
    os.close(device)
    os._exit(0)
    """


def test_a_real_file_system_whose_server_never_answers_is_an_alert(
    private: Callable[..., subprocess.Popen[str]],
) -> None:
    """A FUSE mount whose server is us, who never answer: statvfs hangs, as on a dead NFS server."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("needs /dev/fuse")
    program = HUNG_MOUNT.replace("FOLDERS", '("/mnt/run",)').replace("LIMIT", "45")
    output, errors = private("--mount", program).communicate(timeout=LIMIT_S)
    if "mount:" in errors:
        pytest.skip(f"FUSE cannot be mounted here: {errors.strip()}")
    assert json.loads(output) == [["mount.hung", "/mnt"]], errors


def test_a_file_system_that_never_answers_is_not_asked_where_the_job_does_not_use_it(
    private: Callable[..., subprocess.Popen[str]],
) -> None:
    if not os.path.exists("/dev/fuse"):
        pytest.skip("needs /dev/fuse")
    program = HUNG_MOUNT.replace("FOLDERS", "()").replace("LIMIT", "3")
    output, errors = private("--mount", program).communicate(timeout=LIMIT_S)
    if "mount:" in errors:
        pytest.skip(f"FUSE cannot be mounted here: {errors.strip()}")
    assert json.loads(output) == [], errors


def operations(*samples: StoreSample) -> list[Event]:
    state, events = StoreState(), []
    for turn, sample in enumerate(samples):
        state, new = stores.judge(StoreSettings(), "hdfs://n/x", state, sample, 60.0 * turn)
        events += new
    return events


def test_one_slow_operation_on_a_store_is_daily_business_and_two_are_said() -> None:
    slow, good = StoreSample(took_s=9.0), StoreSample(took_s=0.1)
    assert operations(slow, good, slow, good) == []
    assert [(event.name, event.kind) for event in operations(slow, slow, good)] == [
        ("store.slow", "alert"),
        ("store.slow", "clear"),
    ]


def test_operations_that_fail_are_said_with_their_error() -> None:
    events = operations(*[StoreSample(took_s=0.0, error="connection refused")] * 2)
    assert events[0].name == "store.error"
    assert "connection refused" in events[0].detail


def test_a_real_folder_is_asked_through_the_store_and_secrets_are_not_shown(tree: Tree) -> None:
    tree.put("folder/file", "x")
    (found,) = stores.sensors(StoreSettings(), SensorWorld(stores=(f"file://{tree}/folder",)))
    sample = found.read(WORLD)
    assert sample.error == ""
    (secret,) = stores.sensors(StoreSettings(), SensorWorld(stores=("https://me:word@host/x?token=1",)))
    assert secret.subject == "https://host/x"


def test_what_is_no_url_is_absent() -> None:
    (found,) = stores.sensors(StoreSettings(), SensorWorld(stores=("rrck://x",)))
    with pytest.raises(AbsentError):
        found.read(WORLD)
