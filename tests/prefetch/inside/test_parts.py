"""The pure parts of running inside an image, and the tree of binds for machines without overlayfs."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.errors import UserError
from robust_run.mounts import syscalls
from robust_run.mounts.holding import Problem
from robust_run.prefetch.image.places import NoPlaceError, resolve
from robust_run.prefetch.inside import binds, environment, view
from robust_run.prefetch.inside.troubles import Troubles
from robust_run.prefetch.inside.types import Bind
from tests.prefetch.private_mounts import privately


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data", Bind(source="/data", destination="/data")),
        ("/data:/x", Bind(source="/data", destination="/x")),
        ("/data:/x/../y", None),
        ("/data:/x:ro", Bind(source="/data", destination="/x", read_only=True)),
        ("/data:ro", Bind(source="/data", destination="/data", read_only=True)),
        ("/data:/x/./y/:rw", Bind(source="/data", destination="/x/y")),
        ("/data:x", None),
        ("/data:/", None),
        ("/data:/proc", None),
        ("a:b:c:d", None),
        ("", None),
        (":/x", None),
    ],
)
def test_what_the_user_may_bind(text: str, expected: Bind | None) -> None:
    if expected is None:
        with pytest.raises(UserError, match="--bind"):
            binds.parse(text)
    else:
        assert binds.parse(text) == expected


def test_the_users_bind_wins_and_folders_come_before_what_lies_in_them() -> None:
    mine = Bind(source="/my/tmp", destination="/tmp")
    found = binds.standard(working_directory="/home/me/work", home="/home/me", run_directory="/runs/1", more=(mine,))
    assert mine in found
    assert [bind.destination for bind in found].count("/tmp") == 1
    places = [bind.destination for bind in found]
    assert places.index("/home/me") < places.index("/home/me/work")
    assert {"/proc", "/sys", "/dev", "/runs/1"} <= set(places)


def test_other_folders_are_bound_where_the_host_has_them_and_never_over_everything() -> None:
    found = binds.standard(
        working_directory="/w", home=None, run_directory=None, folders=("/", "/scratch/tmp", "/proc")
    )
    assert Bind(source="/scratch/tmp", destination="/scratch/tmp", optional=True) in found
    assert "/" not in [bind.destination for bind in found]
    assert Bind(source="/proc", destination="/proc") in found


def test_a_working_directory_that_is_the_root_is_the_images_own() -> None:
    found = binds.standard(working_directory="/", home="/", run_directory=None)
    assert "/" not in [bind.destination for bind in found]


def test_what_is_the_hosts_own_installation_is_not_inherited() -> None:
    host = {"PATH": "/host/bin", "LD_LIBRARY_PATH": "/host/lib", "HOME": "/home/me", "X": "1", "PYTHONPATH": "/host/p"}
    image = ("PATH=/opt/conda/bin:/bin", "HOME=/root", "LD_LIBRARY_PATH=/opt/lib")
    assert environment.merged(host, image, "/driver") == {
        "PATH": "/opt/conda/bin:/bin", "HOME": "/home/me", "X": "1", "LD_LIBRARY_PATH": "/opt/lib:/driver",
    }  # fmt: skip
    assert environment.merged({}, (), "/driver")["LD_LIBRARY_PATH"] == "/driver"


def test_plain_assignments_of_a_script_are_understood_and_nothing_else() -> None:
    script = """#!/bin/sh
