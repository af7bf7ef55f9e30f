"""What the options about an image mean, and the decisions that are made of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from worlds import Machine

from robust_run.errors import UserError
from robust_run.launcher.agent.places.image_binds import script_folder
from robust_run.launcher.agent.places.image_warmth import reason
from robust_run.launcher.agent.warm.ladder import why_never
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.model.job_parts import ImageUse
from robust_run.launcher.start.options.command import parse
from robust_run.launcher.start.options.validate import resolve
from robust_run.version import __version__


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.write("/job/train.sqsh")
    made.write("/data/")
    return made


def job(machine: Machine, *words: str, script: str = "train.py", env: dict[str, str] | None = None) -> JobSpec:
    world = machine.world()
    given = {**world.env, **(env or {})}
    return resolve(parse([*words, script], given), machine.world(env=given))


def use(machine: Machine, *words: str, env: dict[str, str] | None = None) -> ImageUse:
    found = job(machine, *words, env=env).image
    assert found is not None
    return found


def refusal(machine: Machine, *words: str, script: str = "train.py") -> str:
    with pytest.raises(UserError) as caught:
        job(machine, *words, script=script)
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_changes_never_go_to_a_folder_that_an_empty_variable_named(machine: Machine) -> None:
    """`--image-writable=$FOLDER`: they went to the working directory."""
    assert "--image-writable=: it is empty" in refusal(machine, "--image", "train.sqsh", "--image-writable=")
    assert use(machine, "--image", "train.sqsh", env={"ROBUST_IMAGE_WRITABLE": ""}).writable is None


def test_an_image_of_a_registry_is_made_one_of_ours_first(machine: Machine) -> None:
    told = refusal(machine, "--image", "docker://ubuntu:22.04")
    assert "`skopeo copy docker://ubuntu:22.04 oci:FOLDER` and `robust image build FOLDER IMAGE.sqsh`" in told


def test_without_an_image_there_is_none(machine: Machine) -> None:
    spec = job(machine)
    assert (spec.image, spec.prefetch_env, spec.record_window_s) == (None, False, 120.0)


def test_paths_are_made_absolute_and_urls_stay(machine: Machine) -> None:
    here = use(
        machine, "--image", "train.sqsh", "--image-cache", "blocks", "--bind", "/data:/d:ro", "--bind", "../data:/data"
    )
    assert (here.url, here.cache, here.writable) == ("/job/train.sqsh", "/job/blocks", None)
    assert here.binds == ("/data:/d:ro", "/data:/data")
    assert use(machine, "--image", "s3://bucket/x.sqsh").url == "s3://bucket/x.sqsh"
    assert use(machine, env={"ROBUST_IMAGE": "http://host/x.sif", "ROBUST_IMAGE_CACHE": "/fast"}).cache == "/fast"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--image-writable",), "memory"),
        (("--image_writable",), "memory"),
        (("--image-writable=memory",), "memory"),
        (("--image-writable=changes",), "/job/changes"),
        (("--image-w",), "memory"),
    ],
)
def test_a_writable_image_takes_a_folder_only_after_an_equals_sign(
    machine: Machine, words: tuple[str, ...], expected: str
) -> None:
    spec = job(machine, "--image", "train.sqsh", *words)
    assert spec.image is not None
    assert spec.image.writable == expected
    assert spec.script == "train.py", "the word after it is the script"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--bind", "/data"), "--image URL"),
        (("--image-writable",), "--image URL"),
        (("--image", ""), "empty"),
        (("--image", "nowhere.sqsh"), "no such file"),
        (("--image", "/data"), "folder"),
        (("--image", "train.sqsh", "--bind", "/nowhere:/x"), "/nowhere"),
        (("--image", "train.sqsh", "--bind", "/data:/proc"), "/proc"),
        (("--image", "train.sqsh", "--bind", "/data:x"), "absolute"),
        (("--image", "train.sqsh", "--image-writable=/no/such/folder"), "folder"),
        (("--image", "train.sqsh", "--prefetch-env"), "--prefetch-env"),
        (("--image", "train.sqsh", "--record-window", "-1"), "--record-window"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(machine: Machine, words: tuple[str, ...], named: str) -> None:
    assert named in refusal(machine, *words)


def test_scripts_and_programs_may_be_the_images(machine: Machine) -> None:
    assert job(machine, "--image", "train.sqsh", script="/app/train.py").argv[-1] == "/app/train.py"
    assert job(machine, "--image", "train.sqsh", "--no-python", script="program-of-the-image").argv[0]
    assert "no such script" in refusal(machine, "--image", "train.sqsh", script="missing.py")
    assert "no such script" in refusal(machine, script="/app/train.py")


def test_gpus_are_counted_without_a_torch_of_ours(machine: Machine) -> None:
    machine.write("/dev/nvidiactl")
    machine.write("/dev/nvidia0")
    machine.write("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Device Minor: 0\nGPU UUID: GPU-1\n")
    assert job(machine, "--image", "train.sqsh", "--nproc-per-node", "gpu").nproc == 1


def test_a_spec_with_an_image_survives_the_journal(machine: Machine) -> None:
    spec = job(machine, "--image", "train.sqsh", "--image-writable", "--bind", "/data:/d")
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec


def test_no_warm_process_of_this_machine_runs_workers_of_an_image(machine: Machine) -> None:
    spec = job(machine, "--image", "train.sqsh")
    assert why_never(spec, spec.argv[0], {}) == "workers run in an image"
    assert why_never(job(machine), spec.argv[0], {}) == ""


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (__version__, ""),
        (f"{__version__}\n", ""),
        ("none\nyes", ""),
        ("0.0.0\nyes", ""),
        ("none", "no robust_run"),
        ("none\nImportError: of another Python", "cannot use this one: ImportError: of another Python"),
        ("0.0.0\nSyntaxError: match", "'0.0.0'"),
        ("", "could not be asked"),
    ],
)
def test_why_no_warm_process_can_be_in_an_image(found: str, said: str) -> None:
    assert said in reason(found)
    assert bool(reason(found)) is bool(said)


def test_a_scripts_folder_is_shown_inside_unless_the_system_is_there(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/train.py").touch()
    spec = job(machine)
    mine = msgspec.structs.replace(spec, script=f"{tmp_path}/project/train.py")
    assert script_folder(mine, "/elsewhere") == f"{tmp_path}/project"
    assert script_folder(msgspec.structs.replace(spec, script="/usr/bin/env"), "/") == ""
    assert script_folder(msgspec.structs.replace(spec, script="/app/of-the-image.py"), "/") == ""
