"""Which paths and links a tree may have: none that leads out of its folder, whatever another machine sends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.launcher.records.code.errors import CodeError
from robust_run.launcher.records.code.names import check_path, check_tree, why_no_link, why_not
from robust_run.launcher.records.code.types import CodeFile, CodeLimits, CodeTree

DIGEST = "0" * 64


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a//b",
        "./a",
        "a/",
        "a/.",
        "a\0b",
        "x" * 300,
        "a/" * 60 + "b",
        "\udcff.py",
    ],
)
def test_a_path_that_leads_out_or_means_two_things_is_refused(path: str) -> None:
    with pytest.raises(CodeError):
        check_path(path)


@pytest.mark.parametrize("path", ["a.py", "a b/ü-训.py", "-x.py", "a\\b", "...", "a\nb.py"])
def test_odd_names_that_stay_inside_are_fine(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("a", "/etc/passwd"),
        ("a", "../x"),
        ("d/a", "../../x"),
        ("d/a", "b/../../../x"),
        ("a", ".."),
        ("a", "."),
        ("d/a", "x/../y"),
        ("a", ""),
    ],
)
def test_a_link_that_may_lead_out_is_refused(path: str, target: str) -> None:
    assert why_no_link(path, target)


@given(
    st.lists(st.sampled_from(["a", "b", "..", "."]), min_size=1, max_size=5),
    st.lists(st.sampled_from(["a", "b", "..", ".", ""]), min_size=1, max_size=6),
)
def test_no_link_that_is_taken_leads_out(where: list[str], target: list[str]) -> None:
    path, leads_to = "/".join(where), "/".join(target)
    if not why_not(path) and not why_no_link(path, leads_to):
        reached = os.path.normpath(os.path.join("/root", os.path.dirname(path), leads_to))
        assert reached.startswith("/root/")


def test_links_are_followed_inside_alone_even_through_each_other(tmp_path: Path) -> None:
    # `d` leads to the root itself, so `d/../x` would lead out although it does not look like it.
    assert why_no_link("x", "d/../y")


@pytest.mark.parametrize(
    "files",
    [
        (CodeFile(path="a", digest=DIGEST), CodeFile(path="a", digest=DIGEST)),
        (CodeFile(path="a", link="b"), CodeFile(path="a/x", digest=DIGEST)),
        (CodeFile(path="a", digest=DIGEST), CodeFile(path="a/x", digest=DIGEST)),
        (CodeFile(path="a", digest="../../etc"),),
        (CodeFile(path="a", digest=DIGEST, size_bytes=-1),),
        (CodeFile(path="a", digest=DIGEST, size_bytes=2 << 20),),
        (CodeFile(path="a", digest=DIGEST, link="b"),),
        tuple(CodeFile(path=f"f{number}", digest=DIGEST) for number in range(11)),
        tuple(CodeFile(path=f"f{number}", digest=DIGEST, size_bytes=1000) for number in range(5)),
    ],
)
def test_a_hostile_tree_is_refused(files: tuple[CodeFile, ...]) -> None:
    with pytest.raises(CodeError):
        check_tree(CodeTree(files=files), CodeLimits(most_files=10, most_bytes=4000))
