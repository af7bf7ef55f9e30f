"""HTML as text: what came from a job is escaped here, and nowhere is a page put together without it. Pure.

Besides what HTML wants escaped, characters that a page would obey or hide are made visible: control characters, and those that
change the direction of writing (a file name may pretend to be another with them: CVE-2021-42574).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

#: Longest text of a job that goes into one place of a page.
LONGEST = 4000

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def text(value: object, longest: int = LONGEST) -> str:
    """Return a job's text for a page, between tags or inside a quoted attribute."""
    written = str(value)
    if len(written) > longest:
        written = f"{written[:longest]} … ({len(written) - longest} characters left out)"
    return escape(visible(written), quote=True)


def visible(written: str) -> str:
    """Return a text with what hides or misleads in it made visible; it is not escaped."""
    return _UNSEEN.sub(_shown, written)


def _shown(found: re.Match[str]) -> str:
    code = ord(found.group())
    return chr(0x2400 + code) if code < 0x20 else f"\\u{code:04x}"


def join(parts: Iterable[str]) -> str:
    """Return pieces of HTML as one."""
    return "".join(parts)


def breakable(value: object, longest: int = LONGEST) -> str:
    """Return the same as `text`, with places where a long path or name may be broken."""
    return re.sub(r"(/)(?=\w)", r"\1<wbr>", text(value, longest))


def marked(advice: str, longest: int = LONGEST) -> str:
    """Return words of ours with options of commands set as such: none is broken after its dashes."""
    return re.sub(
        r"(?<![\w-])(--[a-z-]+(?: [A-Z]+| report| evict)?)", r"<code class=nowrap>\1</code>", text(advice, longest)
    )


def command(line: str) -> str:
    """Return a command line that a click selects whole, and a button that copies it, where scripts run."""
    written = text(line)
    return (
        f"<code class=cmd>{written}</code>"
        f'<button type=button class="copy screen" data-key="copy {written}" aria-label="copy {written}">copy</button>'
    )


def section(name: str, title: str, *content: str, note: str = "") -> str:
    """Return a part of a page with a heading. `name` is its id: letters and dashes, ours."""
    said = f"<p class=note>{note}</p>" if note else ""
    return f"<section id={name} aria-labelledby={name}-title><h2 id={name}-title>{title}</h2>{said}{join(content)}</section>"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]], label: str, css: str = "") -> str:
    """Return a table of finished cells; a head that begins with `#` is of numbers."""
    heads = list(heads)
    classes = [" class=num" if head.startswith("#") else "" for head in heads]
    top = join(f"<th scope=col{css_of}>{head.lstrip('#')}</th>" for head, css_of in zip(heads, classes, strict=True))
    names = [text(head.lstrip("#")) for head in heads]
    body = join(
        "<tr>"
        + join(
            f'<td{css_of} data-h="{name}">{cell}</td>' for cell, css_of, name in zip(row, classes, names, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class=scroll tabindex=0 role=region aria-label="{text(label)}"><table class="{css}">'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )
