"""Where stores and caches are by default, and the token. Apart from `planning`, which imports all that building does."""

from __future__ import annotations

import os
from collections.abc import Mapping

from robust_run.secret_file import read_secret
from robust_run.snapshot.errors import SetupRefused


def cache_folder(environment: Mapping[str, str]) -> str:
    """Return where this node keeps images and what it unpacked."""
    base = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME") or "/", ".cache")
    return os.path.join(base, "robust-run", "snapshots")


def default_store(environment: Mapping[str, str]) -> str:
    """Return the store if none is named: `ROBUST_SETUP_STORE`, else a folder in the user's cache."""
    return environment.get("ROBUST_SETUP_STORE") or os.path.join(cache_folder(environment), "store")


def read_token(path: str | None) -> str | None:
    """Return the token that signs manifests; None: no file is named. Raises UserError."""
    if path is None:
        return None
    token = read_secret(path)
    if token is None:
        raise SetupRefused(f"{path}: there is no such file; make it with mode 0600")
    return token
