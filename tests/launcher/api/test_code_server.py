"""Versions of the code over real sockets: sent, staged, asked for; and what hostile bytes come to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from robust_run.launcher.model.code_events import CodeCaptured, CodeVersion, UpdateStaged
from robust_run.launcher.operator.code.remote import MovedError, Versions
from robust_run.launcher.operator.reading.client import SaysNoError
from robust_run.launcher.operator.views.code_words import LARGEST_PARTS_BYTES, MOVED, CodeView, UpdateWish
from robust_run.launcher.records.code.errors import LackingError
from robust_run.launcher.records.code.tree_store import TreeStore, encode_tree, id_of
from robust_run.launcher.records.code.types import CodeFile, CodeTree, TreeParts

Serve = Callable[..., Any]
MSGPACK = {"Content-Type": "application/msgpack"}


@pytest.fixture
def store(tmp_path: Path) -> TreeStore:
    return TreeStore(str(tmp_path / "theirs"))


def keep(store: TreeStore, **files: bytes) -> str:
    tree = CodeTree(
        files=tuple(
            CodeFile(path=f"{name}.py", digest=store.put(data), size_bytes=len(data))
            for name, data in sorted(files.items())
        )
    )
    return store.put_tree(tree)


def version(number: int, tree: str, *parents: int) -> CodeVersion:
    return CodeVersion(number=number, tree=tree, parents=parents, by="ann", source="h:/a")


def test_an_update_is_sent_staged_and_given_to_whoever_asks(serve: Serve, store: TreeStore, tmp_path: Path) -> None:
    served = serve()
    first, second = (
        keep(store, train=b"one\n"),
        keep(store, train=b"two\n", big=b"x" * 900_000, bigger=b"y" * 1_000_000),
    )
    versions = Versions(served.unix(), "")
    versions.send(first, store)
    served.on_loop(lambda: served.controller.tell(CodeCaptured(version=version(1, first))))
    with pytest.raises(SaysNoError, match=r"has not been sent"):
        versions.stage(UpdateWish(version=version(2, second, 1)))
    versions.send(second, store)
    versions.send(second, store)  # twice is once
    assert "version 2" in versions.stage(UpdateWish(version=version(2, second, 1))).done
    assert versions.view().code.pending == 2
    with pytest.raises(MovedError):
        versions.stage(UpdateWish(version=version(2, first, 1)))
    mine = TreeStore(str(tmp_path / "mine"))
    assert versions.fetch(second, mine) == store.tree(second)
    assert mine.get(mine.tree(second).files[0].digest) == b"x" * 900_000
    assert any(isinstance(event, UpdateStaged) for event in served.controller.told)
    dead = Versions(None, str(served.run_directory))
    assert dead.view().code.pending == 2
    assert dead.fetch(first, mine) == store.tree(first)


def test_a_path_that_leads_out_is_refused_and_nothing_is_written(serve: Serve, store: TreeStore) -> None:
    served = serve()
    data = b"evil"
    for path, link in (("../../../evil.py", ""), ("/tmp/evil.py", ""), ("a/../../evil.py", ""), ("a", "../../..")):
        file = CodeFile(path=path, link=link) if link else CodeFile(path=path, digest=store.put(data), size_bytes=4)
        tree = CodeTree(files=(file,))
        parts = TreeParts(tree=id_of(tree), manifest=encode_tree(tree), objects=(data,))
        with pytest.raises(SaysNoError) as refusal:
            served.unix().send("/v1/code/parts", msgspec.msgpack.encode(parts), "application/msgpack")
        assert refusal.value.status == 409
    assert not list(served.run_directory.rglob("*evil*"))
    assert not (served.run_directory / "code").exists()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/code/parts", b"junk", 400),
        ("/v1/code/parts", msgspec.msgpack.encode(TreeParts(tree="../x", manifest=b"{}")), 400),
        ("/v1/code/parts", msgspec.msgpack.encode(TreeParts(tree="0" * 64, manifest=b"{}")), 409),
        ("/v1/code/parts", b"x" * (LARGEST_PARTS_BYTES + 1), 413),
        ("/v1/code/update", b"{}", 415),
    ],
)
def test_bodies_that_are_none_are_refused(serve: Serve, path: str, body: bytes, status: int) -> None:
    with pytest.raises(SaysNoError) as refusal:
        serve().unix().send(path, body, "application/msgpack")
    assert refusal.value.status == status


def test_wishes_that_are_none_are_refused(serve: Serve) -> None:
    target = serve().unix()
    for path, body in (("update", b"{}"), ("update", b'{"version":3}'), ("rollback", b'{"too":1}'), ("refused", b"[")):
        with pytest.raises(SaysNoError) as refusal:
            target.send(f"/v1/code/{path}", body, "application/json")
        assert refusal.value.status == 400


def test_code_that_is_not_there_is_not_given(serve: Serve, tmp_path: Path) -> None:
    versions = Versions(serve().unix(), "")
    with pytest.raises(LackingError):
        versions.fetch("0" * 64, TreeStore(str(tmp_path / "mine")))
    with pytest.raises(SaysNoError):
        serve_path = "/v1/code/parts/..%2F..%2Fetc"
        versions._target.get(serve_path)  # type: ignore[union-attr]


def test_nothing_is_told_without_the_token(serve: Serve) -> None:
    from robust_run.launcher.operator.server.server import HttpPlace

    served = serve(http_place=HttpPlace(address="127.0.0.1", name="127.0.0.1"))
    with pytest.raises(SaysNoError) as refusal:
        served.tcp(token="x" * 64).send("/v1/code/parts", b"", "application/msgpack")
    assert refusal.value.status == 401
    view = msgspec.json.decode(served.tcp().get("/v1/code"), type=CodeView)
    assert view.code.records == ()
    assert MOVED == 412
