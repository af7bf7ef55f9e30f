"""Who connects and proves nothing takes nobody's place: one address that sends many loses its own."""

from __future__ import annotations

import asyncio
from typing import Any

from robust_run.orchestrator.entrance import MOST_UNPROVEN, Entrance


class Stranger:
    """As much of a connection as an entrance sees."""

    def __init__(self, host: str) -> None:
        self.host, self.ended = host, 0

    def end(self) -> None:
        self.ended += 1


def stranger(host: str) -> Any:
    return Stranger(host)


def test_of_too_many_the_oldest_of_the_address_with_most_has_to_go() -> None:
    async def story() -> None:
        entrance = Entrance()
        honest = stranger("10.0.0.1")
        entrance.came(honest)
        crowd = [stranger("10.9.9.9") for _ in range(MOST_UNPROVEN + 10)]
        for each in crowd:
            entrance.came(each)
        assert honest.ended == 0
        assert [each.ended for each in crowd] == [1] * 11 + [0] * (len(crowd) - 11)
        entrance.passed(honest)
        entrance.close()
        assert honest.ended == 0
        assert all(each.ended == 1 for each in crowd)

    asyncio.run(story())
