"""sbatch's options are read as sbatch reads them, and what no script can hold is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.errors import UserError
from robust_run.slurm.rules.sbatch_options import MOST_OPTIONS, Option, last_value, read_options


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["-N4"], ["--nodes=4"]),
        (["-N", "4"], ["--nodes=4"]),
        (["--nodes", "2-4"], ["--nodes=2-4"]),
        (["--nodes=2-4"], ["--nodes=2-4"]),
        (["-kHN4"], ["--no-kill", "--hold", "--nodes=4"]),
        (["--exclusive", "-p", "gpu"], ["--exclusive", "--partition=gpu"]),
        (["--exclusive=user"], ["--exclusive=user"]),
        (["--part=gpu"], ["--partition=gpu"]),
        (["--ntasks-per-n", "8"], ["--ntasks-per-node=8"]),
        (["--nice=-5"], ["--nice=-5"]),
        (["-t", "-1"], ["--time=-1"]),
        (["--comment="], ["--comment="]),
        (["--newer-than-this", "--hold"], ["--newer-than-this", "--hold"]),
        (["--newer-than-this", "5"], ["--newer-than-this=5"]),
    ],
)
def test_options(words: list[str], meant: list[str]) -> None:
    assert [str(option) for option in read_options(words)] == meant


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.py"], "'train.py' is no sbatch option: write sbatch options, then --, then robust-run and its words"),
        (["-N4", ":", "-N2"], "':' is no sbatch option"),
        (["-Z"], "-Z is no option of sbatch that we know"),
        (["-N"], "-N (--nodes) needs a value"),
        (["--comment=a\n#SBATCH --uid=0"], "--'comment' 'a\\n#SBATCH --uid=0': a line break"),
        (["--a\x1bb"], "--'a\\x1bb' None: a line break or another control character"),
        (["--comment=" + "x" * 5000], "--comment: 5010 characters are more than 4096"),
        (["--a b=1"], "--a b is no name of an option"),
        (["-H"] * (MOST_OPTIONS + 1), "1001 sbatch options are more than 1000"),
    ],
)
def test_what_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        read_options(words)
    assert str(caught.value).startswith(message)


@given(st.lists(st.text(max_size=12) | st.sampled_from(["-N", "--nodes", "--x=", "-", "--", "--=", "-kN"]), max_size=6))
def test_any_words_are_read_or_refused_in_a_line(words: list[str]) -> None:
    try:
        options = read_options(words)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        assert all(str(option).isprintable() and option.name for option in options)


def test_the_last_value_counts() -> None:
    options = read_options(["-N2", "--nodes=3", "--hold"])
    assert last_value(options, "nodes") == "3"
    assert last_value(options, "hold") is None
    assert str(Option("hold")) == "--hold"
