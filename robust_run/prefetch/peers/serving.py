"""What a node gives its peers: ranges of the cache over HTTP, to who knows the job's token.

What is not there is fetched first, where it is ours to fetch: who asks waits for that, a second at a time.
Imports aiohttp, so it is imported by block servers that have peers, and not before they serve their own node.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from aiohttp import web

from robust_run.prefetch import blockmap
from robust_run.prefetch.cache import Cache
from robust_run.prefetch.fetching.reads import Answer
from robust_run.prefetch.peers import source
from robust_run.prefetch.peers.held import encoded
from robust_run.prefetch.peers.source import PeerSource
from robust_run.prefetch.peers.standing import Holders, blocks_in_group
from robust_run.prefetch.peers.types import GROUP_BYTES, Fetches, PeerOptions
from robust_run.prefetch.rules.types import BlockMap

#: How long one request waits for a fetch before it is promised; a third of the silence that ends it at the other side.
_WAIT_S = 1.0
#: How often the members are looked for within that: they come from another thread, which wakes no request.
_LOOKS = 15
#: A peer that takes longer to take what it asked for is hung up on.
_SEND_LIMIT_S = 30.0
#: Answers that are in memory at once.
_MOST_ANSWERS = 64
#: The most that one request gets: a group, were its blocks the largest.
_LARGEST_RANGE_BYTES = max(GROUP_BYTES, blockmap.LARGEST_BLOCK_BYTES)
#: Requests that wait for a fetch.
_MOST_WAITING = 4096
_HEADER_BYTES = 8190
#: Owners that may have failed who asks; a group has fewer.
_MOST_FAILED = 16
_KEEP_OPEN_S = 60.0
#: What is being sent when it stops may still be sent for so long.
_HANG_UP_S = 0.2
_STOP_S = 30.0


class PeerServer:
    """Gives blocks, in a thread of its own."""

    def __init__(
        self,
        listening: socket.socket,
        block_map: BlockMap,
        cache: Cache,
        peers: PeerSource,
        options: PeerOptions,
        fetcher: Fetches,
    ) -> None:
        """`fetcher`: of this node."""
        self._listening, self._map, self._cache, self._peers, self._fetcher = (
            listening,
            block_map,
            cache,
            peers,
            fetcher,
        )
        self._expected = f"Bearer {options.token}".encode("utf-8", "surrogateescape")
        self._most_uploads = options.uploads
        self._holders = Holders()
        self._places, self._stopping = asyncio.Semaphore(_MOST_ANSWERS), asyncio.Event()
        self._uploading = self._waiting = 0
        self.sent_bytes = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="peer-server", daemon=True)

    def start(self) -> None:
        """Give from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Hang up on all peers. Once, after `start`."""
        with suppress(RuntimeError):  # it ended by itself: the loop is closed
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        loop, readers = self._loop, ThreadPoolExecutor(thread_name_prefix="peer-reader")
        loop.set_default_executor(readers)
        try:
            loop.run_until_complete(self._serve())
        finally:
            readers.shutdown(cancel_futures=True)  # none of them may read the cache when it is closed
            loop.close()

    async def _serve(self) -> None:
        """Give until told to stop, which may be before the first can ask."""
        runner = await self._open()
        try:
            await self._stopping.wait()
        finally:
            await runner.cleanup()

    async def _open(self) -> web.AppRunner:
        app = web.Application(client_max_size=0)
        app.router.add_get(f"/blocks/{blockmap.identity(self._map)}", self._give)
        app.router.add_get(f"/held/{blockmap.identity(self._map)}", self._tell)
        runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=_KEEP_OPEN_S,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
            shutdown_timeout=_HANG_UP_S,
        )
        await runner.setup()
        await web.SockSite(runner, self._listening, backlog=512).start()
        return runner

    def _knows_token(self, request: web.Request) -> bool:
        said = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(said, self._expected)

    async def _tell(self, request: web.Request) -> web.StreamResponse:
        """Say which groups are here."""
        if not self._knows_token(request):
            return web.Response(status=401)
        wide, blocks = blocks_in_group(self._map.block_bytes), self._map.blocks

        def has(group: int) -> bool:
            return all(map(self._cache.have, range(group * wide, min(blocks, (group + 1) * wide))))

        body = await asyncio.get_running_loop().run_in_executor(None, encoded, has, -(-blocks // wide))
        return web.Response(status=200, body=body, content_type="application/octet-stream")

    async def _give(self, request: web.Request) -> web.StreamResponse:
        if not self._knows_token(request):
            return web.Response(status=401)
        begin, end = _range(request, self._map.size_bytes)
        if begin < 0:
            return web.Response(status=416)
        asks = request.headers.get(source.FROM, "")
        failed = request.headers.get(source.FAILED, "").split(",", _MOST_FAILED)[:_MOST_FAILED]
        blocks = range(begin // self._map.block_bytes, (end - 1) // self._map.block_bytes + 1)
        group = self._peers.group(blocks[0])
        if self._uploading >= self._most_uploads and source.HERE not in request.headers:
            holder = self._holders.somebody(group, but=asks)
            if holder is not None:
                return web.Response(status=source.SENT_ON, headers={source.AT: holder})
        present = all(self._cache.have(block) for block in blocks)
        if not present and source.HELD in request.headers:
            return web.Response(status=404)
        if not present:
            status, headers = await self._fetched(group, blocks, failed)
            if status:
                return web.Response(status=status, headers=headers)
        async with self._places:
            data = await self._answered(self._fetcher.read, begin, end - begin)
            if data is None:
                return web.Response(status=503)
            return await self._send(request, begin, data, (group, asks))

    async def _fetched(self, group: int, blocks: range, failed: Sequence[str]) -> tuple[int, dict[str, str]]:
        """Have blocks fetched for a peer. Return 0, or the status that says why they are not here now, and its headers.

        They are fetched also where it is not our turn, since who asks may know other members for a moment: then from whose it is.
        """
        if not await self._know_members():
            return 503, {}
        is_ours = self._peers.is_ours(group, failed)
        if is_ours and not self._peers.origin_works:
            return 502, {}
        if is_ours and any(failed):
            self._peers.others_failed(group)
        # First they must be there, and only then is memory taken for them, for a few requests at once.
        if await self._arrive(blocks[0] * self._map.block_bytes, len(blocks) * self._map.block_bytes):
            return 0, {}
        return 503, {source.COMING: "1"} if is_ours and self._peers.origin_works else {}

    async def _know_members(self) -> bool:
        """Wait a moment for the members: who asks may have been told them before us."""
        for _ in range(_LOOKS):
            if self._peers.members:
                return True
            await asyncio.sleep(_WAIT_S / _LOOKS)
        return False

    async def _arrive(self, begin: int, size: int) -> bool:
        """Have bytes fetched; return whether they came in time."""
        if self._waiting >= _MOST_WAITING:
            await asyncio.sleep(_WAIT_S)
            return False
        self._waiting += 1
        try:
            return await self._answered(self._fetcher.bring, begin, size) is not None
        finally:
            self._waiting -= 1

    async def _answered(self, ask: Callable[[int, int, Answer], None], begin: int, size: int) -> bytes | None:
        """Return what is answered about a part of the image; None where that does not come in time."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes | None] = loop.create_future()

        def tell(data: bytes | None) -> None:
            if not future.done():
                future.set_result(data)

        def came(data: bytes | None, _why: str) -> None:
            with suppress(RuntimeError):  # the loop is closed: no peer is given anything any more
                loop.call_soon_threadsafe(tell, data)

        try:
            # In a thread: where the blocks are there, it reads them from the disk before it returns.
            await loop.run_in_executor(None, ask, begin, size, came)
            return await asyncio.wait_for(future, _WAIT_S)
        except asyncio.TimeoutError:
            return None

    async def _send(self, request: web.Request, begin: int, data: bytes, to: tuple[int, str]) -> web.StreamResponse:
        self._uploading += 1
        try:
            headers = {"Content-Range": f"bytes {begin}-{begin + len(data) - 1}/{self._map.size_bytes}"}
            response = web.Response(status=206, headers=headers, body=data, content_type="application/octet-stream")
            await response.prepare(request)
            await asyncio.wait_for(response.write_eof(), _SEND_LIMIT_S)
        finally:
            self._uploading -= 1
        self.sent_bytes += len(data)
        group, asks = to
        if self._peers.is_member(asks):
            self._holders.gave(group, asks)
        return response


def _range(request: web.Request, size_bytes: int) -> tuple[int, int]:
    """Return begin and end of what is asked for; (-1, -1) where that cannot be given."""
    try:
        wanted = request.http_range
    except ValueError:
        return -1, -1
    begin, end = wanted.start, wanted.stop
    if begin is None or end is None or not 0 <= begin < end <= size_bytes or end - begin > _LARGEST_RANGE_BYTES:
        return -1, -1
    return begin, end
