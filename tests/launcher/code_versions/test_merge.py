"""Three-way merge: both changes are kept, or the files that collide are named; nothing is guessed and nothing is lost."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.launcher.records.code.content_store import digest_of
from robust_run.launcher.records.code.merge import Merged, merge, merge_lines, with_difflib
from robust_run.launcher.records.code.types import CodeFile, CodeTree

TEXT = b"one\n\n\ntwo\n\n\nthree\n"


class Shelf:
    """Contents by digest."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def tree(self, **files: bytes | str) -> CodeTree:
        made = []
        for name, content in sorted(files.items()):
            if isinstance(content, str):
                made.append(CodeFile(path=name, link=content))
                continue
            digest = digest_of(content)
            self.contents[digest] = content
            made.append(CodeFile(path=name, digest=digest, size_bytes=len(content)))
        return CodeTree(files=tuple(made))


def merged(base: dict[str, bytes], ours: dict[str, bytes], theirs: dict[str, bytes]) -> tuple[dict[str, bytes], Merged]:
    shelf = Shelf()
    result = merge(
        shelf.tree(**base), shelf.tree(**ours), shelf.tree(**theirs), shelf.contents.__getitem__, with_difflib
    )
    texts = {
        file.path: result.contents[file.path] if file.path in result.contents else shelf.contents[file.digest]
        for file in result.tree.files
    }
    return texts, result


def test_each_side_brings_its_files() -> None:
    texts, result = merged(
        {"a": b"1", "b": b"1", "gone": b"1"}, {"a": b"2", "b": b"1", "gone": b"1"}, {"a": b"1", "b": b"3", "new": b"4"}
    )
    assert texts == {"a": b"2", "b": b"3", "new": b"4"}
    assert result.conflicts == ()


def test_lines_of_one_file_are_merged() -> None:
    texts, result = merged({"f": TEXT}, {"f": TEXT.replace(b"one", b"ONE")}, {"f": TEXT.replace(b"three", b"THREE")})
    assert texts == {"f": b"ONE\n\n\ntwo\n\n\nTHREE\n"}
    assert result.conflicts == ()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"f": TEXT.replace(b"one", b"1")}, {"f": TEXT.replace(b"one", b"I")}),
        ({}, {"f": TEXT + b"four\n"}),
        ({"f": TEXT + b"four\n"}, {}),
        ({"f": TEXT, "n": b"1"}, {"f": TEXT, "n": b"2"}),
    ],
)
def test_what_collides_is_named_and_not_decided(ours: dict[str, bytes], theirs: dict[str, bytes]) -> None:
    texts, result = merged({"f": TEXT}, ours, theirs)
    (name,) = result.conflicts
    assert name in ("f", "n")
    assert name not in texts


def test_a_file_where_the_other_has_a_folder_is_a_conflict() -> None:
    shelf = Shelf()
    base, ours, theirs = shelf.tree(), shelf.tree(x=b"1"), CodeTree(files=(CodeFile(path="x/y", digest="0" * 64),))
    assert merge(base, ours, theirs, shelf.contents.__getitem__).conflicts == ("x/y",)


def test_the_flag_of_a_program_is_merged_with_its_lines() -> None:
    shelf = Shelf()
    base, ours = shelf.tree(f=TEXT), shelf.tree(f=TEXT.replace(b"one", b"ONE"))
    theirs = CodeTree(files=(CodeFile(path="f", digest=base.files[0].digest, size_bytes=len(TEXT), executable=True),))
    result = merge(base, ours, theirs, shelf.contents.__getitem__)
    assert result.tree.files[0].executable
    assert result.contents["f"] == TEXT.replace(b"one", b"ONE")


LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n"]), max_size=8).map(b"".join)


@given(LINES, LINES)
def test_one_side_alone_is_always_taken_as_it_is(base: bytes, changed: bytes) -> None:
    assert with_difflib(base, changed, base) == changed
    assert with_difflib(base, base, changed) == changed
    assert with_difflib(base, changed, changed) == changed


@given(LINES, LINES, LINES)
def test_a_merge_does_not_depend_on_who_comes_first(base: bytes, one: bytes, other: bytes) -> None:
    assert with_difflib(base, one, other) == with_difflib(base, other, one)


@pytest.mark.skipif(shutil.which("git") is None, reason="compares with git, which is not installed")
def test_git_and_difflib_agree_where_it_is_clear() -> None:
    for one, other in ((b"one", b"three"), (b"two", b"two")):
        changed = TEXT.replace(one, one.upper()), TEXT.replace(other, other.upper())
        assert merge_lines(TEXT, *changed) == with_difflib(TEXT, *changed)
    assert merge_lines(TEXT, TEXT.replace(b"two", b"2"), TEXT.replace(b"two", b"II")) is None
