"""Folders that a web server's index page names: what nginx, Apache, Caddy and `python -m http.server` show of a folder. Pure.

There is no standard for such a page, so only the plainest links count: to a folder that lies right below the page itself.
"""

from __future__ import annotations

import html
import re
import urllib.parse

from robust_run.store import paths

#: A page is read so far, and of one page so many names count.
LARGEST_PAGE_BYTES, MOST_NAMES = 16 << 20, 65536
_LINK = re.compile(r"""<a\s[^>]*?href\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)


def folders_in(page: str, base_url: str) -> list[str]:
    """Return the names of folders right below `base_url` that its index page links to, each once."""
    base = urllib.parse.urlsplit(base_url)
    above = base.path.rstrip("/") + "/"
    names: dict[str, None] = {}
    for found in _LINK.finditer(page):
        link = html.unescape(next(filter(None, found.groups()), ""))
        name = _name(link, base, above)
        if name:
            names[name] = None
        if len(names) >= MOST_NAMES:
            break
    return [*names]


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
