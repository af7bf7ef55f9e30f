"""Folders that a web server's index page names: what nginx, Apache, Caddy and `python -m http.server` show of a folder. Pure.

There is no standard for such a page, so only the plainest links count: to a folder that lies right below the page itself.
"""

from __future__ import annotations

import html
import re
import urllib.parse
from collections.abc import Iterator

from robust_run.store import paths

#: A page is read so far, and of one page so many names count.
LARGEST_PAGE_BYTES, MOST_NAMES = 16 << 20, 65536
#: How a page that shows an empty folder is known: by its heading, or by its way up. One that asks for a password is none.
_HEADING = re.compile(r"<(?:title|h1)\b[^>]*>[^<]{0,200}?(?:index of|directory listing|directory:)", re.IGNORECASE)
_WAYS_UP = ("..", "../", "./..", "./../")
_LOG_IN = re.compile(r"""<input\b[^>]*\btype\s*=\s*["']?password""", re.IGNORECASE)
_LINK = re.compile(r"""<a\s[^>]*?href\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)


def folders_in(page: str, base_url: str) -> list[str]:
    """Return the names of folders right below `base_url` that its index page links to, each once."""
    base = urllib.parse.urlsplit(base_url)
    above = base.path.rstrip("/") + "/"
    names: dict[str, None] = {}
    for link in _links(page):
        name = _name(link, base, above)
        if name:
            names[name] = None
        if len(names) >= MOST_NAMES:
            break
    return [*names]


def is_index(page: str, base_url: str) -> bool:
    """Whether a page shows a folder, be it an empty one. A page to log in, of an error or of a portal is none.

    Those name no folder of ours either, and whoever takes one for an empty folder begins a training anew.
    """
    if folders_in(page, base_url):
        return True
    if _LOG_IN.search(page):
        return False
    parent = urllib.parse.urlsplit(base_url).path.rstrip("/").rpartition("/")[0]
    ways_up = {*_WAYS_UP, f"{parent}/"} if parent else {*_WAYS_UP}  # a link to "/" is on any page
    return _HEADING.search(page) is not None or not ways_up.isdisjoint(_links(page))


def _links(page: str) -> Iterator[str]:
    for found in _LINK.finditer(page):
        yield html.unescape(next(filter(None, found.groups()), ""))


def _name(link: str, base: urllib.parse.SplitResult, above: str) -> str:
    """Return what a link names; empty: no folder of ours."""
    try:
        parts = urllib.parse.urlsplit(urllib.parse.urljoin(f"{base.scheme}://{base.netloc}{above}", link))
    except ValueError:
        return ""
    below = parts.path.removeprefix(above)
    if parts.netloc != base.netloc or parts.query or below == parts.path or not below.endswith("/"):
        return ""
    name = urllib.parse.unquote(below[:-1])
    return name if paths.is_clean(name) and "/" not in name else ""
