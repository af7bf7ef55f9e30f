"""Pages of results: parts between marks, of which each mode of the soak writes its own and leaves the others as they are."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def part_of(page: str, name: str) -> list[str]:
    """Return the lines of a part of a page; none if it has no such part."""
    _, begun, rest = page.partition(f"<!-- soak: {name} -->\n")
    return rest.partition(f"<!-- end of soak: {name} -->")[0].strip("\n").split("\n") if begun else []


def with_part(page: str, name: str, lines: Iterable[str]) -> str:
    """Return a page with other lines in a part, which comes to its end if it had none."""
    begin, end = f"<!-- soak: {name} -->\n", f"<!-- end of soak: {name} -->"
    part = "\n".join(["", *lines, ""]) + "\n"
    before, begun, rest = page.partition(begin)
    if not begun:
        return f"{page.rstrip()}\n\n{begin}{part}{end}\n"
    return f"{before}{begin}{part}{end}{rest.partition(end)[2]}"


def write(path: Path, text: str) -> None:
    """Write a page as a whole: whoever reads it meanwhile sees the old one."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def commit_here() -> str:
    """Return the commit that is checked out, and whether something was changed since. Pages of results are no change."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    status = [*git, "status", "--porcelain", "-uno", "--", ".", ":!docs/soak*.md"]
    changed = subprocess.run(status, capture_output=True, text=True, check=False)
    return (head.stdout.strip() or "unknown") + (" with changes" if changed.stdout.strip() else "")


def machine_here() -> str:
    """Return what this machine is."""
    import torch

    return f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"


def today() -> str:
    """Return the day, in UTC."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")
