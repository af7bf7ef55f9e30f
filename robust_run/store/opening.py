"""From a URL to a store. The only place that knows all kinds of them; each is imported when the first URL asks for it."""

from __future__ import annotations

import os
import urllib.parse

from robust_run.errors import UserError
from robust_run.store.paths import scheme_of, shown
from robust_run.store.types import Store, StoreOptions

_DEFAULTS = StoreOptions()


def open_store(url: str, options: StoreOptions = _DEFAULTS) -> Store:
    """Return the store of a folder: a plain path, file://, http(s)://, hdfs://, viewfs://, or any that fsspec opens.

    Opening looks at nothing yet: a folder that is not there shows at the first call. Raises `UserError` for a URL that cannot
    be one, and where a library for it is missing; `StoreError` where its library connects at once, and that fails.
    """
    if not url or "\0" in url:
        raise UserError(f"{url!r} is no folder: give a path or a URL")
    try:
        return _open(scheme_of(url), url, options)
    except ValueError as error:
        raise UserError(f"{scheme_of(url) + '://...'} is no URL: {error}") from error


def _open(scheme: str, url: str, options: StoreOptions) -> Store:
    if scheme in ("", "file"):
        from robust_run.store.local import LocalStore

        return LocalStore(os.path.abspath(local_path(url)), options)
    if scheme in ("http", "https"):
        from robust_run.store.http import HttpStore

        return HttpStore(url, options)
    if scheme in ("hdfs", "viewfs"):
        from robust_run.store.hdfs import HdfsStore

        return HdfsStore(url, options)
    if scheme == "rrck":
        raise UserError(f"{shown(url)} names a checkpoint, not a folder: use it where a checkpoint is asked for")
    from robust_run.store.other import FsspecStore

    return FsspecStore(url, options)


def local_path(url: str) -> str:
    """Return the path of a file:// URL, or a plain path as it is. Raises `UserError` for a file on another host."""
    if not scheme_of(url):
        return url
    parts = urllib.parse.urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise UserError(f"{url}: write file:///path, with three slashes; files of other hosts cannot be read so")
    return urllib.parse.unquote(parts.path)
