"""What an ordinary user gets; and that nothing remains, whoever is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from robust_run.mounts.ladder import KernelFacts
from robust_run.prefetch import inside
from robust_run.prefetch.rules.mount_ladder import Rung
from robust_run.prefetch.rules.types import BlockMap
from tests.prefetch.image.tools import python_path
from tests.prefetch.inside.plans import can, eventually, family, is_alive, plan
from tests.prefetch.inside.rootfs import ordinary_user

AGENT = textwrap.dedent("""
    import json, os, subprocess, sys, msgspec
    from robust_run.prefetch import inside
    plan = msgspec.json.decode(sys.argv[1], type=inside.InsidePlan)
    made = inside.start(plan, on_problem=lambda sentence: print(json.dumps({"problem": sentence}), flush=True))
    folder = sys.argv[2]
    script = "id -u; id -un; cat /etc/only-in-image; touch here; touch /there; cat /proc/self/uid_map"
    done = subprocess.run(made.command(["bash", "-c", script], folder), env=made.environment(os.environ),
                          capture_output=True, text=True)
    worker = subprocess.Popen(made.command(["bash", "-c", "echo inside; exec sleep 600"], folder),
                              env=made.environment(os.environ), stdout=subprocess.PIPE)
    worker.stdout.readline()
    status = made.status()
    print(json.dumps({"rung": made.ready.rung, "out": done.stdout, "err": done.stderr, "worker": worker.pid,
                      "holder": made.pid, "server": status.pid if status else None}), flush=True)
    if sys.stdin.readline():
        worker.kill()
        worker.wait()
        made.stop()
""")


@contextmanager
def agent(
    wanted: inside.InsidePlan, folder: Path, *, as_user: bool
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    argv, env = ordinary_user() if as_user else ([sys.executable], {**os.environ, "PYTHONPATH": python_path()})
    process = subprocess.Popen(
        [*argv, "-c", AGENT, msgspec.json.encode(wanted).decode(), str(folder)],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    assert process.stdin is not None
    assert process.stdout is not None
    said: dict[str, Any] = {}
    try:
        said = json.loads(process.stdout.readline())
        yield process, said
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
        if "worker" in said and is_alive(said["worker"]):
            with suppress(ProcessLookupError):  # it loses the image, and may end by itself
                os.kill(said["worker"], 9)


@pytest.mark.parametrize("rung", ["userns", "unpack"])
@pytest.mark.parametrize("writable", [None, "memory"])
def test_an_ordinary_user_stays_who_he_is(
    image: tuple[str, BlockMap],
    users_folder: Callable[[str], Path],
    users_facts: KernelFacts,
    rung: Rung,
    writable: str | None,
) -> None:
    can(users_facts, rung, writable=writable is not None)
    folder = users_folder("user")
    with agent(plan(image, folder, rungs=(rung,), writable=writable), folder, as_user=True) as (process, said):
        user, name, shown, uid_map = said["out"].splitlines()
        assert process.stdin is not None
        process.stdin.write("stop\n")
        process.stdin.flush()
        assert process.wait(60) == 0
    uid = 65534 if os.geteuid() == 0 else os.getuid()
    assert (said["rung"], user, name, shown, uid_map.split()) == (
        rung,
        str(uid),
        os.environ.get("LOGNAME", "user") if os.geteuid() else "user",
        "image",
        [str(uid), str(0), "1"],
    )
    assert (folder / "here").stat().st_uid == uid
    assert ("Read-only" in said["err"]) == (writable is None)


@pytest.mark.parametrize("who", ["agent", "holder", "server", "everything"])
@pytest.mark.parametrize("as_user", [False, True])
def test_nothing_is_left_after_sigkill(
    image: tuple[str, BlockMap],
    users_folder: Callable[[str], Path],
    request: pytest.FixtureRequest,
    who: str,
    as_user: bool,
) -> None:
    facts: KernelFacts = request.getfixturevalue("users_facts" if as_user else "my_facts")
    can(facts, "userns" if as_user or facts.mount_namespace else "kernel")
    folder = users_folder("killed")
    with agent(plan(image, folder), folder, as_user=as_user) as (process, said):
        all_of_them = family(said["holder"])
        assert said["server"] in all_of_them
        victims = {"agent": [process.pid], "everything": [process.pid, *all_of_them]}.get(who, [said.get(who, 0)])
        connections = connection_count()
        os.kill(victims[0], 9)
        for pid in victims[1:]:
            with suppress(ProcessLookupError):  # it ended with the first
                os.kill(pid, 9)
        if who == "holder":
            assert process.stdout is not None
            assert "has ended" in json.loads(process.stdout.readline())["problem"]
        if who == "server":  # it is replaced, and the image is still there
            assert process.stdout is not None
            assert "a new one takes over" in json.loads(process.stdout.readline())["problem"]
            process.kill()
        if who in ("agent", "everything"):
            with suppress(ProcessLookupError):  # it lost the image before it slept
                os.kill(said["worker"], 9)
        assert eventually(lambda: not any(is_alive(pid) for pid in family_of(all_of_them) if pid != said["worker"]))
    if os.geteuid() == 0 and connections is not None:
        assert eventually(lambda: not loops_on(folder))


def family_of(pids: list[int]) -> list[int]:
    return [each for pid in pids for each in family(pid)]


def connection_count() -> int | None:
    try:
        return len(os.listdir("/sys/fs/fuse/connections"))
    except OSError:
        return None


def loops_on(folder: Path) -> list[str]:
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # one of another program, which is given back just now
            found.append(path.read_text())
    return [file for file in found if str(folder) in file]
