"""What the options about a set-up mean, what is refused, and what a node that comes later may take."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from snapshot.made import manifest_of
from worlds import Machine

from robust_run.errors import UserError
from robust_run.launcher.agent.places.setup_start import taking
from robust_run.launcher.agent.warm.ladder import why_never
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.model.job_parts import SetupUse
from robust_run.launcher.start.options.command import parse
from robust_run.launcher.start.options.validate import resolve
from robust_run.snapshot import planning, platforms
from robust_run.snapshot.building import BuildPlan
from robust_run.snapshot.capture.capturing import CaptureSetup
from robust_run.snapshot.errors import SetupRefused, SnapshotRefused
from robust_run.snapshot.rules import key
from robust_run.snapshot.rules.types import Ingredient, Key


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.write("/job/setup.sh")
    made.write("/job/secret")
    made.write("/job/train.sqsh")
    made.write("/data/")
    return made


def job(machine: Machine, *words: str, env: dict[str, str] | None = None) -> JobSpec:
    given = {**machine.world().env, **(env or {})}
    return resolve(parse([*words, "train.py"], given), machine.world(env=given))


def use(machine: Machine, *words: str, env: dict[str, str] | None = None) -> SetupUse:
    found = job(machine, *words, env=env).setup
    assert found is not None
    return found


def test_without_a_set_up_there_is_none(machine: Machine) -> None:
    assert job(machine).setup is None
    assert job(machine, "--setup-store", "/data").setup is None


def test_commands_stay_as_typed_and_in_order(machine: Machine) -> None:
    found = use(machine, "--setup", "pip install a:b", "--setup", "make -C x", "--setup-file", "setup.sh")
    assert found.commands == ("pip install a:b", "make -C x")
    assert found.files == ("/job/setup.sh",)


def test_paths_are_made_absolute_and_urls_stay(machine: Machine) -> None:
    words = ("--setup", "x", "--setup-token-file", "secret", "--image-cache", "blocks")
    here = use(machine, *words, "--setup-store", "snapshots")
    assert (here.store, here.token_file, here.cache) == ("/job/snapshots", "/job/secret", "/job/blocks")
    assert use(machine, "--setup", "x", "--setup-store", "s3://bucket/x").store == "s3://bucket/x"


def test_variables_say_the_same(machine: Machine) -> None:
    env = {"ROBUST_SETUP": "pip install a\n\n make b \n", "ROBUST_SETUP_STORE": "/data", "ROBUST_REFRESH_SETUP": "1"}
    found = use(machine, env=env)
    assert (found.commands, found.store, found.refresh) == (("pip install a", "make b"), "/data", True)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--setup", " "), "empty"),
        (("--setup-file", "nowhere.sh"), "no such file"),
        (("--setup-file", "/data"), "folder"),
        (("--setup", "x", "--setup-token-file", "nowhere"), "--setup-token-file"),
        (("--refresh-setup",), "--setup CMD"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(machine: Machine, words: tuple[str, ...], named: str) -> None:
    with pytest.raises(UserError) as caught:
        job(machine, *words)
    assert str(caught.value).isprintable()
    assert named in str(caught.value)


def test_an_image_may_have_a_set_up(machine: Machine) -> None:
    spec = job(machine, "--setup", "x", "--image", "train.sqsh", "--image-cache", "blocks")
    assert spec.setup is not None
    assert spec.image is not None
    assert spec.setup.cache == spec.image.cache == "/job/blocks"


IMAGE = platforms.ImageFacts(identity="a" * 64, machine="x86_64", python="", gpu="none", shown=(("/work", "/here"),))


def key_in(image: platforms.ImageFacts, cwd: str, command: str = "pip install x", **env: str) -> str:
    return planning.prepare_in_image([command], environment=env, cwd=cwd, image=image, mount_at=None).key.digest


def test_the_key_of_a_set_up_in_an_image_has_the_image_and_not_what_this_machine_has(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    one = key_in(IMAGE, "/work", **cache)
    assert one == key_in(IMAGE, "/work", **cache, PYTHONPATH="/host", LD_LIBRARY_PATH="/host/lib")
    others = [
        key_in(msgspec.structs.replace(IMAGE, identity="b" * 64), "/work", **cache),
        key_in(msgspec.structs.replace(IMAGE, python="/opt/other/python"), "/work", **cache),
        key_in(msgspec.structs.replace(IMAGE, gpu="NVIDIA H200, driver 550"), "/work", **cache),
        key_in(IMAGE, "/work", "pip install y", **cache),
        key_in(IMAGE, "/work", **cache, PIP_PRE="1"),
    ]
    assert len({one, *others}) == 6


def test_files_that_commands_name_are_those_that_they_find_inside(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("x==1\n")
    image = msgspec.structs.replace(IMAGE, shown=(("/work", str(tmp_path)), ("/work/of-image", "")))
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    before = key_in(image, "/work", "pip install -r r.txt -r /etc/r.txt -r of-image/r.txt", **cache)
    (tmp_path / "r.txt").write_text("x==2\n")
    assert key_in(image, "/work", "pip install -r r.txt -r /etc/r.txt -r of-image/r.txt", **cache) != before
    with pytest.raises(SetupRefused, match="nowhere"):
        key_in(image, "/work", "pip install -r nowhere.txt", **cache)
    assert [image.on_host(path) for path in ("/work", "/work/a", "/workshop", "/work/of-image/a")] == [
        str(tmp_path), f"{tmp_path}/a", None, None,
    ]  # fmt: skip


def test_a_spec_with_a_set_up_survives_the_journal(machine: Machine) -> None:
    spec = job(machine, "--setup", "x", "--setup-file", "setup.sh", "--refresh-setup")
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec


def test_no_warm_process_of_the_user_runs_workers_of_such_a_job(machine: Machine) -> None:
    spec = job(machine, "--setup", "x")
    assert "set-up" in why_never(spec, spec.argv[0], {})


def plan_with(*ingredients: Ingredient) -> BuildPlan:
    setup = CaptureSetup(commands=("x",), cwd="/", roots=(), environment={}, python=("python",), work_folders=())
    return BuildPlan(key=key.make(ingredients), setup=setup, platform=platforms.here().platform, pinned=True)


def test_a_late_node_takes_the_jobs_snapshot_though_its_requirements_have_changed() -> None:
    theirs = manifest_of()
    others = [each for each in theirs.ingredients if not each.name.startswith("command")]
    plan = plan_with(*others, key.ingredient("command 001", "pip install y"), key.ingredient("file r.txt", "y\n"))
    assert taking(plan, theirs).key == Key(digest=theirs.key, ingredients=theirs.ingredients)


def test_a_node_with_another_environment_below_does_not() -> None:
    theirs = manifest_of()
    plan = plan_with(*theirs.ingredients, key.ingredient("libc", "musl"))
    with pytest.raises(SnapshotRefused, match="libc is musl here and not there where it was built"):
        taking(plan, theirs)
