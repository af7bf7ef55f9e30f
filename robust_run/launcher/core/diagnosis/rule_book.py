"""The table of health rules of a job: the defaults, with what a file of its own changes."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from robust_run.health.rules.table import DEFAULTS
from robust_run.health.rules.types import Book
from robust_run.launcher.core.state import CorePolicy


def book_of(policy: CorePolicy) -> Book:
    """Return the rules of a job."""
    return _book(policy.health_rules, policy.max_evict_share)


@lru_cache(maxsize=4)
def _book(text: str, share: float | None) -> Book:
    book = Book(rules=DEFAULTS)
    if text:
        from robust_run.health.rules.book import parse

        book = parse(text)
    if share is None:
        return book
    return msgspec.structs.replace(book, limits=msgspec.structs.replace(book.limits, max_evict_share=share))
