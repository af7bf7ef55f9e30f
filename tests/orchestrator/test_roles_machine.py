"""What the process that leads a job of several roles asks of its machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from robust_run.orchestrator.listening import open_place, place_of
from robust_run.orchestrator.server import RoleServer


class Listening:
    """A server that gets the port that it asks for, or its own."""

    secret = b"s"

    async def listen(self, host: str, port: int = 0) -> int:
        return port or 4000


def test_a_leader_that_listens_where_the_one_before_it_did_writes_nothing(tmp_path: Path) -> None:
    """The disk may be full by then, and workers know the place."""
    path, server = tmp_path / "roles.place", cast(RoleServer, Listening())
    asyncio.run(open_place(server, str(path), ("a",), None, None))
    before = place_of(str(path))
    assert before is not None and before.port == 4000
    path.unlink()
    asyncio.run(open_place(server, str(path), ("a",), None, before))
    assert not path.exists()
