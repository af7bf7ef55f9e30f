"""Names of users and groups inside: the image's, and the one line each for who we are, as programs ask for our own name. Pure."""

from __future__ import annotations

from collections.abc import Callable


def passwd(image: str, uid: int, gid: int, name: str, home: str) -> str | None:
    """Return the image's `/etc/passwd` with us in it; None where it knows our number already."""
    return _with(image, uid, lambda: f"{_word(name) or 'user'}:x:{uid}:{gid}::{_word(home) or '/'}:/bin/sh")


def group(image: str, gid: int, name: str) -> str | None:
    """Return the image's `/etc/group` with our group in it; None where it knows its number already."""
    return _with(image, gid, lambda: f"{_word(name) or 'group'}:x:{gid}:")


def _with(image: str, number: int, line: Callable[[], str]) -> str | None:
    rows = [row.split(":") for row in image.splitlines()]
    if any(len(row) > 2 and row[2] == str(number) for row in rows):
        return None
    return f"{image.rstrip(chr(10))}\n{line()}\n".lstrip("\n")


def _word(text: str) -> str:
    return "" if set(text) & set(":\n\0") else text
