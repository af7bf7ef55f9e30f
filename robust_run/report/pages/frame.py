"""A whole page: head, policy, style, script. Pure.

The page's Content-Security-Policy allows nothing but its own style and the script whose digest it names; a live page may also
ask the server it came from. So even a mistake in escaping could not run or fetch anything.
"""

from __future__ import annotations

import base64
import hashlib
import json

from robust_run.report.pages.markup import text
from robust_run.report.pages.script import DRILL, LIVE
from robust_run.report.pages.style import CSS


def document(title: str, top: str, body: str, footer: str, *, live: bool = False) -> str:
    """Return the page. `title` is escaped here, all else is finished HTML."""
    script = DRILL + (LIVE if live else "")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; base-uri 'none'; "
        f"form-action 'none'{'; connect-src &#39;self&#39;' if live else ''}"
    )
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        f'<meta http-equiv=Content-Security-Policy content="{policy}">'
        "<meta name=viewport content='width=device-width,initial-scale=1'><meta name=referrer content=no-referrer>"
        "<meta name=color-scheme content='light dark'>"
        f"<title>{text(title, 300)}</title><style>{CSS}</style></head>\n<body>"
        f"<a class=skip href=#main>to the content</a><header><nav class=top aria-label='where you are'>{top}</nav></header>"
        f"<main id=main>\n{body}\n</main><footer>{footer}</footer><script>{script}</script></body></html>\n"
    )


def data_block(name: str, value: object) -> str:
    """Return data for the script. Nothing in it can end the element it is in."""
    written = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    for char in "<>&":
        written = written.replace(char, f"\\u{ord(char):04x}")
    return f'<script type="application/json" id={name}>{written}</script>'
