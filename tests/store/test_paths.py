"""Which paths are paths within a store, and what becomes of URLs."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.store import paths
from robust_run.store.errors import BadPath, StoreError


@pytest.mark.parametrize("path", ["a", "a/b.c", "a b/ü", "...", "-", "a/..b", "x" * 1024])
def test_plain_paths_are_taken_as_they_are(path: str) -> None:
    assert paths.clean(path) == path


@pytest.mark.parametrize(
    "path",
    ["", "/", "/etc/passwd", "..", "a/../b", "a/..", ".", "./a", "a//b", "a/", "a\0b", "x" * 1025, "ü" * 513, "\udc80"],
)
def test_all_others_are_refused(path: str) -> None:
    with pytest.raises(BadPath):
        paths.clean(path)


@given(st.text(alphabet=st.sampled_from("ab./\\ \0~\n"), max_size=12))
def test_a_path_that_is_accepted_stays_in_its_folder(path: str) -> None:
    if paths.is_clean(path):
        assert os.path.normpath(f"/root/{path}") == f"/root/{path}"


@given(st.text(max_size=30))
def test_a_path_is_accepted_or_refused_with_an_error_of_ours(path: str) -> None:
    try:
        paths.clean(path)
    except StoreError as error:
        str(error).encode(errors="strict")


def test_schemes_and_hosts() -> None:
    assert [paths.scheme_of(url) for url in ("/a", "a:b", "S3://b/k", "simplecache::s3://b/k", "hdfs://nn/x")] == [
        "", "", "s3", "simplecache::s3", "hdfs",
    ]  # fmt: skip
    assert paths.host_of("https://me:pw@Host:8020/x") == "host:8020"
    assert paths.host_of("/a/b") == ""


def test_what_is_shown_of_a_url_has_no_secrets() -> None:
    assert paths.shown("https://me:pw@host/x?sig=1#2") == "https://host/x"
    assert paths.shown("/a/b?c") == "/a/b?c"
    assert paths.shown("hdfs:///a/b") == "hdfs:///a/b"


@pytest.mark.parametrize("url", ["hdfs:///ckpt", "viewfs:///ckpt", "memory:///ckpt", "file:///ckpt", "sftp:///ckpt"])
def test_a_url_without_a_host_stays_a_url(url: str) -> None:
    """`hdfs:/ckpt/x` would be a folder of this machine, below the one that a program is in."""
    assert paths.child(url, "x") == f"{url}/x"
    assert paths.scheme_of(paths.child(url, "x"))


@pytest.mark.parametrize(
    ("url", "path", "expected"),
    [
        ("/ssd/run", "a b", "/ssd/run/a b"),
        ("/", "a", "/a"),
        ("s3://bucket/key/", "a b", "s3://bucket/key/a b"),
        ("https://host/x?sig=1", "a b%", "https://host/x/a%20b%25?sig=1"),
        ("hdfs://nn", "a", "hdfs://nn/a"),
    ],
)
def test_a_path_below_a_url(url: str, path: str, expected: str) -> None:
    assert paths.child(url, path) == expected


def test_nothing_above_a_url_is_named() -> None:
    with pytest.raises(BadPath):
        paths.child("hdfs://nn/x", "../y")
