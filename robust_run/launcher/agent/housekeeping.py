"""Housekeeping of an agent, once a second: whether its ranks got going, what can be prepared for the next attempt, orphans.

Imported after the first workers have been started.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from robust_run.launcher.model.events import FirstStep

if TYPE_CHECKING:
    from robust_run.launcher.agent.agent import Agent
    from robust_run.launcher.agent.attempt import Attempt
    from robust_run.launcher.agent.fetch_line import FetchLine
    from robust_run.launcher.agent.health import AgentHealth
    from robust_run.launcher.agent.node import Node

#: Orphans wait this many rounds for their exit status to be collected: looking costs a scan of /proc.
ORPHAN_ROUNDS = 10


class Housekeeping:
    """One agent's."""

    def __init__(self, agent: Agent, node: Node) -> None:
        self._agent = agent
        self._node = node
        self._fetch_line: FetchLine | None = None
        self._stepped = -1
        """The attempt whose first step was reported last."""

    def look(self, rounds: int, health: AgentHealth | None) -> None:
        """Look once. `rounds`: how many times that was done before. `health`: what sees with sensors, if anything does."""
        agent, node, attempt = self._agent, self._node, self._agent.attempt
        self.look_for_first_step()
        self._tell_what_is_fetched()
        if health is not None:
            health.look()
        if agent.minds_code:
            agent.parts.codes.look(attempt if agent.is_running else None)
        if attempt is not None:
            node.workplace.look([each.pid for each in attempt.workers], stepped=self._stepped >= 0)
        if attempt is not None and attempt.replay_steps and agent.is_running:
            agent.parts.checks.look(attempt, agent.node_id, agent.report)
        if attempt is not None and agent.is_running and not attempt.is_ending:
            self._prepare(attempt, rounds)
        elif attempt is None and agent.exit_code is None and node.spec.many is not None:
            node.warm_up()
            if rounds % ORPHAN_ROUNDS == 0:
                node.learning.learn_from_others()

    def _tell_what_is_fetched(self) -> None:
        """Say what is fetched while ranks start, if anything is."""
        attempt = self._agent.attempt
        table = sys.modules.get("robust_run.store.turn_table")
        if attempt is None or self._stepped == attempt.number or table is None or not table.is_begun():
            return
        now_s = self._node.clock.monotonic_s()
        if self._fetch_line is None:
            from robust_run.launcher.agent.fetch_line import FetchLine

            self._fetch_line = FetchLine(table.begin({}), now_s, self._node.say)
        self._fetch_line.look(now_s)

    def _prepare(self, attempt: Attempt, rounds: int) -> None:
        age_s = self._node.clock.monotonic_s() - attempt.started_at_s
        self._node.launch_warm(age_s)
        self._agent.look_for_saves()
        self._node.learning.learn(publishes=self._node.tells_standbys)
        self._node.restock(attempt.number, age_s)
        if rounds % ORPHAN_ROUNDS == 0:
            attempt.reap_orphans()

    def look_for_first_step(self) -> None:
        """Report the first step of the newest attempt, once."""
        attempt = self._agent.attempt
        if attempt is None or self._stepped == attempt.number:
            return
        at_s = self._node.first_step_s(attempt.number, attempt.first_rank)
        if at_s is not None:
            self._stepped = attempt.number
            self._agent.has_stepped()
            self._agent.report(FirstStep(attempt=attempt.number, node=self._agent.node_id, at_s=at_s))
