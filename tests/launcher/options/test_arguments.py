"""Spellings: what torchrun's parser understands is understood here in the same way, checked against that parser."""

from __future__ import annotations

import contextlib
import io
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.run import get_args_parser

from robust_run.errors import UserError
from robust_run.launcher.start.options.arguments import canonical
from robust_run.launcher.start.options.command import parse
from robust_run.launcher.start.options.options import OPTIONS, OURS, OptionDescription
from robust_run.launcher.start.options.run_output import split_filters


def refusal(*argv: str) -> str:
    with pytest.raises(UserError) as caught:
        canonical(argv)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["--nproc_per_node", "2"], ["--nproc-per-node=2"]),
        (["--nproc-per_node=2"], ["--nproc-per-node=2"]),
        (["--nproc-per", "2"], ["--nproc-per-node=2"]),
        (["--nproc", "2"], ["--nproc-per-node=2"]),
        (["--redirect=3"], ["--redirects=3"]),
        (["--no-"], ["--no-python"]),
        (["--role=a=b"], ["--role=a=b"]),
        (["--role="], ["--role="]),
        (["--role", ""], ["--role="]),
        (["--role=--foo"], ["--role=--foo"]),
        (["--role", "-1"], ["--role=-1"]),
        (["--role", "-.5"], ["--role=-.5"]),
        (["--role", "-"], ["--role=-"]),
        (["--role", "-a b"], ["--role=-a b"]),
        (["-r3"], ["--redirects=3"]),
        (["-r", "3"], ["--redirects=3"]),
        (["-r=3"], ["--redirects=3"]),
        (["-mr3"], ["--module", "--redirects=3"]),
        (["-mr", "3"], ["--module", "--redirects=3"]),
        (["-mt0:3,1:2"], ["--module", "--tee=0:3,1:2"]),
        (["-redirect"], ["--redirects=edirect"]),
        (["--role", "a", "--role", "b"], ["--role=a", "--role=b"]),
        (["--restart-g", "1"], ["--restart-grace=1"]),
    ],
)
def test_spelling(typed: list[str], meant: list[str]) -> None:
    assert canonical([*typed, "train.py"]) == [*meant, "--", "train.py"]


@pytest.mark.parametrize(
    ("typed", "script"),
    [
        (["s.py", "--nnodes", "9", "-h"], ["s.py", "--nnodes", "9", "-h"]),
        (["s.py", "--n"], ["s.py", "--n"]),
        (["s.py", "a", "--", "b"], ["s.py", "a", "--", "b"]),
        (["--", "s.py", "--x"], ["s.py", "--x"]),
        (["s.py", "--", "--x"], ["s.py", "--x"]),
        (["s.py", "--", "a", "--", "b"], ["s.py", "a", "--", "b"]),
        (["--", "s.py", "--", "b"], ["s.py", "--", "b"]),
        (["--", "--role.py"], ["--role.py"]),
        (["--", "--", "s.py"], ["--", "s.py"]),
        (["-1", "x"], ["-1", "x"]),
        (["", "x"], ["", "x"]),
        (["--unknown with blank"], ["--unknown with blank"]),
        (["tr äin'\n\".py", "\ud8ff"], ["tr äin'\n\".py", "\ud8ff"]),
    ],
)
def test_the_script_and_what_follows_it_stay_as_typed(typed: list[str], script: list[str]) -> None:
    assert canonical(["--standalone", *typed]) == ["--standalone", "--", *script]


def test_without_a_script_there_is_none() -> None:
    assert canonical(["--standalone"]) == ["--standalone"]
    assert canonical(["--"]) == []


@pytest.mark.parametrize(("ask", "asked"), [("-h", "-h"), ("--help", "--help"), ("--hel", "--help")])
def test_help_is_answered_wherever_it_stands_before_the_script(ask: str, asked: str) -> None:
    assert canonical(["--role", "x", ask, "train.py"]) == [asked]


def test_version_is_answered() -> None:
    assert canonical(["--version"]) == ["--version"]


def test_an_ambiguous_prefix_lists_what_it_could_be() -> None:
    assert refusal("--master", "x", "s.py") == "ambiguous option --master: it could be --master-addr, --master-port"


@pytest.mark.parametrize(
    ("prefix", "meant"),
    [
        ("--re=3", "--redirects=3"),
        ("--run-", "--run-path"),
        ("--v", ""),
        ("--stand", "--standalone"),
        ("--t=3", "--tee=3"),
    ],
)
def test_options_of_ours_take_no_abbreviation_away_from_torchrun(prefix: str, meant: str) -> None:
    assert canonical([prefix, "s.py"])[0] == (meant or "--virtual-local-rank")


def test_a_missing_value_is_named() -> None:
    assert refusal("--role") == "--role: expected one argument (TEXT)"
    assert "--role: expected one argument (TEXT), got '--foo'; write --role=--foo" in refusal("--role", "--foo", "s.py")
    assert "expected one argument" in refusal("--role", "-m", "s.py")
    assert "expected one argument" in refusal("-t", "--", "s.py")


