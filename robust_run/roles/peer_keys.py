"""Keys with which workers of one job know each other on connections of their own. Pure."""

from __future__ import annotations

import hmac

from robust_run.errors import UserError

MOST_PURPOSE = 200
_LABEL = b"robust-run roles, key of peers 1\0"


def derive(secret: bytes, purpose: str) -> bytes:
    """Return 32 bytes that follow from a job's secret and a purpose, and tell nothing of the secret or of other keys.

    The expand step of HKDF (RFC 5869) for one block: the secret is random already. Raises UserError for a purpose that is none.
    """
    if not isinstance(purpose, str) or not 0 < len(purpose) <= MOST_PURPOSE:
        raise UserError(
            f"a peer key needs a purpose of 1 to {MOST_PURPOSE} characters, not {str(purpose)[:40]!r}: name the protocol that"
            " it is for"
        )
    return hmac.digest(secret, _LABEL + purpose.encode("utf-8", "surrogatepass") + b"\x01", "sha256")
