"""Small files of /proc and /sys, read with a limit: they may be missing, unreadable, or in a test's tree. Folders of the job."""

from __future__ import annotations

import os

MOST_BYTES = 1 << 18


def read_text(path: str, most_bytes: int = MOST_BYTES) -> str:
    """Return a file's beginning. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        parts, left = [], most_bytes
        while left > 0:
            part = os.read(descriptor, left)
            if not part:
                break
            parts.append(part)
            left -= len(part)
    finally:
        os.close(descriptor)
    return b"".join(parts).decode("utf-8", "replace")


def there(folder: str) -> str:
    """Return the folder, or the nearest one above it that there is: one to write checkpoints to is often made at the first."""
    while not os.path.isdir(folder) and (above := os.path.dirname(folder)) != folder:
        folder = above
    return folder


def text_or_none(path: str, most_bytes: int = MOST_BYTES) -> str | None:
    """Return a file's beginning, None where it cannot be read."""
    try:
        return read_text(path, most_bytes)
    except OSError:
        return None


def word(path: str) -> str:
    """Return a file's content without the blanks around it; empty where it cannot be read."""
    return (text_or_none(path) or "").strip()


def number(path: str) -> int | None:
    """Return the whole number that a file holds; None where there is none."""
    return to_number(word(path))


def to_number(text: str) -> int | None:
    """Return a whole number in the kernel's ways of writing it (`12`, `0x1f`, `-3`); None for anything else."""
    try:
        return int(text[:40], 0)
    except ValueError:
        return to_decimal(text)


def to_decimal(text: str) -> int | None:
    """Return a decimal number that may begin with zeros; None for anything else."""
    digits = text[:40].strip()
    return int(digits) if digits.lstrip("-").isdecimal() and digits.isascii() else None


def key_values(text: str) -> dict[str, int]:
    """Return the lines `name number` of a file such as memory.events or vmstat."""
    found = {}
    for line in text.split("\n"):
        name, _, value = line.partition(" ")
        count = to_decimal(value)
        if count is not None:
            found[name] = count
    return found


def names_in(folder: str, most: int = 4096) -> list[str]:
    """Return the names in a folder, sorted; none where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for _, entry in zip(range(most), entries, strict=False))
    except OSError:
        return []
