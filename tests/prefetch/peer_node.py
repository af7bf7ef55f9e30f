"""One node of a job whose nodes share an image: a real block server on a real mount. Started by `test_peer_nodes`.

python peer_node.py FOLDER OWN_ADDRESS ORIGIN_URL: reads FOLDER/../members once it is there, writes FOLDER/result.json at last.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path

from robust_run.prefetch.maps import fetch_map
from robust_run.prefetch.peers.types import PeerOptions
from robust_run.prefetch.rules.types import FetchLimits
from robust_run.prefetch.server import Background, ServeOptions, start
from robust_run.store.types import StoreOptions

LIMIT_S = 120.0


def main(folder: Path, address: str, url: str) -> None:
    pause = threading.Event()
    cache = folder / "cache"
    block_map, _problems = fetch_map(url, str(cache), StoreOptions())
    # So patient that a busy machine is not taken for a silent node.
    patience = {"demand_wait_s": 30.0, "wait_s": 60.0, "members_wait_s": LIMIT_S}
    peers = PeerOptions(token="a token of sixteen or more", bind="0.0.0.0:0", **patience)
    limits = FetchLimits(keep_free_bytes=0, request_limit_s=60.0, stall_s=30.0, hedge_after_s=30.0)
    options = ServeOptions(limits=limits, background=Background(width=16), peers=peers)
    (folder / "mount").mkdir()
    handle = start(url, block_map, str(cache), str(folder / "mount"), options=options)
    try:
        status = handle.status()
        assert status.peers is not None
        own = f"{address}:{status.peers.port}"
        (folder / "draft").write_text(own)
        os.replace(folder / "draft", folder / "own")
        members = folder.parent / "members"
        deadline_s = time.monotonic() + LIMIT_S
        while not members.exists() and time.monotonic() < deadline_s:
            pause.wait(0.05)
        began_s = time.monotonic()
        handle.meet(members.read_text().split(), own)
        digest = hashlib.sha256()
        with open(handle.image_path, "rb") as file:
            while data := file.read(1 << 20):
                digest.update(data)
        took_s = time.monotonic() - began_s
        status = handle.status()
        assert status.peers is not None
        origin = sum(each.good_bytes for each in status.sources if each.name != "peers")
        result = {
            "sha256": digest.hexdigest(),
            "expected": block_map.sha256,
            "origin_bytes": origin,
            "peer_bytes": status.peers.received_bytes,
            "sent_bytes": status.peers.sent_bytes,
            "failures": status.peers.failures,
            "problems": [*status.problems, *status.peers.problems],
            "took_s": took_s,
        }
        (folder / "draft").write_text(json.dumps(result))
        os.replace(folder / "draft", folder / "result.json")
        over = folder.parent / "over"
        while not over.exists() and time.monotonic() < deadline_s:  # others still ask us
            pause.wait(0.05)
    finally:
        handle.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
