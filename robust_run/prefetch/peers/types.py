"""The words of peers: how nodes of a job share blocks, and what came of it."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Protocol

import msgspec

#: What one owner is responsible for: neighbouring blocks that are fetched with one request. The same on all nodes.
GROUP_BYTES = 2 << 20
#: See `fetching.reads.Answer`.
Answer = Callable[["bytes | None", str], None]
MOST_MEMBERS = 100_000
SHORTEST_TOKEN = 16


class PeerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How blocks are shared. The same on all nodes of a job, but for `own`."""

    token: str
    """Who does not know it gets nothing; see `token_of`."""
    bind: str = "0.0.0.0:0"
    """Where to listen, as host:port; port 0: any. Numbers, no names."""
    members: tuple[str, ...] = ()
    """All nodes as host:port, this one too, in any order. May be told later (`AskPeers`): until then no peer is asked."""
    own: str = ""
    """Which of them this node is."""
    origins: int = 2
    """At most so many nodes fetch a group from the origin while peers work as they should; one does unless it is slow."""
    demand_wait_s: float = 3.0
    """After so long without a word a block that a read waits for is fetched from the origin, whosever turn it is."""
    wait_s: float = 15.0
    """The same for what is prefetched."""
    members_wait_s: float = 0.0
    """How long to prefetch nothing while `members` are not known yet. Reads do not wait for that."""
    uploads: int = 16
    """Requests that are answered at once; while there are more, who asks is sent to a peer that has it already."""


class PeerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What sharing has brought so far."""

    port: int
    """Where this node gives blocks."""
    members: int
    sent_bytes: int
    """To peers."""
    received_bytes: int
    """Of blocks that were right."""
    wrong_blocks: int
    """Blocks from peers that had the wrong digest. They were refused."""
    failures: int
    """Requests to peers that gave nothing."""
    redirected: int
    """Requests that were sent on to another node."""
    problems: tuple[str, ...] = ()
    """The latest, for people."""


class Fetches(Protocol):
    """What fetches for this node; see `fetching.workers.Fetcher`."""

    def read(self, offset_bytes: int, size_bytes: int, answer: Answer, /) -> None:
        """Have `answer` called with bytes of the image."""
        ...

    def bring(self, offset_bytes: int, size_bytes: int, answer: Answer, /) -> None:
        """Have `answer` called with no bytes when these are in the cache."""
        ...


def token_of(job_token: str) -> str:
    """Return the token of a job's peers, made of the job's own: who learns it can read blocks and do nothing else."""
    return hmac.new(job_token.encode(), b"robust-run peers\0", hashlib.sha256).hexdigest()


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[v6]:port`. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or len(address) > 300 or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address[:80]!r} is no host:port")
    if any(letter.isspace() or letter in "/?#@\\%" or not letter.isprintable() for letter in host):
        raise ValueError(f"{address[:80]!r} is no host:port")
    return host, int(port)
