"""Webhooks for tests: a real HTTP server that is slow, hangs, fails; and incidents to tell of."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from robust_run.report.types import Action, Incident, Verdict


class Webhook:
    """A server and what it was told. `answer(number)` gives the status of the so-manieth request; None: it hangs."""

    def __init__(self, answer: Callable[[int], int | None], headers: dict[str, str] | None = None) -> None:
        self.told: list[dict[str, Any]] = []
        self.requests = 0
        self.released = threading.Event()
        """Ends the hanging."""
        self._arrived = threading.Condition()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with hook._arrived:
                    number = hook.requests
                    hook.requests += 1
                    status = answer(number)
                    if status is not None and 200 <= status < 300:
                        hook.told.append(json.loads(body))
                    hook._arrived.notify_all()
                if status is None:
                    hook.released.wait(120)
                    return
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/secret-path"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def wait_told(self, count: int) -> list[dict[str, Any]]:
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.told) >= count, 60), self.told
            return list(self.told)

    def wait_asked(self, count: int) -> None:
        with self._arrived:
            assert self._arrived.wait_for(lambda: self.requests >= count, 60)

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)


@contextmanager
def webhook(
    answer: Callable[[int], int | None] = lambda _: 200, headers: dict[str, str] | None = None
) -> Iterator[Webhook]:
    hook = Webhook(answer, headers)
    try:
        yield hook
    finally:
        hook.close()


def incident(number: int = 1, sentence: str = "rank 3 was killed by SIGKILL", action: str = "relaunch") -> Incident:
    return Incident(
        id=number,
        attempt=number - 1,
        symptom="exit",
        onset_s=1000.0,
        detected_s=1001.0,
        decided_s=1001.5,
        verdict=Verdict(
            kind="crash",
            ranks=tuple(range(3, 103)),
            nodes=("gpu-1",),
            confidence="high",
            rule="died_of_signal",
            sentence=sentence,
        ),
        action=Action(name=action, reason="it had made progress"),  # type: ignore[arg-type]
    )
