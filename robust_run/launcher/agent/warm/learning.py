"""Preload learning of a node: what its first workers imported, or those of rank 0's node, and the warm process is to import."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from robust_run.launcher.model.job import JobSpec


class Learning:
    """What is still to be learned; nothing once the warm process was told, until it is to be learned anew."""

    def __init__(self, spec: JobSpec, published: str, preload: Callable[[tuple[str, ...]], bool]) -> None:
        """`published`: the file by which nodes that share it tell each other. `preload`: tells the warm process; False: it has
        not heard it.
        """
        self._spec, self._published, self._preload = spec, published, preload
        self._is_wanted = bool(spec.preload)
        self._file = ""
        self._may_learn_from_others = True

    def forget(self) -> None:
        """What workers import without harm may have changed: the next attempt lists that anew."""
        self._is_wanted = bool(self._spec.preload)
        self._drop()
        self._may_learn_from_others = False

    def ask(self, path: str) -> None:
        """Have a worker that is started now list in this file what it had imported before its first step, if that is wanted.

        Raises OSError.
        """
        if self._is_wanted:
            self._drop()
            self._file = path
            with open(path, "xb"):
                pass

    def to_preload(self) -> tuple[str, ...] | None:
        """Return what the warm process is still to be told to import; None while that is not known, or nothing is asked."""
        return self._read(self._file) if self._is_wanted and self._file else None

    def learn(self, *, publishes: bool) -> None:
        """Have the warm process import what this node's first workers had, as far as `known` thinks it worth it.

        `publishes`: nodes that stand by are to see it.
        """
        chosen = self.to_preload()
        if chosen is not None and self._preload(chosen):
            self._is_wanted = False
            self._drop()
            if publishes:
                from robust_run.launcher.agent.warm import known

                known.publish(self._published, chosen)

    def learn_from_others(self) -> None:
        """Have the warm process of a node that stands by import the same, where nodes share the run directory."""
        if self._is_wanted and not self._file and self._may_learn_from_others:
            chosen = self._read(self._published)
            if chosen is not None and self._preload(chosen):
                self._is_wanted = False

    def _drop(self) -> None:
        """Remove the list that is not needed any more: it is in memory, and a job may start again thousands of times."""
        if self._file:
            with suppress(OSError):
                os.unlink(self._file)
        self._file = ""

    def _read(self, path: str) -> tuple[str, ...] | None:
        from robust_run.launcher.agent.warm import known

        return known.to_preload(path, everything=self._spec.preload_auto)
