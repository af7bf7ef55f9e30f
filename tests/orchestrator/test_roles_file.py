"""What a file of roles says, and what is wrong with one that makes no sense: a line that names the place and the next step."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run import settings_file
from robust_run.errors import UserError
from robust_run.orchestrator.model.command import command_line, environment
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.words import StartMember
from robust_run.orchestrator.roles_file import load, parse

ALL = """
name = "dapo"
queue_items = 10
lease_s = 2.5

[roles.trainer]
command = "train.py --lr 1e-3 'two words'"
nproc = 2
ends = "job"
depends_on = ["reward"]
options = ["--ckpt-dir", "ckpt"]
env = { OMP_NUM_THREADS = "1" }

[roles.rollout]
command = ["rollout.py"]
members = "2..8"
restart = "alone"
devices = 1

[roles.reward]
command = "-m rewards"
ready = "called"
"""


def test_all_that_a_file_can_say() -> None:
    spec = parse(ALL)
    trainer, rollout, reward = spec.roles
    assert (spec.name, spec.queue_items, spec.lease_s) == ("dapo", 10, 2.5)
    assert trainer.command == ("train.py", "--lr", "1e-3", "two words")
    assert (trainer.nproc, trainer.ends, trainer.depends_on, trainer.restart) == (2, "job", ("reward",), "together")
    assert (rollout.fewest, rollout.members, rollout.most, rollout.restart) == (2, 8, 8, "alone")
    assert reward.ready == "called"
    assert spec.role("reward") is reward
    with pytest.raises(KeyError):
        spec.role("nobody")


def test_a_job_is_named_after_its_file_where_it_has_no_name() -> None:
    assert parse('[roles.a]\ncommand = "a.py"', "/x/rl.toml").name == "rl"


def test_fewer_members_to_begin_with() -> None:
    spec = parse('[roles.a]\ncommand = "a.py"\nmembers = 3\nfewest = 2\nmost = 5\nrestart = "alone"')
    assert (spec.roles[0].fewest, spec.roles[0].members, spec.roles[0].most) == (2, 3, 5)


A = '[roles.a]\ncommand = "a.py"\n'
MISTAKES = {
    "no TOML": ("[roles.a\n", "is no TOML"),
    "no roles": ("name = 'x'\n", "roles"),
    "no role": ("[roles]\n", r"has 0 roles; 1 to 64 are possible: \[roles.NAME\]"),
    "unknown word of the job": (f"rolles = 1\n{A}", "unknown field `rolles`"),
    "unknown word of a role": (f"{A}nprocs = 2\n", "has no key nprocs; did you mean nproc?"),
    "no command": ("[roles.a]\nnproc = 1\n", "missing required field `command`"),
    "empty command": ("[roles.a]\ncommand = ' '\n", "write what you would type after robust-run"),
    "empty list": ("[roles.a]\ncommand = []\n", "write what you would type after robust-run"),
    "open quote": ('[roles.a]\ncommand = "a.py \'x"\n', "a list of words needs no quotes"),
    "name": ("[roles.'A b']\ncommand = 'a.py'\n", "small letters, digits"),
    "nproc": (f"{A}nproc = 0\n", "nproc = 0: expected `int` >= 1"),
    "restart": (f'{A}restart = "never"\n', "restart = 'never': it is one of together, alone, job"),
    "less than none": (f"{A}cpus = -1\n", r"\[roles.a\] cpus = -1: expected `int` >= 0"),
    "a secret": (f"{A}env = {{TOKEN = 3}}\n", r"\[roles.a\] env: expected `str`, got `int`"),
    "members of one world": (f"{A}members = 3\n", r'write nproc = 3 for so many ranks in it, or restart = "alone"'),
    "range": (f'{A}members = "2-8"\nrestart = "alone"\n', r'write a number, or "2..8"'),
    "range twice": (f'{A}members = "2..8"\nmost = 9\nrestart = "alone"\n', r'write a number, or "2..8"'),
    "range backwards": (f'{A}members = "8..2"\nrestart = "alone"\n', "each may be at most the next"),
    "fewest": (f'{A}members = 2\nfewest = 3\nrestart = "alone"\n', "has fewest 3, members 2, most 2"),
    "depends on nobody": (f'{A}depends_on = ["bb"]\n[roles.b]\ncommand = "b.py"\n', "did you mean b?"),
    "depends on itself": (f'{A}depends_on = ["a"]\n', "which is no other role"),
    "circle": (f'{A}depends_on = ["b"]\n[roles.b]\ncommand = "b.py"\ndepends_on = ["a"]\n', "wait for each other"),
    "option": (f'{A}options = ["--run-id=x"]\n', r"--run-id=x: leave it out, that is said elsewhere \(of the job\)"),
    "short option": (f'{A}options = ["--nproc-per-node", "4"]\n', r"said elsewhere \(nproc\)"),
    "variable": (f"{A}env = {{ 'A-B' = 'x' }}\n", "is no name of a variable"),
    "told": (f"{A}env = {{ RANK = '3' }}\n", "env has RANK, which each worker is told by robust-run"),
    "devices twice": (
        f"{A}devices = 1\nenv = {{ CUDA_VISIBLE_DEVICES = '1' }}\n",
        "CUDA_VISIBLE_DEVICES, which devices = 1 sets",
    ),
    "zero byte": ('[roles.a]\ncommand = ["a.py", "x\\u0000y"]\n', "a zero byte"),
    "zero byte in env": (f'{A}env = {{ A = "x\\u0000y" }}\n', "a zero byte"),
    "lease": (f"lease_s = 0\n{A}", "lease_s"),
    "endless lease": (f"lease_s = nan\n{A}", "lease_s"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_one_line_that_says_where_and_what_to_write(mistake: str) -> None:
    text, says = MISTAKES[mistake]
    with pytest.raises(UserError, match=says) as caught:
        parse(text, "r.toml")
    assert str(caught.value).startswith("--roles r.toml")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        load(str(tmp_path / "none.toml"))
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        load(str(tmp_path))
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (settings_file.MOST_BYTES + 1))
    with pytest.raises(UserError, match="hardly the right file"):
        load(str(large))


_words = st.sampled_from(
    (
        "[roles.a]",
        "[roles]",
        "command",
        "=",
        '"a.py"',
        "members",
        "3",
        "'2..4'",
        "\n",
        "[",
        "]",
        "restart",
        '"alone"',
        "{",
        "}",
        "nan",
        "-1",
    )
)


@given(st.one_of(st.text(max_size=200), st.lists(_words, max_size=30).map(" ".join)))
def test_garbage_is_an_error_of_one_line_or_a_job(text: str) -> None:
    try:
        assert parse(text).roles
    except UserError as error:
        assert "\n" not in str(error)


@given(
    st.dictionaries(
        st.sampled_from(
            ("command", "members", "fewest", "most", "nproc", "restart", "depends_on", "env", "options", "devices")
        ),
        st.one_of(st.integers(-3, 5000), st.text(max_size=9), st.lists(st.text(max_size=5), max_size=3), st.booleans()),
    )
)
def test_wrong_values_are_errors_too(table: dict[str, object]) -> None:
    text = "[roles.a]\n" + "".join(f"{name} = {msgspec.json.encode(value).decode()}\n" for name, value in table.items())
    try:
        (role,) = parse(text).roles
        assert 1 <= role.fewest <= role.members <= role.most
    except UserError as error:
        assert "\n" not in str(error)


def test_a_member_is_started_as_a_user_would_and_inherits_nothing_of_the_whole() -> None:
    role = parse(ALL).roles[0]
    start = StartMember(member=MemberName("trainer", 0), serial=3, nodes=("here",), devices=(1, 2))
    line = command_line(role, start, "/runs/members", "/bin/python")
    assert line[:3] == ["/bin/python", "-m", "robust_run"]
    assert line[-6:] == ["--ckpt-dir", "ckpt", "train.py", "--lr", "1e-3", "two words"]
    assert line[line.index("--run-id") + 1] == "trainer-0.3"
    base = {"PATH": "/bin", "ROBUST_RUN_ID": "whole", "PET_NNODES": "2", "CUDA_VISIBLE_DEVICES": "4,GPU-5,6"}
    env = environment(role, start, base, "/runs/roles.place")
    assert env == {
        "PATH": "/bin",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "GPU-5,6",
        "ROBUST_SLURM": "off",  # where it runs is said by the whole
        "ROBUST_ROLES_PLACE": "/runs/roles.place",
        "ROBUST_ROLE": "trainer",
        "ROBUST_ROLE_INDEX": "0",
        "ROBUST_ROLE_SERIAL": "3",
    }
    assert "PATH" in os.environ


def test_a_role_that_scales_by_demand_has_room_to() -> None:
    text = 'scale_after_s = 60\n[roles.a]\ncommand = "a.py"\nrestart = "alone"\nscale = "demand"\nmembers = '
    spec = parse(text + '"2..8"')
    assert (spec.scale_after_s, spec.roles[0].scale) == (60.0, "demand")
    assert parse('[roles.a]\ncommand = "a.py"').roles[0].scale == "asked"
    with pytest.raises(UserError, match=r'scale = "demand" needs room to scale in: members = "2..8", not 4'):
        parse(text + "4")
    with pytest.raises(UserError, match="scale_after_s"):
        parse('scale_after_s = 1\n[roles.a]\ncommand = "a.py"')


def test_a_role_says_where_it_runs_and_how_many_cpus_it_needs() -> None:
    role = parse('[roles.reward]\ncommand = "a.py"\nwhere = "het-1"\ncpus = 4').roles[0]
    assert (role.where, role.cpus) == ("het-1", 4)
    with pytest.raises(UserError, match=r"where = 'a b' is no label"):
        parse('[roles.reward]\ncommand = "a.py"\nwhere = "a b"')
