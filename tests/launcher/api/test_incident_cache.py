"""An incident's page is drawn once for all who look at it, and again when there is something new to see."""

from __future__ import annotations

import asyncio

import msgspec
from page_ground import incident_page

from robust_run.launcher.operator.server.incident_cache import MOST_KEPT, OPEN_S, IncidentCache
from robust_run.report.pages.types import IncidentPage


def drawn(asked: list[tuple[IncidentPage, object, float]]) -> int:
    """Return how often pages were drawn."""
    count = 0

    def draw() -> bytes:
        nonlocal count
        count += 1
        return b"page"

    async def ask() -> None:
        cache = IncidentCache()
        for page, scene_at, now_s in asked:
            assert await cache.page(page, scene_at, now_s, draw) == b"page"

    asyncio.run(ask())
    return count


def numbered(number: int) -> IncidentPage:
    page = incident_page()
    return msgspec.structs.replace(page, incident=msgspec.structs.replace(page.incident, id=number))


def test_it_is_drawn_again_for_something_new_only() -> None:
    page = incident_page()
    still = msgspec.structs.replace(page, incident=msgspec.structs.replace(page.incident, resumed_s=None))
    assert drawn([(page, 1, 0.0), (page, 1, 1000.0)]) == 1
    assert drawn([(page, 1, 0.0), (page, 2, 0.0)]) == 2
    assert drawn([(still, 1, 0.0), (page, 1, 0.0)]) == 2
    assert drawn([(still, 1, 0.0), (still, 1, OPEN_S / 2), (still, 1, OPEN_S)]) == 2


def test_only_some_are_kept() -> None:
    asked = [(numbered(each), 0, 0.0) for each in range(1, MOST_KEPT + 2)]
    assert drawn([*asked, asked[-1]]) == MOST_KEPT + 1
    assert drawn([*asked, asked[0]]) == MOST_KEPT + 2
