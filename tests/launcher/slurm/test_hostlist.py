"""Slurm's lists of hosts, without Slurm."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.errors import UserError
from robust_run.slurm.rules.hostlist import MOST_HOSTS, expand


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("rr1", "rr1"),
        ("rr[1-2,4]", "rr1 rr2 rr4"),
        ("rr[1-2,4,3]", "rr1 rr2 rr4 rr3"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[001,3]", "n001 n3"),
        ("gpu[1-2]-ib[0,1]", "gpu1-ib0 gpu1-ib1 gpu2-ib0 gpu2-ib1"),
        ("r[1-2]n[1-2].cluster", "r1n1.cluster r1n2.cluster r2n1.cluster r2n2.cluster"),
        ("login,rr[1-2],big", "login rr1 rr2 big"),
        ("[1-3]", "1 2 3"),
        ("", ""),
    ],
)
def test_a_list_is_expanded_as_scontrol_does(text: str, hosts: str) -> None:
    assert expand(text) == tuple(hosts.split())


@pytest.mark.parametrize(
    "text", ["rr[1-", "rr1]", "rr[[1-2]]", "rr[]", "rr[2-1]", "rr[a-b]", "rr[1-2-3]", "r r", "rr[1;2]"]
)
def test_what_is_no_list_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UserError, match="no list of hosts") as caught:
        expand(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", [f"n[1-{MOST_HOSTS + 2}]", "n[1-999999999999999]", "n[0-999]x[0-999]y[0-999]", "a," * 600_000]
)
def test_a_list_that_would_fill_the_memory_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        expand(text)


def compressed(name: str, numbers: list[int], width: int) -> str:
    """Return one group as Slurm would write it: runs as ranges, all of one width."""
    parts: list[str] = []
    at = 0
    while at < len(numbers):
        end = at
        while end + 1 < len(numbers) and numbers[end + 1] == numbers[end] + 1:
            end += 1
        first, last = f"{numbers[at]:0{width}d}", f"{numbers[end]:0{width}d}"
        parts.append(first if end == at else f"{first}-{last}")
        at = end + 1
    return f"{name}[{','.join(parts)}]"


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"\A[a-z][a-z-]{0,5}\Z"),
            st.lists(st.integers(0, 300), min_size=1, max_size=20, unique=True),
            st.integers(3, 5),
        ),
        max_size=4,
    )
)
def test_what_was_compressed_is_what_it_expands_to(groups: list[tuple[str, list[int], int]]) -> None:
    text = ",".join(compressed(*group) for group in groups)
    assert list(expand(text)) == [f"{name}{number:0{width}d}" for name, numbers, width in groups for number in numbers]


@given(st.text(alphabet="rn[]-,0123456789 .", max_size=40))
def test_any_text_is_a_list_or_refused(text: str) -> None:
    try:
        hosts = expand(text)
    except UserError:
        return
    assert all(re.fullmatch(r"[\w.:%-]+", host) for host in hosts)
