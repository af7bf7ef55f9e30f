"""What a terminal would obey is made visible: one function for all lines of ours. Pure.

Names of scripts, files and hosts and messages of programs come from outside; a control character in one must not clear a
screen, set a title, or hide what follows. What workers print themselves passes untouched: it is theirs, and not quoted by us.
"""

from __future__ import annotations


def plain(text: str) -> str:
    """Return a line with what is not printable (control characters, changes of direction, broken names) written out."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def plain_lines(text: str) -> str:
    """Return the same of a text that may have several lines and tabs of its own."""
    if text.isprintable():
        return text
    return "".join(each if each in "\n\t" else plain(each) for each in text)
