"""What is answered to readers of a job's own mount: as of any mount that is only read, and the folder may not exist yet."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from robust_run.ckpt_io.mount.held_types import TOLD
from robust_run.ckpt_io.mount.operations import ReadOnlyOperations, inner
from robust_run.ckpt_io.views.cache import UnitCache
from robust_run.ckpt_io.views.tree import ViewTree
from robust_run.store.errors import NotFound


class HeldOperations(ReadOnlyOperations):
    """A folder of checkpoints, for the ranks of a job."""

    def __init__(
        self,
        tree: ViewTree,
        cache: UnitCache,
        on_ready: Callable[[], None],
        timeout_s: float,
        *,
        tell: Callable[[str], None],
        look: Callable[[HeldOperations], None] = lambda _: None,
        env: MutableMapping[str, str] = os.environ,
    ) -> None:
        """`tell` is given the reason of each error that a reader gets. `look` takes in what the agent has said, before a reader
        that it may be meant for is answered. `env`: by which checkpoints are opened.
        """
        super().__init__(tree, cache, on_ready, timeout_s)
        self._tell, self._look, self._env = tell, look, env

    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, Any]:
        """What `stat` shows; the first that is asked of any file."""
        if fh is None:
            self._look(self)
        return super().getattr(path, fh)

    def open(self, path: str, flags: int) -> int:
        """Open for reading."""
        self._look(self)
        return super().open(path, flags)

    def names(self, path: str) -> list[str]:
        """Return the names in a folder. Where nothing was ever saved there is no folder, and to the job it is an empty one."""
        try:
            return super().names(path) if inner(path) else list(self.tree.top())
        except NotFound:
            if inner(path):
                raise
            return []

    def tell(self, message: str) -> None:
        """Say why a reader was given an error: to people, by way of the agent."""
        self._tell(message.removeprefix("/: ").removeprefix("/"))

    def read_for(self, told: Mapping[str, str]) -> None:
        """Read in the name of a rank from now on: what it would take of memory, and where it would note damage."""
        for name in TOLD:
            self._env.pop(name, None)
        self._env.update({name: told[name] for name in TOLD if told.get(name)})
        self.tree.shelf.reopen_all()
