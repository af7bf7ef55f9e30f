"""Which streams of which rank go where, as torchrun's options say it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.elastic.multiprocessing import api

from robust_run.errors import UserError
from robust_run.launcher.model.job import OutputStreams, Std
from robust_run.launcher.start.options.command import parse
from robust_run.launcher.start.options.run_output import resolve_streams, split_filters

BOTH, OUT, ERR, NEITHER = Std(out=True, err=True), Std(out=True), Std(err=True), Std()


def streams(*options: str, nproc: int = 2, env: dict[str, str] | None = None) -> tuple[OutputStreams, tuple[str, ...]]:
    return resolve_streams(parse([*options, "train.py"], {}), nproc, env or {})


def test_nothing_asked_for_means_nothing_is_redirected_and_all_is_shown() -> None:
    assert streams() == (OutputStreams(redirects=(NEITHER,) * 2, tee=(NEITHER,) * 2, shown=(True, True)), ())


@pytest.mark.parametrize(("value", "std"), [("0", NEITHER), ("1", OUT), ("2", ERR), ("3", BOTH)])
def test_one_number_is_for_every_rank(value: str, std: Std) -> None:
    found, _ = streams("-r", value, "-t", value, nproc=3)
    assert found.redirects == found.tee == (std,) * 3


def test_a_map_is_for_the_ranks_in_it() -> None:
    found, _ = streams("-r", "0:3,2:1", "-t", "11:2", nproc=12)
    assert found.redirects == (BOTH, NEITHER, OUT, *(NEITHER,) * 9)
    assert found.tee == (*(NEITHER,) * 11, ERR)


def test_a_rank_that_does_not_exist_is_noted_not_refused() -> None:
    found, notes = streams("--tee", "0:3,2:3", "--local-ranks-filter", "1,5")
    assert found.tee == (BOTH, NEITHER)
    assert found.shown == (False, True)
    assert notes == (
        "--tee: there is no local rank 2; the last one is 1",
        "--local-ranks-filter: there is no local rank 5; the last one is 1",
    )


@pytest.mark.parametrize("value", ["4", "-1", "", "x", "0:4", "0:3,", ":3", "0=3", "0:3 1:3", "33", "٣"])
def test_nonsense_is_refused(value: str) -> None:
    with pytest.raises(UserError, match=r"^--tee: .* is neither 0, 1 \(stdout\), 2 \(stderr\), 3 \(both\) nor"):
        streams(f"--tee={value}")


@pytest.mark.parametrize("value", ["x", "0,", "-1", "0;1", "1.0"])
def test_a_filter_of_ranks_must_be_numbers(value: str) -> None:
    with pytest.raises(UserError, match="is not a list of local ranks like 0,1,2"):
        streams(f"--local-ranks-filter={value}")


@given(
    st.one_of(
        st.sampled_from("0123"),
        st.dictionaries(st.integers(0, 9), st.integers(0, 3), min_size=1).map(
            lambda ranks: ",".join(f"{rank}:{value}" for rank, value in ranks.items())
        ),
    ),
    st.integers(1, 10),
)
def test_what_torchrun_takes_means_the_same_here(value: str, nproc: int) -> None:
    expected = api.to_map(api.Std.from_str(value), nproc)
    found, _ = streams("--redirects", value, nproc=nproc)
    assert [(std.out, std.err) for std in found.redirects] == [
        (bool(expected[rank] & api.Std.OUT), bool(expected[rank] & api.Std.ERR)) for rank in range(nproc)
    ]


@pytest.mark.parametrize(
    ("text", "filters"),
    [("", ()), ("a", ("a",)), ("a,b c", ("a", "b c")), ("a,,b,c", ("a,b", "c")), (",,", (",",)), ("a,", ("a",))],
)
def test_two_commas_are_one_that_belongs_to_a_filter(text: str, filters: tuple[str, ...]) -> None:
    assert split_filters(text) == filters


def test_filters_and_the_prefix_reach_the_job() -> None:
    template = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${rank}]: "}
    found, _ = streams("--duplicate-stdout-filters", "a,b", "--duplicate-stderr-filters", "c", env=template)
    assert (found.stdout_filters, found.stderr_filters, found.prefix_template) == (("a", "b"), ("c",), "[${rank}]: ")