def test_a_value_for_a_flag_is_refused() -> None:
    assert refusal("--standalone=1", "s.py") == "--standalone takes no value, got '1'"
    assert refusal("-m=3", "s.py") == "-m takes no value, got '3'"


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--nporc-per-node", "unknown option --nporc-per-node; did you mean --nproc-per-node?"),
        ("--max_restart_count=3", "unknown option --max_restart_count; did you mean --max-restarts?"),
        ("-nproc_per_node", "unknown option -nproc_per_node; did you mean --nproc-per-node?"),
        ("-mx", "unknown option -x in '-mx'"),
    ],
)
def test_an_unknown_option_names_the_nearest(typed: str, message: str) -> None:
    assert refusal(typed, "s.py") == message


def test_an_unknown_option_without_a_near_one_points_at_the_help() -> None:
    assert refusal("--lr", "3", "s.py") == (
        "unknown option --lr; see robust-run --help (options of the script go after the script)"
    )
    assert refusal("-\n", "s.py").startswith("unknown option '-\\n'; see robust-run --help")


# --- against torchrun's own parser ----------------------------------------------------------------------------------

TORCHRUN_S = [option for option in OPTIONS if option.group not in OURS]
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
PLAIN = TEXTS.filter(lambda text: not text.startswith("-"))
SCRIPTS = st.one_of(st.sampled_from(["train.py", "my train.py", "träin.py", "a\nb", "-1", "-"]), PLAIN)
SCRIPT_ARGS = st.lists(st.one_of(PLAIN, st.sampled_from(["--", "--lr", "--nnodes", "-h", "-x", "-m"])), max_size=4)


def values_for(option: OptionDescription) -> st.SearchStrategy[str]:
    if option.choices:
        return st.sampled_from(option.choices)
    if option.kind == "whole":
        return st.integers(-5, 99_999).map(str)
    if option.kind == "decimal":
        return st.floats(-5, 1e6).map(lambda number: f"{number:.3f}")
    return st.one_of(PLAIN, st.sampled_from(["a,,b,c", "0:3,1:2", "k=v,k2=v2", "-7", "-", "- x", "--a b"]))


@st.composite
def spelled(draw: st.DrawFn) -> list[str]:
    """One option of torchrun in one of the ways torchrun takes it."""
    option = draw(st.sampled_from(TORCHRUN_S))
    names = [option.name, option.field]
    names += [name[: draw(st.integers(1, len(name)))] for name in (option.name, option.field)]
    name = f"--{draw(st.sampled_from(names))}"
    short = draw(st.booleans()) and option.short
    if not option.takes_value:
        return [f"-{short}" if short else name]
    value = draw(values_for(option))
    if short:
        return draw(st.sampled_from([["-" + short, value], ["-" + short + value]]))
    return draw(st.sampled_from([[name, value], [f"{name}={value}"]]))


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    words = [word for option in draw(st.lists(spelled(), max_size=5)) for word in option]
    return [*words, *draw(st.sampled_from([[], ["--"]])), draw(SCRIPTS), *draw(SCRIPT_ARGS)]


def torchrun_parses(argv: list[str], env: dict[str, str]) -> dict[str, Any] | None:
    """What torchrun makes of a command line; None where it refuses."""
    with mock.patch.dict("os.environ", env), contextlib.redirect_stderr(io.StringIO()):
        try:
            return vars(get_args_parser().parse_args(argv))
        except (SystemExit, ValueError):
            return None


def as_torchrun_says_it(argv: list[str], env: dict[str, str]) -> dict[str, Any]:
    values = msgspec.structs.asdict(parse(argv, env))
    del values["given"]
    for option in OPTIONS:
        if option.group in OURS:
            del values[option.field]
    values["training_script_args"] = list(values["training_script_args"])
    for stream in ("stdout", "stderr"):
        field = f"duplicate_{stream}_filters"
        values[field] = list(split_filters(values[field]))
    return values


def comparable(values: dict[str, Any]) -> dict[str, Any]:
    """Without the two differences that are meant: the default of --max-restarts, and filters that match every line."""
    filters = {name: [text for text in values[name] if text] for name in values if name.startswith("duplicate_")}
    return {**values, **filters}


@settings(max_examples=400, deadline=None)
@given(command_lines())
def test_whatever_torchrun_accepts_means_the_same_here(argv: list[str]) -> None:
    expected = torchrun_parses(argv, {"PET_MAX_RESTARTS": "3"})
    if expected is not None:
        assert as_torchrun_says_it(argv, {}) == comparable(expected)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([option for option in TORCHRUN_S if option.env]).flatmap(
        lambda option: st.tuples(
            st.just(option),
            st.sampled_from(["0", "1", "2"]) if option.kind == "flag" else values_for(option).filter(bool),
        )
    ),
    command_lines(),
)
def test_the_environment_means_the_same_here(setting: tuple[OptionDescription, str], argv: list[str]) -> None:
    option, value = setting
    env = {"PET_MAX_RESTARTS": "3", str(option.env): value}
    expected = torchrun_parses(argv, env)
    if expected is not None:
        assert as_torchrun_says_it(argv, env) == comparable(expected)
