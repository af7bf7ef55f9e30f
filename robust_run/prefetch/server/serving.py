"""The threads that take the kernel's requests and answer them: reads when their blocks are there, all else at once."""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Callable

from robust_run.prefetch.fetching.reads import Answer
from robust_run.prefetch.server import protocol
from robust_run.prefetch.server.protocol import Answers, Request
from robust_run.prefetch.server.shared import SLOTS, Shared

#: Threads that take requests. They never wait for a block, so a few keep a few cores busy.
_THREADS = 4
_AGAIN = (errno.EINTR, errno.EAGAIN, errno.ENOENT)  # ENOENT: the request was interrupted before we took it
_GONE = (errno.ENODEV, errno.ECONNABORTED, errno.EBADF)


class Server:
    """Serves one image on a /dev/fuse descriptor until it is unmounted."""

    def __init__(self, device: int, shared: Shared, answers: Answers, read: Callable[[int, int, Answer], None]) -> None:
        """`read(offset_bytes, size_bytes, answer)` reads the image; see `Fetcher.read`."""
        self._device, self._shared, self._answers, self._read = device, shared, answers, read
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.unmounted = threading.Event()
        """Set when the kernel says that the mount is gone."""

    def start(self) -> None:
        """Answer what a server that died has left, then start to take requests."""
        left = self._shared.unanswered()
        for index in sorted(set(range(SLOTS)) - set(left)):
            self._free.put(index)
        for index in left:
            self._serve(index)
        for _ in range(_THREADS):
            threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        while not self.unmounted.is_set():
            index = self._free.get()
            try:
                os.readv(self._device, [self._shared.slot(index)])
            except OSError as error:
                self._free.put(index)
                if error.errno in _AGAIN:
                    continue
                self.unmounted.set()  # ENODEV; anything else would repeat for ever
                return
            self._serve(index)

    def _serve(self, index: int) -> None:
        """Answer the request in a slot, now or later, and free the slot then."""
        asked = protocol.request(self._shared.slot(index))
        if asked is None or asked.operation in protocol.SILENT:
            self._done(index)
        elif asked.operation == protocol.READ and asked.node == protocol.IMAGE_NODE:
            self._shared.touch(asked.offset_bytes, asked.size_bytes)
            self._read(asked.offset_bytes, asked.size_bytes, lambda data, _why: self._answer_read(index, asked, data))
        else:
            body, error = self._answers.answer(asked)
            self._write(asked, body, error)
            if asked.operation == protocol.INIT:
                self._shared.greet()
            self._done(index)

    def _answer_read(self, index: int, asked: Request, data: bytes | None) -> None:
        self._write(asked, data or b"", errno.EIO if data is None else 0)
        self._done(index)

    def _done(self, index: int) -> None:
        self._shared.free(index)
        self._free.put(index)

    def _write(self, asked: Request, body: bytes, error: int) -> None:
        """Hand an answer to the kernel. It may not want it any more: the reader was killed, or the mount is gone."""
        try:
            os.writev(self._device, [protocol.head(asked.unique, len(body), error), body])
        except OSError as refused:
            if refused.errno in _GONE:
                self.unmounted.set()