export PATH="/opt/bin:/bin"
export A='quoted'
export B="${B:-"given"}"
export C="$(rm -rf /)"
export D=`id`
export E=$HOME/x
eval "$F"
"""
    assert environment.assignments(script) == ["PATH=/opt/bin:/bin", "A=quoted", "B=given"]


def test_the_images_interpreter_is_found_through_links_within_the_image(tmp_path: Path) -> None:
    (tmp_path / "opt/conda/bin").mkdir(parents=True)
    (tmp_path / "opt/conda/bin/python3.12").write_text("")
    (tmp_path / "opt/conda/bin/python3.12").chmod(0o755)
    (tmp_path / "opt/conda/bin/python3").symlink_to("/opt/conda/bin/python3.12")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").symlink_to("/usr/bin/env-that-only-the-host-has")
    assert environment.python_in(str(tmp_path), ("PATH=bin:/bin:/opt/conda/bin",)) == "/opt/conda/bin/python3"
    assert environment.python_in(str(tmp_path), ()) == ""


def test_an_image_may_not_have_its_environment_read_from_the_host(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("SECRET=1\n")
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/environment").symlink_to("../../secret")
    assert environment.of_image(str(root)) == ()


def test_we_are_added_to_the_images_users_once() -> None:
    image = "root:x:0:0:root:/root:/bin/bash"
    assert binds.passwd(image, 1000, 100, "me", "/home/me") == f"{image}\nme:x:1000:100::/home/me:/bin/sh\n"
    assert binds.passwd(image, 0, 0, "me", "/home/me") is None
    assert binds.passwd("", 5, 6, "a:b\nroot", "x") == "user:x:5:6::x:/bin/sh\n"
    assert binds.group("", 7, "g") == "g:x:7:\n"


def test_the_drivers_libraries_are_taken_and_no_others() -> None:
    lines = [
        "1234 libs found in cache `/etc/ld.so.cache'",
        "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "\tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1",
        "\tlibnvidia-ml.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
        "\tlibnvidia-container.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnvidia-container.so.1",
        "\tlibcudart.so.12 (libc6,x86-64) => /usr/local/cuda/lib64/libcudart.so.12",
        "\tlibc.so.6 (libc6,x86-64) => /lib/x86_64-linux-gnu/libc.so.6",
    ]
    found = binds.driver_binds(lines, "x86_64")
    assert [(bind.source, bind.destination) for bind in found] == [
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/.robust-driver/libcuda.so.1"),
        ("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "/.robust-driver/libnvidia-ml.so.1"),
    ]


def test_links_are_followed_within_the_root(tmp_path: Path) -> None:
    (tmp_path / "real/deep").mkdir(parents=True)
    for name, target in (
        ("absolute", "/real"),
        ("up", "../../../../real"),
        ("round", "round"),
        ("two", "absolute/deep"),
    ):
        (tmp_path / name).symlink_to(target)
    root = str(tmp_path)
    assert resolve(root, "/absolute/deep/new") == "real/deep/new"
    assert resolve(root, "up/../../x") == "x"
    assert resolve(root, "two") == "real/deep"
    assert resolve(root, "two", follow_last=False) == "two"
    with pytest.raises(NoPlaceError, match="more than 40"):
        resolve(root, "round/x")


@given(st.text(alphabet="ab./", max_size=40), st.lists(st.text(alphabet="ab./", min_size=1, max_size=8), max_size=2))
def test_no_path_and_no_link_leads_out_of_the_root(
    tmp_path_factory: pytest.TempPathFactory, path: str, targets: list[str]
) -> None:
    root = tmp_path_factory.mktemp("root")
    for name, target in zip("ab", targets, strict=False):
        (root / name).symlink_to(target)
    try:
        found = resolve(str(root), path)
    except NoPlaceError:
        return
    assert not found.startswith("/")
    assert ".." not in found.split("/")
    assert os.path.realpath(root / found).startswith(str(root))


@privately
def test_without_overlayfs_the_image_is_put_together_from_its_parts(tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.mkdir()
    (host / "file").write_text("host")
    stage = tmp_path / "stage"
    stage.mkdir()
    syscalls.mount("tmpfs", str(stage))
    os.chdir(stage)  # of this thread alone
    os.makedirs("tree/etc/kept")
    os.makedirs("tree/usr/lib")
    os.symlink("usr/lib", "tree/lib")
    Path("tree/etc/a").write_text("image")
    Path("tree/was-file").write_text("image")
    wanted = [
        Bind(source=str(host), destination="/lib/new/deep"),
        Bind(source=str(host / "file"), destination="/etc/b", read_only=True),
        Bind(source=str(host), destination="/was-file"),
        Bind(source=str(host), destination="/etc/kept"),
    ]
    root = Path(view.make_root(binds.ordered(wanted), "binds", as_user=False, writable=None))
    assert (root / "etc/a").read_text() == "image"
    assert (root / "etc/b").read_text() == "host"
    assert (root / "usr/lib/new/deep/file").read_text() == "host"
    assert (root / "was-file/file").read_text() == "host"
    assert (root / "etc/kept/file").read_text() == "host"
    assert os.readlink(root / "lib") == "usr/lib"
    with pytest.raises(OSError, match="Read-only"):
        (root / "etc/b").write_text("x")


def test_a_mount_that_fails_before_it_is_heard_why_is_told_all_the_same() -> None:
    class Server:
        """A block server of which only that it was stopped counts."""

        stops = 0

        def stop(self) -> None:
            self.stops += 1

    told: list[Problem] = []
    troubles, serving = Troubles(told.append), Server()
    troubles.serving(serving)  # type: ignore[arg-type]
    heard = threading.Timer(0.2, troubles.reads_failed, ("block 7 could not be read: 500",))
    heard.start()
    assert troubles.why() == "block 7 could not be read: 500"
    heard.join()
    assert (serving.stops, told) == (1, [])
    assert Troubles(told.append).why() == "", "nothing is waited for where no blocks are served"
