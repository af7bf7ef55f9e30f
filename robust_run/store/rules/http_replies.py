"""What a web server's reply says: its status in our errors, its range, the version of the file. Pure, but for reading headers."""

from __future__ import annotations

import http.client
import re

import msgspec

from robust_run.store.errors import AccessDenied, NotFound, StoreError, Unavailable

_CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18}|\*)")
_GOOD = (http.client.OK, http.client.PARTIAL_CONTENT, http.client.REQUESTED_RANGE_NOT_SATISFIABLE)
_WAIT = (http.client.REQUEST_TIMEOUT, http.client.TOO_EARLY, http.client.TOO_MANY_REQUESTS)
_PAGE_BYTES = 256
_HEAD_REFUSED = (http.client.FORBIDDEN, http.client.METHOD_NOT_ALLOWED, http.client.NOT_IMPLEMENTED)


class Version(msgspec.Struct, frozen=True):
    """Tells one content of a file from another, as far as a server says. None: it does not."""

    size_bytes: int | None
    etag: str | None
    modified: str | None

    def agrees(self, other: Version) -> bool:
        """Whether both may be of the same content. Times count where there are no ETags only: mirrors differ in them."""
        if None not in (self.size_bytes, other.size_bytes) and self.size_bytes != other.size_bytes:
            return False
        if self.etag is not None and other.etag is not None:
            return self.etag.removeprefix("W/") == other.etag.removeprefix("W/")
        return None in (self.modified, other.modified) or self.modified == other.modified

    def __str__(self) -> str:
        return f"{self.size_bytes} bytes, ETag {self.etag}, of {self.modified}"


def version_of(reply: http.client.HTTPResponse) -> Version:
    """Return the version of the whole file that a reply is (a range) of."""
    size = whole_size(reply) if reply.status != http.client.OK else length_of(reply)
    return Version(size, reply.getheader("ETag"), reply.getheader("Last-Modified"))


def check_status(url: str, path: str, method: str, reply: http.client.HTTPResponse) -> None:
    """Raise what a status means that is no content. A refused HEAD passes: the caller asks otherwise."""
    status = reply.status
    said = f"the server says {status} {reply.reason}"
    if status in _GOOD:
        encoding = reply.getheader("Content-Encoding", "identity")
        if encoding != "identity":
            raise StoreError(url, path, f"the server sent it encoded as {encoding[:40]!r}, which was not asked for")
        return
    if method == "HEAD" and status in _HEAD_REFUSED:
        return
    if status in (http.client.NOT_FOUND, http.client.GONE):
        raise NotFound(url, path, said)
    if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN, http.client.PROXY_AUTHENTICATION_REQUIRED):
        raise AccessDenied(url, path, f"{said}: check the token or the URL's signature")
    if status in _WAIT or status >= http.client.INTERNAL_SERVER_ERROR:
        busy = Unavailable(url, path, said)
        busy.retry_after_s = retry_after_s(reply)
        raise busy
    raise StoreError(url, path, said)


def check_page(url: str, path: str, reply: http.client.HTTPResponse) -> None:
    """Raise `AccessDenied` for a web page that comes in a file's stead, as gateways send one to who is to log in."""
    if not is_page(path, reply):
        return
    if reply.peek(_PAGE_BYTES).lstrip()[:1] == b"<":  # some servers call everything a page
        said = "the server sent a web page instead of it, perhaps to log in"
        raise AccessDenied(url, path, f"{said}: check the URL, the token or the URL's signature")


def is_page(path: str, reply: http.client.HTTPResponse) -> bool:
    """Whether a reply says that it is a web page, and the file is none: it may come in the file's stead."""
    kind = reply.getheader("Content-Type", "").partition(";")[0].strip().lower()
    return reply.status == http.client.OK and kind == "text/html" and not path.lower().endswith((".html", ".htm"))


def retry_after_s(reply: http.client.HTTPResponse) -> float:
    """Return after how many seconds the server wants to be asked again; 0.0 where it does not say, or names a date."""
    said = reply.getheader("Retry-After", "").strip()
    return float(said) if said.isascii() and said.isdigit() and len(said) <= 6 else 0.0


def check_range(url: str, path: str, reply: http.client.HTTPResponse, offset_bytes: int, wanted: int) -> int:
    """Return how many bytes from the offset on a 206 has, at most `wanted`. Raises `StoreError` where it is another range."""
    said = reply.getheader("Content-Range", "")
    found = _CONTENT_RANGE.fullmatch(said)
    if found is None or found.group(1) is None:
        raise StoreError(url, path, f"the server sent a range without saying which: Content-Range {said[:60]!r}")
    first, last = int(found.group(1)), int(found.group(2))
    if first != offset_bytes or not first <= last < offset_bytes + wanted:
        raise StoreError(
            url, path, f"bytes {offset_bytes}-{offset_bytes + wanted - 1} were asked for, {said[:60]!r} came"
        )
    length = length_of(reply)
    if length is not None and length != last - first + 1:
        raise StoreError(url, path, f"the server says {said[:60]!r}, but sends {length} bytes")
    return last - first + 1


def whole_size(reply: http.client.HTTPResponse) -> int | None:
    """Return the size of the whole file that a range's reply (206 or 416) names."""
    found = _CONTENT_RANGE.fullmatch(reply.getheader("Content-Range", ""))
    return int(found.group(3)) if found is not None and found.group(3) != "*" else None


def length_of(reply: http.client.HTTPResponse) -> int | None:
    """Return the Content-Length; None where there is none, or no sensible one."""
    said = reply.getheader("Content-Length", "")
    return int(said) if said.isascii() and said.isdigit() and len(said) <= 18 else None
