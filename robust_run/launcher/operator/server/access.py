"""Who may ask the API what: the tokens of a job, and what each lets in to. Pure."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import Literal

from robust_run.launcher.records.token import reading_token

#: What the reading token shows, besides the pages of incidents.
_READABLE = frozenset(
    ("/", "/report.html", "/page", "/metrics", "/v1/status", "/v1/nodes", "/v1/live", "/v1/incidents")
)


class AccessTokens:
    """The job's token, the reading token that follows from it, and the one of `/metrics`."""

    def __init__(self, token: str, metrics_token: str = "") -> None:
        """`metrics_token`: empty: no such token lets in."""
        self._token = token.encode()
        self._reading = reading_token(token).encode()
        self._metrics = metrics_token.encode()

    def allow(self, header: str) -> Literal["all", "read", "metrics", ""]:
        """Return what a request may that has this `Authorization`: as programs send it, or as a browser sends a password."""
        scheme, _, given = header.partition(" ")
        secret = given.strip().encode(errors="replace")
        if scheme.lower() == "basic":
            try:
                secret = base64.b64decode(secret, validate=True).partition(b":")[2]
            except binascii.Error:
                return ""
        elif scheme.lower() != "bearer":
            return ""
        is_full = hmac.compare_digest(secret, self._token)
        is_reading = hmac.compare_digest(secret, self._reading)
        is_metrics = hmac.compare_digest(secret, self._metrics) and bool(self._metrics)
        if not self._token:
            return ""
        return "all" if is_full else "read" if is_reading else "metrics" if is_metrics else ""


def may_read(method: str, path: str) -> bool:
    """Whether the reading token is enough for a request: what is not named here needs the job's own."""
    return method == "GET" and (path in _READABLE or (path.startswith("/incidents/") and not path.endswith(".json")))
