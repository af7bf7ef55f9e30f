"""`--ckpt-memory`, `--ckpt-every` and `--ckpt-copies`: when a keeper holds what ranks save, and what workers are told of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import Machine

from robust_run.errors import UserError
from robust_run.launcher.agent.workers.environment import RankPlace, worker_environment
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.start.options.command import parse
from robust_run.launcher.start.options.memory_use import parse_bytes, parse_every, parse_keep
from robust_run.launcher.start.options.validate import resolve

SAVES = "from robust_run import checkpoint\n"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def job(machine: Machine, *options: str, text: str = "") -> JobSpec:
    machine.write("/job/train.py", text)
    return resolve(parse([*options, "train.py"], {}), machine.world())


def environment(spec: JobSpec, *, base: dict[str, str] | None = None, folder: str = "") -> dict[str, str]:
    place = RankPlace(attempt=0, address="127.0.0.1", port=1, world_size=1, memory_folder=folder)
    return worker_environment(
        spec, base or {}, local_rank=0, place=place, agent_hosts_store=True, error_file="e", run_dir="r"
    )


@pytest.mark.parametrize("text", ["", "import torch\n", "import robust_run\n", "checkpoint = 1\n"])
def test_a_script_that_does_not_mention_it_gets_no_keeper(machine: Machine, text: str) -> None:
    spec = job(machine, text=text)
    assert spec.ckpt_memory is None
    assert "ROBUST_CKPT_MEMORY" not in environment(spec)


def test_a_script_that_mentions_it_gets_one_without_a_limit(machine: Machine) -> None:
    spec = job(machine, text=SAVES)
    assert (spec.ckpt_memory, spec.ckpt_memory_bytes) == (True, None)
    assert environment(spec, folder="/dev/shm/x")["ROBUST_CKPT_MEMORY"] == "/dev/shm/x"


def test_a_size_starts_one_for_any_program(machine: Machine) -> None:
    spec = job(machine, "--ckpt-memory", "64G")
    assert (spec.ckpt_memory, spec.ckpt_memory_bytes) == (True, 64 << 30)


def test_off_starts_none_and_the_program_knows_that_it_is_no_mistake(machine: Machine) -> None:
    spec = job(machine, "--ckpt-memory", "off", text=SAVES)
    assert spec.ckpt_memory is False
    assert environment(spec)["ROBUST_CKPT_MEMORY"] == "off"


def test_a_module_is_not_read(machine: Machine) -> None:
    machine.write("/job/train.py", SAVES)
    assert resolve(parse(["-m", "train.py"], {}), machine.world()).ckpt_memory is None


def test_how_often_it_saves_starts_no_keeper(machine: Machine) -> None:
    spec = job(machine, "--ckpt-every", "10m", "--ckpt-dir", "ckpt")
    assert (spec.ckpt_every, spec.ckpt_memory) == ("10m", None)
    told = environment(spec)
    assert (told["ROBUST_CKPT_EVERY"], told["ROBUST_CKPT_DIR"]) == ("10m", "/job/ckpt")


def test_how_many_checkpoints_stay_starts_no_keeper_and_is_told(machine: Machine) -> None:
    spec = job(machine, "--ckpt-keep", " 3 ", "--ckpt-dir", "ckpt")
    assert (spec.ckpt_keep, spec.ckpt_memory) == ("3", None)
    assert environment(spec)["ROBUST_CKPT_KEEP"] == "3"
    assert "ROBUST_CKPT_KEEP" not in environment(job(machine, "--ckpt-dir", "ckpt"))


@pytest.mark.parametrize("text", ["1", "42", "all", "ALL", ""])
def test_how_many_stay_is_told_as_the_program_reads_it(text: str) -> None:
    from robust_run.checkpoint.rules.settings import parse_keep as read

    assert read(parse_keep(text)) == (int(text) if text.isdecimal() else 0)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "some", "3d", "1" * 30])
def test_what_says_no_number_of_checkpoints_is_refused_by_both(text: str) -> None:
    from robust_run.checkpoint.rules.settings import parse_keep as read

    for reads in (parse_keep, read):
        with pytest.raises(UserError, match=r"1 or more, or all"):
            reads(text)


MEETING = ("--rdzv-endpoint", "node-0:29400")


@pytest.mark.parametrize(
    ("options", "copies"),
    [
        (("--nnodes", "2", *MEETING), 1),
        (("--nnodes", "1:4", *MEETING), 1),
        (("--nnodes", "1", "--standby", "1", "--rdzv-backend", "c10d", *MEETING), 1),
        (("--nnodes", "2", "--ckpt-copies", "0", *MEETING), 0),
        (("--nnodes", "2", "--ckpt-memory", "off", "--ckpt-copies", "1", *MEETING), 0),
        ((), 0),
        (("--ckpt-copies", "1"), 0),
    ],
)
def test_other_nodes_keep_a_copy_where_there_are_some(machine: Machine, options: tuple[str, ...], copies: int) -> None:
    assert job(machine, *options, text=SAVES).ckpt_copies == copies


def test_more_than_one_copy_cannot_be_asked_for(machine: Machine) -> None:
    with pytest.raises(UserError, match="--ckpt-copies"):
        job(machine, "--ckpt-copies", "2", text=SAVES)


def test_a_job_inside_another_s_worker_does_not_find_the_outer_keeper(machine: Machine) -> None:
    outer = {"ROBUST_CKPT_MEMORY": "/outer", "ROBUST_RESUME": "rrck+memory://0/5", "ROBUST_RESUME_STEP": "5"}
    assert "ROBUST_CKPT_MEMORY" not in environment(job(machine), base=outer)
    told = environment(job(machine, text=SAVES), base=outer, folder="/inner")
    assert told["ROBUST_CKPT_MEMORY"] == "/inner"
    assert not {"ROBUST_RESUME", "ROBUST_RESUME_STEP"} & told.keys()


@pytest.mark.parametrize(
    ("text", "size"),
    [("1M", 1 << 20), ("1.5g", 3 << 29), ("512MiB", 512 << 20), ("2TB", 2 << 40), ("1048576", 1 << 20)],
)
def test_sizes_are_powers_of_1024(text: str, size: int) -> None:
    assert parse_bytes("--ckpt-memory", text) == size


@pytest.mark.parametrize("text", ["", "x", "-1G", "1P", "64 G B", "1e9", "/dev/shm/x", "nan", "9" * 400, "1K", "0"])
def test_what_is_no_size_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(UserError, match=r"--ckpt-memory .*(64G|1M)"):
        parse_bytes("--ckpt-memory", text)


@pytest.mark.parametrize("text", ["100", "10m", "30s", "2h", " 5M ", ""])
def test_what_workers_are_told_is_what_the_program_reads(text: str) -> None:
    from robust_run.checkpoint.rules.cadence import parse_every as read

    word = parse_every(text)
    assert not word or read(word)


@pytest.mark.parametrize("text", ["0", "0s", "-1", "1.5m", "often", "5d", "1" * 30])
def test_what_says_no_frequency_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--ckpt-every"):
        parse_every(text)


OUTER = {
    "ROBUST_CKPT_DIR": "/outer",
    "ROBUST_CKPT_EVERY": "5",
    "ROBUST_CKPT_KEEP": "1",
    "ROBUST_RESUME": "/outer/step-5",
    "ROBUST_RESUME_STEP": "5",
}


def test_a_job_inside_a_worker_of_another_does_not_write_into_its_checkpoints(machine: Machine) -> None:
    """A test or an evaluation that a training starts would resume from the training's folder, and save over it."""
    inner = environment(job(machine), base={"ROBUST_JOB": "outer", **OUTER})
    assert not set(OUTER) & set(inner)


def test_what_it_is_told_itself_it_tells_its_workers(machine: Machine) -> None:
    spec = job(machine, "--ckpt-dir", "/inner", "--ckpt-every", "7")
    inner = environment(spec, base={"ROBUST_JOB": "outer", **OUTER})
    assert (inner["ROBUST_CKPT_DIR"], inner["ROBUST_CKPT_EVERY"]) == ("/inner", "7")
    assert "ROBUST_RESUME" not in inner


def test_a_folder_in_the_environment_of_a_shell_reaches_the_workers(machine: Machine) -> None:
    assert environment(job(machine), base={"ROBUST_CKPT_DIR": "/mine"})["ROBUST_CKPT_DIR"] == "/mine"
