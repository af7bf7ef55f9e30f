"""The store of versions: what goes in comes out, what is damaged is found out, what is hostile is refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import pytest

from robust_run.launcher.control.code_transfer import PART_BYTES, Receiver, contents_of, parts_of
from robust_run.launcher.records.code.content_store import digest_of
from robust_run.launcher.records.code.errors import CodeError, CodeStoreError, LackingError
from robust_run.launcher.records.code.scan import Scan
from robust_run.launcher.records.code.tree_store import TreeStore, decode_tree, encode_tree, id_of
from robust_run.launcher.records.code.types import CodeFile, CodeTree, TreeParts


@pytest.fixture
def user(tmp_path: Path) -> Path:
    folder = tmp_path / "user"
    (folder / "pkg").mkdir(parents=True)
    (folder / "data").mkdir()
    (folder / "train.py").write_text("import pkg\n")
    (folder / "pkg" / "__init__.py").write_text("A = 1\n")
    (folder / "tool.sh").write_text("#!/bin/sh\n")
    (folder / "tool.sh").chmod(0o755)
    (folder / "link.py").symlink_to("train.py")
    (folder / "data" / "x.bin").write_bytes(b"\0" * 10)
    return folder


def keep(store: TreeStore, folder: Path) -> tuple[str, CodeTree, dict[str, str]]:
    captured = store.put_captured(Scan(str(folder)))
    return store.put_tree(captured.tree), captured.tree, {each.path: str(folder / each.path) for each in captured.left}


def test_a_copy_is_the_code_with_links_to_what_was_left(tmp_path: Path, user: Path) -> None:
    store = TreeStore(str(tmp_path / "store"))
    tree_id, tree, links = keep(store, user)
    copy = Path(store.materialise(tree_id, links))
    assert (copy / "pkg" / "__init__.py").read_text() == "A = 1\n"
    assert os.readlink(copy / "link.py") == "train.py"
    assert (copy / "data").is_symlink()
    assert (copy / "data" / "x.bin").read_bytes() == b"\0" * 10
    assert os.access(copy / "tool.sh", os.X_OK)
    assert not stat.S_IMODE((copy / "train.py").stat().st_mode) & 0o222, "nobody changes it by mistake"
    assert store.tree(tree_id) == tree
    assert store.materialise(tree_id) == str(copy), "it is made once"


def test_everything_in_the_store_is_its_owners_alone(tmp_path: Path, user: Path) -> None:
    store = TreeStore(str(tmp_path / "store"))
    tree_id, _, _ = keep(store, user)
    store.materialise(tree_id)
    for folder, _, files in os.walk(tmp_path / "store"):
        assert not stat.S_IMODE(os.stat(folder).st_mode) & 0o077, folder
        for name in files:
            assert not stat.S_IMODE(os.lstat(os.path.join(folder, name)).st_mode) & 0o077 or os.path.islink(
                os.path.join(folder, name)
            )


def test_the_same_code_has_the_same_id_wherever_it_lies(tmp_path: Path, user: Path) -> None:
    one, _, _ = keep(TreeStore(str(tmp_path / "one")), user)
    moved = user.rename(tmp_path / "elsewhere")
    other, _, _ = keep(TreeStore(str(tmp_path / "two")), moved)
    assert one == other
    (moved / "train.py").write_text("import pkg # edited\n")
    assert keep(TreeStore(str(tmp_path / "two")), moved)[0] != one


def test_a_copy_that_somebody_changed_is_made_anew(tmp_path: Path, user: Path) -> None:
    store = TreeStore(str(tmp_path / "store"))
    tree_id, _, _ = keep(store, user)
    copy = Path(store.materialise(tree_id))
    (copy / "train.py").unlink()
    (copy / "train.py").write_text("import evil\n")
    again = Path(store.materialise(tree_id))
    assert (again / "train.py").read_text() == "import pkg\n"
    assert [path for path in again.parent.iterdir() if "changed" in path.name], "what it was is still there to look at"


def test_a_damaged_content_is_found_out_and_never_runs(tmp_path: Path, user: Path) -> None:
    store = TreeStore(str(tmp_path / "store"))
    tree_id, tree, _ = keep(store, user)
    digest = next(file.digest for file in tree.files if file.path == "train.py")
    path = tmp_path / "store" / "objects" / digest[:2] / digest[2:]
    path.chmod(0o600)
    path.write_text("import os; os.system('evil')\n")
    with pytest.raises(CodeStoreError, match=r"damaged"):
        store.materialise(tree_id)
    path.unlink()
    with pytest.raises(LackingError):
        store.materialise(tree_id)
    assert not list((tmp_path / "store" / "at").glob("*")), "nothing half-made is left"


@pytest.mark.parametrize("tree_id", ["", "../../etc/passwd", "0" * 63, "A" * 64, "x" * 64])
def test_an_id_that_is_none_leads_nowhere(tmp_path: Path, tree_id: str) -> None:
    store = TreeStore(str(tmp_path))
    assert not store.has(tree_id)
    with pytest.raises(CodeError):
        store.tree(tree_id)


def test_what_comes_as_a_tree_is_the_one_that_was_asked_for(tmp_path: Path) -> None:
    bad = CodeTree(files=(CodeFile(path="../x", digest="0" * 64),))
    with pytest.raises(CodeError, match=r"lead out"):
        decode_tree(encode_tree(bad), id_of(bad))
    good = CodeTree(files=())
    with pytest.raises(CodeError, match=r"something else"):
        decode_tree(encode_tree(good) + b" ", id_of(good))
    for junk in (b"", b"{}{}", b"[" * 5000, b'{"schema":1,"files":3}', b"\xff\xff", b'{"schema":9,"files":[]}'):
        with pytest.raises(CodeError):
            decode_tree(junk, digest_of(junk))


def test_a_tree_whose_contents_are_not_there_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(LackingError):
        TreeStore(str(tmp_path)).put_tree(CodeTree(files=(CodeFile(path="a", digest="0" * 64),)))


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where the folder should be")
    with pytest.raises(CodeStoreError):
        TreeStore(str(tmp_path / "store")).put(b"x")


# --- on its way to another node -------------------------------------------------------------------------------------


def test_a_tree_arrives_in_parts_in_any_order(tmp_path: Path) -> None:
    store, other = TreeStore(str(tmp_path / "one")), TreeStore(str(tmp_path / "two"))
    contents = [bytes([number]) * 900_000 for number in range(6)]
    files = tuple(
        CodeFile(path=f"f{index}.py", digest=store.put(data), size_bytes=len(data))
        for index, data in enumerate(contents)
    )
    tree_id = store.put_tree(CodeTree(files=files))
    parts = list(parts_of(store, tree_id))
    assert max(sum(map(len, part.objects)) for part in parts) <= PART_BYTES
    receiver = Receiver(other, tree_id)
    assert [receiver.take(part) for part in parts] == [False] * (len(parts) - 1) + [True]
    assert other.tree(tree_id) == store.tree(tree_id)
    assert other.get(files[3].digest) == contents[3]


def test_what_was_not_asked_for_is_not_kept(tmp_path: Path) -> None:
    store, other = TreeStore(str(tmp_path / "one")), TreeStore(str(tmp_path / "two"))
    tree = CodeTree(files=(CodeFile(path="a.py", digest=store.put(b"right"), size_bytes=5),))
    tree_id = store.put_tree(tree)
    receiver = Receiver(other, tree_id)
    assert not receiver.take(TreeParts(tree=tree_id, manifest=encode_tree(tree)))
    assert not receiver.take(TreeParts(tree=tree_id, objects=(b"wrong", b"junk")))
    assert not receiver.take(TreeParts(tree="0" * 64, objects=(b"right",)))
    assert other.missing(tree) == [tree.files[0].digest]
    with pytest.raises(CodeError):
        Receiver(other, tree_id).take(TreeParts(tree=tree_id, manifest=b"{}"))
    with pytest.raises(LackingError, match=r"disk broke"):
        receiver.take(TreeParts(tree=tree_id, missing="disk broke"))
    assert receiver.take(TreeParts(tree=tree_id, objects=(b"right",)))


def test_what_the_sender_lacks_is_said_to_whoever_asks(tmp_path: Path) -> None:
    (part,) = parts_of(TreeStore(str(tmp_path)), "0" * 64)
    assert "is not in" in part.missing
    store = TreeStore(str(tmp_path))
    data = store.put(b"x")
    (only,) = contents_of(store, "0" * 64, [data, data])
    assert only.objects == (b"x",)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(only), type=TreeParts) == only
