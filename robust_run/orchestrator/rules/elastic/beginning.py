"""When a job of several nodes begins. Pure.

With all nodes; or, where fewer do (`--nnodes 2:4`), with those that are there a while after the fewest are: the last call, as a
job of one world has it. Nodes that come later are taken in.
"""

from __future__ import annotations

from robust_run.orchestrator.model.node_words import Several


class Beginning:
    """The wait for nodes of one job. Times are of the monotonic clock."""

    def __init__(self, several: Several, now_s: float) -> None:
        self._several = several
        self._fewest = several.fewest or several.nodes
        self._late_s = now_s + several.join_timeout_s
        self._enough_s: float | None = None

    def is_over(self, nodes: int, now_s: float) -> bool:
        """Whether the job begins now. `nodes`: those that are there. Fewer again: the last call begins anew."""
        if nodes < self._fewest:
            self._enough_s = None
            return False
        self._enough_s = now_s if self._enough_s is None else self._enough_s
        return nodes >= self._several.nodes or now_s >= self._enough_s + self._several.last_call_s

    def is_late(self, nodes: int, now_s: float) -> bool:
        """Whether the fewest have not come in time."""
        return nodes < self._fewest and now_s >= self._late_s

    def words(self, here: list[str]) -> str:
        """Return what is waited for; empty: enough nodes are there."""
        several = self._several
        if len(here) >= self._fewest:
            return ""
        return (
            f"{several.name} leads the job at {several.host}:{several.port}; {len(here)} of {self._fewest} nodes are here,"
            f" waiting up to {several.join_timeout_s:.0f} s for more"
        )

    def why(self, here: list[str]) -> str:
        """Return why the job does not begin."""
        several = self._several
        return (
            f"{len(here)} of {self._fewest} nodes came within {several.join_timeout_s:.0f} s ({', '.join(here)});"
            f" start robust-run on the others with --rdzv-endpoint {several.host}:{several.port}"
        )
