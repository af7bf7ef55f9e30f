"""One try to hand a notice over: to a webhook by POST, or to a command on its standard input. Takes a limited time, also if the
other side hangs, and says nothing that may be a secret.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import suppress
from typing import Any

import msgspec

from robust_run.launcher.records.notify.target import NotifyTarget
from robust_run.version import __version__

#: How long a webhook, and a command, may take.
WEBHOOK_S = 10.0
COMMAND_S = 30.0
#: No server makes us wait longer than this before the next try.
LONGEST_PAUSE_S = 60.0
#: What must not reach a command: it has the notice, and steers nothing.
SECRETS = ("ROBUST_TOKEN", "ROBUST_JOB_TOKEN", "ROBUST_NOTIFY")


class DeliveryResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a try."""

    ok: bool
    words: str = ""
    """Why not."""
    again: bool = True
    """Whether another try may help."""
    pause_s: float | None = None
    """How long the server wants to be left alone."""


class Delivery:
    """Hands over to one target. Not for several threads at once."""

    def __init__(self, target: NotifyTarget, webhook_s: float = WEBHOOK_S, command_s: float = COMMAND_S) -> None:
        self._target = target
        self._webhook_s = webhook_s
        self._command_s = command_s
        self._stuck: threading.Thread | None = None
        self.pid: int | None = None
        """Of the command that runs."""

    def hand_over(self, body: bytes) -> DeliveryResult:
        """Try once."""
        return self._post(body) if self._target.url else self._run(body)

    # --- webhooks

    def _post(self, body: bytes) -> DeliveryResult:
        """Try in a thread of its own: no time-out of a socket ends a name server that hangs, or a reply that trickles."""
        if self._stuck is not None and self._stuck.is_alive():
            return DeliveryResult(ok=False, words="the try before it still hangs")
        results: list[DeliveryResult] = []
        thread = threading.Thread(target=lambda: results.append(self._post_now(body)), name="notify try", daemon=True)
        thread.start()
        thread.join(self._webhook_s)
        if results:
            return results[0]
        self._stuck = thread
        return DeliveryResult(ok=False, words=f"no answer within {self._webhook_s:g} s")

    def _post_now(self, body: bytes) -> DeliveryResult:
        from urllib.error import HTTPError, URLError
        from urllib.request import ProxyHandler, Request, build_opener

        headers = {"Content-Type": "application/json", "User-Agent": f"robust-run/{__version__}"}
        request = Request(self._target.url, data=body, headers=headers, method="POST")  # noqa: S310 - http(s), as checked
        try:
            with build_opener(_no_redirects(), ProxyHandler()).open(request, timeout=self._webhook_s) as answer:
                status = int(answer.status)
            return DeliveryResult(ok=200 <= status < 300, words=f"HTTP status {status}")
        except HTTPError as error:
            with error:
                return _refused(error.code, error.headers.get("Retry-After", ""))
        except URLError as error:
            return DeliveryResult(ok=False, words=_reason(error.reason))
        except Exception as error:  # a server may break the protocol in any way
            return DeliveryResult(ok=False, words=_reason(error))

    # --- commands

    def _run(self, body: bytes) -> DeliveryResult:
        env = {name: value for name, value in os.environ.items() if name not in SECRETS}
        try:
            process = subprocess.Popen(
                self._target.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=env,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return DeliveryResult(ok=False, words=_reason(error), again=not isinstance(error, FileNotFoundError))
        self.pid = process.pid
        try:
            process.communicate(body, timeout=self._command_s)
        except subprocess.TimeoutExpired:
            return DeliveryResult(ok=False, words=f"it did not end within {self._command_s:g} s")
        except OSError as error:
            return DeliveryResult(ok=False, words=_reason(error))
        finally:
            end_all_of(process)
            self.pid = None
        code = process.returncode
        return DeliveryResult(
            ok=code == 0, words=f"exit code {code}" if code >= 0 else f"it was killed by signal {-code}"
        )

    def stop(self) -> None:
        """End a command that runs; called from another thread."""
        pid = self.pid
        if pid is not None:
            _kill_group(pid)


def end_all_of(process: subprocess.Popen[Any]) -> None:
    """End a command and what it left behind, and collect it."""
    _kill_group(process.pid)
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    process.wait()


def _kill_group(pid: int) -> None:
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _refused(status: int, retry_after: str) -> DeliveryResult:
    """Return what an HTTP status means: too busy and broken servers are asked again, one that says no is not."""
    pause_s = float(retry_after) if retry_after.isdigit() else None
    return DeliveryResult(
        ok=False,
        words=f"HTTP status {status}",
        again=status in (408, 425, 429) or status >= 500,
        pause_s=None if pause_s is None else min(pause_s, LONGEST_PAUSE_S),
    )


def _reason(error: object) -> str:
    """Return why, without what messages of libraries quote: addresses and arguments."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__


def _no_redirects() -> Any:
    from urllib.request import HTTPRedirectHandler

    class _Stay(HTTPRedirectHandler):
        """A notice goes where the user said, nowhere else."""

        def redirect_request(self, *_: object, **__: object) -> None:
            return None

    return _Stay()
