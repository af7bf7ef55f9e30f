"""A look at a folder of checkpoints that is a URL: the same as at one of this machine, and no error is an empty folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from counting_server import Counting, counting_server
from made_checkpoints import make_checkpoint
from servers.awkward import Request, awkward_server

from robust_run.ckpt_io.newest import look
from robust_run.ckpt_io.newest_far import KnownFar, look_far, parts_fault, to_read
from robust_run.ckpt_io.seen import FolderLook
from robust_run.store.errors import AccessDenied, Unavailable
from robust_run.store.http_index import folders_in, is_index
from robust_run.store.opening import open_store
from robust_run.store.types import Store


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Counting]:
    with counting_server(tmp_path) as server:
        yield server


def make(tmp_path: Path, *steps: int) -> None:
    for step in steps:
        make_checkpoint([tmp_path / f"step-{step}"], {"x": bytes(3 << 20), "y": b"y"}, step=step)


def test_it_is_what_a_look_at_the_folder_itself_shows(tmp_path: Path, server: Counting) -> None:
    make(tmp_path, 1, 2, 30, 4)
    (tmp_path / "step-30" / "MANIFEST").write_bytes((tmp_path / "step-30" / "MANIFEST").read_bytes()[:-1] + b"x")
    part = next((tmp_path / "step-4").rglob("*.part"))
    part.write_bytes(part.read_bytes()[:-1])
    (tmp_path / "nothing-of-ours").mkdir()
    (tmp_path / "step-99.tmp").mkdir()
    here, there = look(str(tmp_path), whole=2), look_far(server.url, whole=2)
    assert [(each.name, each.uuid, each.step, bool(each.fault)) for each in there.seen] == [
        (each.name, each.uuid, each.step, bool(each.fault)) for each in here.seen
    ]
    assert [each.name for each in there.seen if each.fault == ""] == ["step-2", "step-1"]
    listed = look_far(f"file://{tmp_path}", whole=2)
    assert [each.fault == "" for each in listed.seen] == [each.fault == "" for each in there.seen], (
        "whatever store it is"
    )


def test_a_missing_part_is_seen_and_named(tmp_path: Path, server: Counting) -> None:
    make(tmp_path, 1)
    shutil.rmtree(next((tmp_path / "step-1").glob("parts-*")))
    (seen,) = look_far(server.url).seen
    assert seen.fault and "is missing" in seen.fault
    assert "saved anew" in parts_fault(f"{server.url}/step-1", "another")


def test_an_empty_folder_is_empty_and_a_missing_one_is_not(tmp_path: Path, server: Counting) -> None:
    (tmp_path / "there").mkdir()
    assert look_far(f"{server.url}/there") == FolderLook()
    gone = look_far(f"{server.url}/elsewhere")
    assert gone.trouble and not gone.may_pass, "nothing can be saved over HTTP: it is a slip"
    assert look_far(f"file://{tmp_path}/elsewhere") == FolderLook(), "the first save makes it"


def test_what_may_not_be_read_is_passed_over_by_name_if_it_is_named_as_a_checkpoint_is(tmp_path: Path) -> None:
    make(tmp_path, 1, 2)
    (tmp_path / "of-somebody-else").mkdir()

    def opened(url: str) -> Store:
        if url.endswith(("step-2", "of-somebody-else")):
            raise AccessDenied(url, "", "403")
        return open_store(url)

    seen = look_far(f"file://{tmp_path}", stores=opened).seen
    assert [(each.name, each.fault) for each in seen] == [
        ("step-1", ""), ("step-2", "its manifest may not be read: access denied")
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["/", "/step-2/MANIFEST"])
def test_what_does_not_answer_now_is_not_passed_over(tmp_path: Path, server: Counting, path: str) -> None:
    make(tmp_path, 1, 2)
    server.fails.add(path)
    failed = look_far(server.url)
    assert failed.seen == () and failed.trouble and failed.may_pass
    server.fails.clear()
    assert [each.name for each in look_far(server.url).seen] == ["step-2", "step-1"]


def test_a_store_that_cannot_be_reached_is_trouble_that_may_pass() -> None:
    class Gone:
        def list(self, path: str = "") -> list[object]:
            raise Unavailable("s3://box", path, "no route")

        def close(self) -> None:
            pass

    def gone(_url: str) -> Store:
        return Gone()  # type: ignore[return-value]

    found = look_far("s3://box/run", stores=gone)
    assert found.trouble and found.may_pass


def test_a_manifest_is_read_once(tmp_path: Path, server: Counting) -> None:
    make(tmp_path, 1, 2)
    known: KnownFar = {}
    first = look_far(server.url, whole=0, known=known)
    sent = server.sent_bytes
    assert look_far(server.url, whole=0, known=known) == first
    assert server.sent_bytes - sent == 2 * 40, "the beginning of each says that it is the same"


def test_of_many_those_are_read_that_say_the_highest_steps() -> None:
    names = [f"step-{step}" for step in range(100)]
    reads, left = to_read(["odd", *names], ["step-3"], 4)
    assert (reads, left) == (["step-3", "odd", "step-99", "step-98", "step-97"], 96)


def test_only_plain_links_below_the_page_are_folders() -> None:
    page = """<A class=x HREF="step-1/">a</A> <a href='./step-2/'>b</a> <a href=step%203/>c</a> <a href="/run/step-4/">d</a>
        <a href="../">up</a> <a href="file.txt">f</a> <a href="step-5/x/">deep</a> <a href="http://other/run/step-6/">o</a>
        <a href="?C=N">sort</a> <a href="step-7/?x=1">q</a> <a href="%2e%2e/">up</a> <a href="a%2fb/">slash</a>"""
    assert folders_in(page, "http://host/run/") == ["step-1", "step-2", "step 3", "step-4"]


INDEXES = {
    "nginx": '<html><head><title>Index of /run/</title></head><body><h1>Index of /run/</h1><pre><a href="../">../</a></pre>',
    "nginx, with a theme": '<title>files</title><a href="../">..</a>',
    "Apache": '<h1>Index of /run</h1><a href="?C=N;O=D">Name</a> <a href="/">Parent Directory</a>',
    "http.server": "<title>Directory listing for /run/</title><h1>Directory listing for /run/</h1><ul></ul>",
    "Caddy": '<title>run</title><a href="..">Up</a>',
}
OTHER_PAGES = {
    "a login": '<title>Log in</title><form><a href="../">back</a><input name=p type="password"></form>',
    "a gateway's": "<html><body>please log in</body></html>",
    "a portal's": '<a href="/">Home</a> <a href="/login?to=/run/">Log in</a> <a href="https://help/">Help</a>',
    "an error": "<title>Not found</title><h1>We could not find that</h1>",
    "nothing": "",
}


@pytest.mark.parametrize("page", INDEXES.values(), ids=INDEXES)
def test_an_empty_folder_of_a_web_server_is_one(page: str) -> None:
    assert is_index(page, "http://host/run/") and not folders_in(page, "http://host/run/")


@pytest.mark.parametrize("page", OTHER_PAGES.values(), ids=OTHER_PAGES)
def test_a_page_that_shows_no_folder_is_no_empty_folder(page: str) -> None:
    assert not is_index(page, "http://host/run/")


def test_a_page_to_log_in_does_not_begin_a_training_anew() -> None:
    def log_in(request: Request) -> None:
        request.answer("200 OK", b"<html><body>please log in</body></html>", Content_Type="text/html")

    with awkward_server(log_in) as server:
        found = look_far(server.url)
    assert not found.seen and "no index of this folder, perhaps to log in" in found.trouble
