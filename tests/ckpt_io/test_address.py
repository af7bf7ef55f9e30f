"""An address says where a checkpoint lies, and never leads anywhere else."""

from __future__ import annotations

import os
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.address import Address, join, origin, parse, split
from robust_run.errors import RobustRunError, UserError


@pytest.mark.parametrize(
    ("typed", "url", "root", "name"),
    [
        ("/ssd0/run/step-4", "/ssd0/run/step-4", "/ssd0/run", "step-4"),
        ("/step-4/", "/step-4", "/", "step-4"),
        ("rrck:///ssd0/run/step-4", "/ssd0/run/step-4", "/ssd0/run", "step-4"),
        ("rrck://hdfs://nn:8020/run/step-4/", "hdfs://nn:8020/run/step-4", "hdfs://nn:8020/run", "step-4"),
        ("hdfs://nn/step-4", "hdfs://nn/step-4", "hdfs://nn", "step-4"),
        ("s3://bucket/step-4", "s3://bucket/step-4", "s3://bucket", "step-4"),
        ("file:///step-4", "file:///step-4", "file:///", "step-4"),
        ("https://h/run/step%204", "https://h/run/step%204", "https://h/run", "step 4"),
        ("https://h/run/step-4?sig=a/b", "https://h/run/step-4?sig=a/b", "https://h/run?sig=a/b", "step-4"),
        ("rrck:///a%3Fb/c%25d", "/a?b/c%d", "/a?b", "c%d"),
    ],
)
def test_root_and_name_are_what_was_typed(typed: str, url: str, root: str, name: str) -> None:
    address = parse(typed)
    assert (address.url, address.root, address.name) == (url, root, name)
    assert join(root, name) == url


def test_a_relative_path_is_made_absolute() -> None:
    assert parse("run/step-1").url == os.path.join(os.getcwd(), "run/step-1")


def test_further_targets_hold_a_folder_of_the_same_name() -> None:
    address = parse("rrck:///ssd0/run/s1?also=/ssd1/run&also=hdfs://nn/run", ("/more",))
    assert address.folders == ("/ssd0/run/s1", "/ssd1/run/s1", "hdfs://nn/run/s1", "/more/s1")


@pytest.mark.parametrize(
    "typed",
    ["", "/", "hdfs://nn", "rrck://", "rrck://rrck:///a/b", "hdfs://nn/a/../b", "https://h/a/%2e%2e/b", "rrck:///a/b?also",
     "rrck:///a/b?with=/c", "rrck:///a/b?also=", "/a/b\0", "/" + "x" * 5000, "rrck:///a/b?also=/a", "hdfs://nn/run/.."],
)  # fmt: skip
def test_what_is_no_address_is_refused(typed: str) -> None:
    with pytest.raises(UserError):
        _ = parse(typed).name


names = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="/\0"), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..")
)
absolute = st.lists(names, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))


def spell(address: Address) -> str:
    query = "&".join(f"also={quote(root, safe='/')}" for root in address.also)
    return "rrck://" + quote(address.url, safe="/") + (f"?{query}" if query else "")


@given(absolute, st.lists(absolute, max_size=3, unique=True))
def test_spelling_can_be_read_back(url: str, also: list[str]) -> None:
    address = Address(url, tuple(also))
    if len(set(address.folders)) == len(address.folders):
        assert parse(spell(address)) == address


@given(st.text(max_size=60))
def test_whatever_is_typed_is_an_address_or_the_users_error(typed: str) -> None:
    try:
        address = parse(typed)
        root, name = split(address.url)
    except RobustRunError:
        return
    assert name not in ("", ".", "..") and "/" not in name and root


def test_paths_and_file_urls_are_of_one_origin_and_hosts_are_not() -> None:
    assert origin("/a") == origin("file:///b")
    assert origin("hdfs://NN:1/a") == origin("hdfs://nn:1/b") != origin("hdfs://nn:2/b")
    assert origin("https://me:secret@h/a") == origin("https://h/a")


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("/m/step-7", "hdfs://nn/run/step-7"),
        ("/m/old/step 7", "hdfs://nn/run/old/step 7"),
        ("/m", "hdfs://nn/run"),
        ("/mm/step-7", "/mm/step-7"),
        ("/m/../step-7", "/step-7"),
        ("hdfs://nn/m/step-7", "hdfs://nn/m/step-7"),
    ],
)
def test_what_a_job_is_shown_as_files_is_read_from_where_it_lies(path: str, url: str) -> None:
    env = {"ROBUST_CKPT_MOUNTED": "/m", "ROBUST_CKPT_DIR": "hdfs://nn/run"}
    assert parse(path, env=env).url == url
    assert parse("/m/step-7", env={"ROBUST_CKPT_DIR": "hdfs://nn/run"}).url == "/m/step-7"
