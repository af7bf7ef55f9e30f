"""Which workers a fork can stand in for, and which variables it may still be given."""

from __future__ import annotations

import msgspec
import pytest

from robust_run.launcher.agent.warm.identity import Identity, frozen_changes, interpreter_arguments, unarmed
from robust_run.tracer.files.arming import arm_environment


@pytest.mark.parametrize(
    "rest",
    [
        ("train.py", "--lr", "1"),
        ("train.py", "-u", "-O"),
        ("/jobs/train.zip",),
        ("folder",),
        ("-m", "pkg.mod", "--x"),
        ("-c", "print(1)", "train.py"),
        ("--", "-dash.py"),
    ],
)
def test_an_unbuffered_python_with_a_program_can_be_forked(rest: tuple[str, ...]) -> None:
    assert interpreter_arguments(("python", "-u", *rest)) == (("-u",), rest)


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("python",),
        ("python", "train.py"),  # its streams would be buffered
        ("python", "-u"),
        ("python", "-u", "-"),
        ("python", "-u", ""),
        ("python", "-u", "--"),
        ("python", "-u", "--", "-"),
        ("python", "-u", "-m"),
        ("python", "-u", "-c"),
        ("python", "-u", "-O", "train.py"),
        ("python", "-u", "-X", "dev", "train.py"),
        ("python", "-uO", "train.py"),
        ("python", "-O", "-u", "train.py"),
        ("python", "-u", "-mpkg"),
        ("/bin/program", "train.py"),
    ],
)
def test_any_other_command_line_must_be_started_from_nothing(argv: tuple[str, ...]) -> None:
    assert interpreter_arguments(argv) is None


def test_an_identity_survives_its_encoding() -> None:
    identity = Identity(argv=("a.py", "ä"), env={"A": "\t1"}, cwd="/", umask=0o77, cpus=(0, 3), agent_pid=1)
    assert msgspec.json.decode(msgspec.json.encode(identity), type=Identity) == identity


def test_what_the_launcher_varies_from_worker_to_worker_is_free() -> None:
    before = {"HOME": "/h", "PYTHONPATH": "/p"}
    after = {**before, "RANK": "1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x", "CUDA_VISIBLE_DEVICES": "3"}
    assert frozen_changes(before, {**after, **arm_environment(after, "/steps")}) == ()


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ({"MALLOC_ARENA_MAX": "1"}, {}, ("MALLOC_ARENA_MAX",)),
        ({}, {"KMP_AFFINITY": "x", "A": "1"}, ("A", "KMP_AFFINITY")),
        ({"PYTHONPATH": "/a"}, {"PYTHONPATH": "/b"}, ("PYTHONPATH",)),
        ({"GOMP_CPU_AFFINITY": "0"}, {"GOMP_CPU_AFFINITY": "1"}, ("GOMP_CPU_AFFINITY",)),
    ],
)
def test_what_an_import_may_have_read_is_frozen(
    before: dict[str, str], after: dict[str, str], names: tuple[str, ...]
) -> None:
    assert frozen_changes(before, after) == names


@pytest.mark.parametrize("env", [{}, {"PYTHONPATH": ""}, {"PYTHONPATH": "/a:/b"}])
def test_unarmed_takes_back_what_arming_adds(env: dict[str, str]) -> None:
    assert unarmed({**env, **arm_environment(env, "/steps")}) == env
