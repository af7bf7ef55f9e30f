"""Arguments and variables of an update: each finds its place on the command line, and what is the launcher's is refused."""

from __future__ import annotations

import pytest

from robust_run.errors import UserError
from robust_run.launcher.records.code.program import in_folder, program_of, with_settings
from robust_run.launcher.records.code.settings import check_variables, parse_pairs, with_arguments


@pytest.mark.parametrize(
    ("words", "changes", "expected"),
    [
        (["--lr", "0.1"], {"lr": "1e-4"}, ["--lr", "1e-4"]),
        (["--lr=0.1", "--x"], {"lr": "1e-4"}, ["--lr=1e-4", "--x"]),
        (["-lr", "0.1"], {"lr": "2"}, ["-lr", "2"]),
        (["lr=0.1", "model=big"], {"lr": "2"}, ["lr=2", "model=big"]),
        (["model=big"], {"lr": "2"}, ["model=big", "lr=2"]),
        (["--model", "big"], {"lr": "2"}, ["--model", "big", "--lr=2"]),
        ([], {"lr": "2"}, ["--lr=2"]),
        (["--batch-size", "8"], {"batch_size": "16"}, ["--batch-size", "16"]),
        (["--batch_size=8"], {"batch-size": "16"}, ["--batch_size=16"]),
        (["--lr", "-0.1"], {"lr": "-1e-4"}, ["--lr", "-1e-4"]),
        (["--amp", "--lr", "1"], {"amp": "false"}, ["--amp=false", "--lr", "1"]),
        (["--lr", "1", "--lr", "2"], {"lr": "3"}, ["--lr", "3", "--lr", "3"]),
        (["train", "lr"], {"--lr": "3"}, ["train", "lr", "--lr=3"]),
        (["--optim.lr=1"], {"optim.lr": "3"}, ["--optim.lr=3"]),
        (["--lr=1"], {"lr": "a=b c"}, ["--lr=a=b c"]),
    ],
)
def test_an_argument_is_set_where_it_is_else_at_the_end(
    words: list[str], changes: dict[str, str], expected: list[str]
) -> None:
    assert with_arguments(words, changes) == tuple(expected)


@pytest.mark.parametrize("word", ["lr", "=1", "--=1", "a b=1", "x=" + "y" * 5000, "x=a\0b"])
def test_what_is_no_pair_is_refused(word: str) -> None:
    with pytest.raises(UserError, match=r"--set"):
        parse_pairs([word], "--set")


def test_the_same_name_twice_is_refused() -> None:
    with pytest.raises(UserError, match=r"twice"):
        parse_pairs(["a=1", "a=2"], "--env")


@pytest.mark.parametrize("name", ["RANK", "MASTER_ADDR", "PYTHONPATH", "LD_PRELOAD", "ROBUST_X", "TORCHELASTIC_RUN_ID"])
def test_variables_of_the_launcher_are_not_set(name: str) -> None:
    with pytest.raises(UserError, match=name):
        check_variables({name: "1"})


@pytest.mark.parametrize(
    ("argv", "moved", "changed"),
    [
        (
            ("python", "-u", "train.py", "--lr", "1"),
            ("python", "-u", "/copy/train.py", "--lr", "1"),
            ("python", "-u", "train.py", "--lr", "2"),
        ),
        (
            ("python", "-u", "--", "-t.py", "--lr", "1"),
            ("python", "-u", "--", "/copy/train.py", "--lr", "1"),
            ("python", "-u", "--", "-t.py", "--lr", "2"),
        ),
        (
            ("python", "-u", "-m", "pkg.main", "--lr", "1"),
            ("python", "-u", "-m", "pkg.main", "--lr", "1"),
            ("python", "-u", "-m", "pkg.main", "--lr", "2"),
        ),
        (
            ("python", "-u", "-c", "code", "train.py", "--lr", "1"),
            ("python", "-u", "-c", "code", "/copy/train.py", "--lr", "1"),
            ("python", "-u", "-c", "code", "train.py", "--lr", "2"),
        ),
    ],
)
def test_script_and_arguments_are_found_on_the_command_line(
    argv: tuple[str, ...], moved: tuple[str, ...], changed: tuple[str, ...]
) -> None:
    program = program_of(argv, is_python=True)
    assert in_folder(argv, program, "/copy/train.py") == moved
    assert with_settings(argv, program, {"lr": "2"}) == changed


def test_a_program_that_is_no_python_has_arguments_too() -> None:
    argv = ("/bin/train", "--lr", "1")
    program = program_of(argv, is_python=False)
    assert in_folder(argv, program, "/copy/x") == argv
    assert with_settings(argv, program, {"lr": "2"}) == ("/bin/train", "--lr", "2")
