"""The same checkpoint on other stores: an fsspec file system, a mix of kinds, read back over HTTP."""

from __future__ import annotations

import http.server
import re
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from saved_checkpoints import contents, held_by, save

from robust_run.ckpt_io.catalog import latest, list_checkpoints, prune
from robust_run.ckpt_io.errors import Damaged, NotACheckpoint, TargetLost
from robust_run.ckpt_io.reading import open_checkpoint
from robust_run.ckpt_io.repair import repair
from robust_run.ckpt_io.rules.types import Codec
from robust_run.store.engine import Retry

HELD, OTHER = contents(1), contents(2)
QUICK = Retry(attempts=2, first_wait_s=0.001, longest_wait_s=0.002)


@pytest.fixture
def bucket() -> Iterator[str]:
    """A place in the memory of this process that fsspec takes for an object store."""
    import fsspec

    name = f"bucket-{uuid.uuid4().hex}"
    yield f"memory://{name}"
    files = fsspec.filesystem("memory")
    if files.exists(name):
        files.rm(name, recursive=True)


@pytest.mark.parametrize("codec", ["none", "zstd_shuffle"])
@pytest.mark.parametrize("streamed", [False, True])
def test_an_object_store_holds_a_checkpoint(bucket: str, codec: Codec, streamed: bool) -> None:
    root, also = f"{bucket}/one", [f"{bucket}/two"]
    for step, held in ((1, OTHER), (1, HELD), (2, HELD)):
        save(f"{root}/step-{step}", held, also, codec=codec, step=step, streamed=streamed)
    assert held_by(f"{root}/step-1") == HELD
    newest = latest(root)
    assert newest is not None and newest.url == f"{root}/step-2"
    assert all(found.leftovers == () for found in list_checkpoints(root, also))
    prune(root, also=also, keep=1)
    assert [found.name for found in list_checkpoints(root, also)] == ["step-2"]
    with pytest.raises(NotACheckpoint):
        open_checkpoint(f"{root}/step-1")


def test_targets_of_several_kinds_make_one_checkpoint(tmp_path: Path, bucket: str) -> None:
    save(f"{tmp_path}/ck", HELD, [bucket])
    with pytest.raises(TargetLost, match="name its root with 'also'"), open_checkpoint(f"{tmp_path}/ck") as opened:
        opened.read_bytes(0, 0, 2_500_000)  # the manifest alone does not lead from a disk to a network
    assert held_by(f"{tmp_path}/ck", [bucket]) == HELD


def test_a_unit_lost_in_an_object_store_is_repaired_from_a_disk(tmp_path: Path, bucket: str) -> None:
    import fsspec

    save(f"{bucket}/ck", HELD)
    save(f"{tmp_path}/ck", HELD)
    files = fsspec.filesystem("memory")
    (part, *_) = (path for path in files.find(bucket.removeprefix("memory://")) if path.endswith(".part"))
    spoilt = bytearray(files.cat_file(part))
    spoilt[7] ^= 1
    files.pipe_file(part, bytes(spoilt))
    assert repair(f"{bucket}/ck", f"{tmp_path}/ck").left == ()
    assert held_by(f"{bucket}/ck") == HELD


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Serves the ranges of files."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        place = Path(self.translate_path(self.path))
        if not place.is_file():
            self.send_error(404)
            return
        whole = place.read_bytes()
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        begin, end = (int(asked[1]), min(int(asked[2]) + 1, len(whole))) if asked else (0, len(whole))
        if asked and begin >= len(whole):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(whole)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(whole)}")
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        self.wfile.write(whole[begin:end])

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The URL of `tmp_path`."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Ranges, directory=str(tmp_path)))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_what_was_saved_on_disks_is_read_over_http(tmp_path: Path, served: str, codec: Codec) -> None:
    save(f"{tmp_path}/a/ck 1", HELD, [f"{tmp_path}/b", f"{tmp_path}/c"], codec=codec)
    with pytest.raises(TargetLost, match="not on the host"), open_checkpoint(f"{served}/a/ck%201") as opened:
        opened.read_bytes(0, 0, 2_500_000)  # disks of whoever reads are none of the server's business
    assert held_by(f"{served}/a/ck%201", [f"{served}/b", f"{served}/c"]) == HELD
    (part, *_) = (tmp_path / "b").rglob("*.part")
    whole = bytearray(part.read_bytes())
    whole[5] ^= 1
    part.write_bytes(whole)
    also = [f"{served}/b", f"{served}/c"]
    with pytest.raises(Damaged) as damaged, open_checkpoint(f"{served}/a/ck%201", also=also, retry=QUICK) as opened:
        for index, file in enumerate(opened.manifest.files):
            opened.read_bytes(index, 0, file.size_bytes)
    assert damaged.value.target == f"{served}/b/ck%201"


def test_nothing_there_is_no_checkpoint_over_http_as_well(served: str) -> None:
    with pytest.raises(NotACheckpoint):
        open_checkpoint(f"{served}/a/ck")
