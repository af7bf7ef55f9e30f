"""Code between nodes, as the leader sees to it: before what needs it, and where another may have to lead on.

The leader has all code that counts: what a launcher elsewhere has captured counts once it is here. Who leads on has it, too:
voters are told what they should have, and ask for what they lack. Where a leader lacks code all the same (who had it was lost
in the same moment), it asks all nodes, and what needs the code waits for `FETCH_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from robust_run.errors import RobustRunError
from robust_run.launcher.control.code_transfer import parts_of
from robust_run.launcher.records.code.types import TreeParts
from robust_run.orchestrator.model.node_words import CodeKept, CodeParts, CodeWanted
from robust_run.orchestrator.updates.shelf import Shelf

FETCH_S = 30.0
"""Nodes that come back to a new leader do so within seconds."""

ToCarry = CodeKept | CodeParts | CodeWanted


class Carrier:
    """`send`: to a node, False where that is not connected; `nodes`: those that are."""

    def __init__(
        self,
        send: Callable[[str, ToCarry], bool],
        nodes: Callable[[], Iterable[str]],
        say: Callable[[str], None],
        fetch_s: float = FETCH_S,
    ) -> None:
        self._send, self._nodes, self._say, self._fetch_s = send, nodes, say, fetch_s
        self.shelf: Shelf | None = None
        """The code of all roles; None: code is nobody's matter."""
        self.voters: frozenset[str] = frozenset()
        self._kept: tuple[str, ...] = ()
        self._has: dict[str, set[str]] = {}
        """Code that was sent to a node."""
        self._awaited: dict[str, list[tuple[Callable[[bool], None], bool]]] = {}
        """By tree: what is done once it is here, and whether it is waited for however long that takes."""
        self._asked: set[tuple[str, str]] = set()
        """Nodes that were asked for it."""
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def came(self, name: str, *, is_new: bool) -> None:
        """A node is connected. `is_new`: it is another process than before."""
        if is_new:
            self._has.pop(name, None)
        for tree in self._awaited:
            self._asked.discard((name, tree))  # the connection may have ended in the midst of it
            self._ask(name, tree)
        self._keep_at(name)

    def _ask(self, name: str, tree: str) -> None:
        if (name, tree) not in self._asked and self._send(name, CodeWanted(tree=tree)):
            self._asked.add((name, tree))

    def keep(self, trees: Iterable[str], voters: Iterable[str]) -> None:
        """Have all voters keep this code from now on, and no other."""
        kept, names = tuple(sorted({tree for tree in trees if tree})), frozenset(voters)
        if (kept, names) != (self._kept, self.voters):
            self._kept, self.voters = kept, names
            for name in list(self._nodes()):
                self._keep_at(name)

    def _keep_at(self, name: str) -> None:
        if self._kept and name in self.voters:
            self._send(name, CodeKept(trees=self._kept))

    def wanted(self, name: str, tree: str) -> None:
        """A node lacks code that it should keep."""
        if tree in self._kept:
            self._has.get(name, set()).discard(tree)
            self.carry(name, tree)

    def carry(self, name: str, tree: str) -> None:
        """Send the code of a version before what needs it, once."""
        has = self._has.setdefault(name, set())
        if self.shelf is None or not tree or tree in has:
            return
        for parts in parts_of(self.shelf.store, tree):
            if parts.missing or not self._send(name, CodeParts(parts=parts)):
                return
        has.add(tree)

    def once_here(self, tree: str, act: Callable[[bool], None], asks: str = "") -> None:
        """Do something when code is here; or, with False, when nobody had it for long. `asks`: who has it, and is waited for;
        empty: somebody may have it.
        """
        if self.shelf is None or not tree or self.shelf.store.has(tree):
            act(True)
            return
        self._awaited.setdefault(tree, []).append((act, bool(asks)))
        for name in [asks] if asks else list(self._nodes()):
            self._ask(name, tree)
        if not asks and tree not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[tree] = loop.call_later(self._fetch_s, self._found, tree, False)

    def take(self, name: str, parts: TreeParts) -> None:
        """Take in what a node sends of code that is lacking here."""
        if self.shelf is None or parts.tree not in self._awaited or parts.missing:
            return
        try:
            is_complete = self.shelf.take(parts)
        except RobustRunError as error:
            self._say(f"the code of {name} cannot be kept: {error}")
            return
        if is_complete:
            self._found(parts.tree, True)

    def _found(self, tree: str, is_here: bool) -> None:
        timer = self._timers.pop(tree, None)
        if timer is not None:
            timer.cancel()
        self._asked = {each for each in self._asked if each[1] != tree}
        awaited = self._awaited.pop(tree, [])
        stay = [each for each in awaited if each[1] and not is_here]
        if stay:
            self._awaited[tree] = stay
        for act, waits in awaited:
            if is_here or not waits:
                act(is_here)
