"""Voters of a job in virtual time, for tests: each with its own clock, a log, links that break, processes that stop, die and
return.

What must never happen is checked after each step: two that act, a committed entry that is lost or another one in its place.
"""

from __future__ import annotations

import random
from collections import deque

import msgspec

from robust_run.orchestrator.model.succession_words import Append, AskVote, Entry, Message, Resigned
from robust_run.orchestrator.rules.raft import core
from robust_run.orchestrator.rules.raft.members import counting
from robust_run.orchestrator.rules.raft.state import (
    Action,
    Came,
    Committed,
    Cut,
    Dropped,
    Event,
    Heard,
    Lead,
    Leaves,
    Record,
    ReplicaState,
    Resign,
    Say,
    Ship,
    StopLeading,
    Store,
    StoreAnew,
    Tick,
    Went,
    Wrote,
)


class Voter:
    """One process of a voter, and what is on its disk."""

    def __init__(self, name: str, names: tuple[str, ...], offset_s: float, rate: float) -> None:
        self.name, self.offset_s, self.rate = name, offset_s, rate
        self.log: dict[int, Entry] = {}
        self.anew: dict[int, Entry] = {}
        self.record = (0, "")
        self.state = ReplicaState(name=name, seats=names)
        self.is_stopped = self.is_dead = False
        self.later: list[Event] = []
        """What it finds when it goes on."""
        self.counted = 0

    def local_s(self, now_s: float) -> float:
        return self.offset_s + self.rate * now_s


class Voters:
    """All of them."""

    def __init__(self, count: int, seed: int, batch: int = 2) -> None:
        self.random = random.Random(seed)
        self.names = tuple(f"n{index}" for index in range(count))
        self.all = {
            name: Voter(name, self.names, self.random.uniform(0, 1e6), self.random.uniform(0.98, 1.02))
            for name in self.names
        }
        self.now_s, self.batch = 0.0, batch
        self.wires: dict[tuple[str, str], deque[tuple[str, Message]]] = {}
        """By who dialed and who was dialed; what is under way, and who it goes to."""
        self.cut: set[frozenset[str]] = set()
        self.truth: dict[int, Entry] = {}
        """All that is committed."""
        self.led: dict[int, str] = {}
        self.elections = 0
        self.last_words: bool | None = None
        """Whether what a leader said just before its end is heard; None: by chance."""
        self.said: list[tuple[float, str, str]] = []
        for voter in self.all.values():
            core.begin(voter.state, voter.local_s(0.0))
        first = self.all["n0"]
        first.record = (1, "n0")
        first.state.term, first.state.voted = 1, "n0"
        self._do(first, core.lead_first(first.state, first.local_s(0.0)))
        self.write("n0")

    # What happens to them.

    def tell(self, name: str, event: Event) -> None:
        voter = self.all[name]
        if voter.is_stopped and isinstance(event, (Came, Went)):
            voter.later.append(event)
        elif not (voter.is_dead or voter.is_stopped):
            self._do(voter, core.step(voter.state, event, voter.local_s(self.now_s)))

    def go_on(self, name: str) -> None:
        """Let a process that was stopped go on."""
        voter = self.all[name]
        voter.is_stopped = False
        later, voter.later = voter.later, []
        for event in later:
            self.tell(name, event)

    def write(self, name: str) -> bool:
        """Have a leader decide something; it asks first whether it may."""
        voter = self.all.get(name)
        if not voter or voter.is_dead or voter.is_stopped or not voter.state.may_write(voter.local_s(self.now_s)):
            return False
        voter.counted += 1
        data = f"{name}-{voter.state.term}-{voter.counted}".encode()
        entry = Entry(voter.state.last + 1, voter.state.term, "journal", "", data)
        voter.log[entry.index] = entry
        self.tell(name, Wrote())
        return True

    def drop(self, name: str) -> None:
        """Have a voter forget entries that later ones have made void: here, any that are committed."""
        voter = self.all[name]
        if voter.is_dead or voter.is_stopped or not voter.state.committed:
            return
        upto = self.random.randint(0, voter.state.committed)
        for index, entry in list(voter.log.items()):
            if index <= upto and entry.what != "voters" and self.random.random() < 0.7:
                del voter.log[index]
        self.tell(name, Dropped(upto))

    def connect(self, here: str, there: str) -> None:
        one, other = self.all[here], self.all[there]
        is_possible = not (one.is_dead or other.is_dead or one.is_stopped or frozenset((here, there)) in self.cut)
        if is_possible and (here, there) not in self.wires:
            self.wires[here, there] = deque()
            self.tell(here, Came(there))

    def disconnect(self, here: str, there: str) -> None:
        if self.wires.pop((here, there), None) is not None:
            self.tell(here, Went(there))

    def stop(self, name: str) -> None:
        """As SIGSTOP does."""
        self.all[name].is_stopped = True

    def die(self, name: str) -> None:
        voter = self.all[name]
        for here, there in [each for each in self.wires if name in each]:
            self.disconnect(here, there)
        voter.is_dead, voter.is_stopped, voter.later = True, False, []

    def start(self, name: str) -> None:
        """A process begins with what is on disk."""
        voter = self.all[name]
        if not voter.is_dead:
            return
        voter.is_dead = False
        before = voter.state
        term, voted = voter.record
        voter.anew = {}
        voter.state = ReplicaState(
            name=name,
            seats=self.names,
            counting=counting(voter.log[index] for index in sorted(voter.log)),
            term=term,
            voted=voted,
            runs=list(before.runs),
            last=before.last,
            dropped=before.dropped,
        )
        core.begin(voter.state, voter.local_s(self.now_s))

    def deliver(self, here: str, there: str) -> bool:
        """Hand over the oldest message of a connection."""
        wire = self.wires.get((here, there))
        if not wire or frozenset((here, there)) in self.cut:
            return False
        to, message = wire[0]
        if self.all[to].is_stopped:
            return False
        wire.popleft()
        self.tell(to, Heard(there if to == here else here, message))
        return True

    def deliver_all(self) -> None:
        """Hand over all that can be."""
        while sum(self.deliver(*wire) for wire in list(self.wires)):
            pass

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        for name in self.names:
            self.tell(name, Tick())

    def settle(self, seconds: float) -> None:
        """All is well for so long."""
        self.cut.clear()
        for name in self.names:
            self.go_on(name)
            self.start(name)
        for _ in range(int(seconds * 4)):
            for name in self.names:
                self.start(name)
            for here in self.names:
                for there in self.names:
                    if here != there:
                        self.connect(here, there)
            self.deliver_all()
            self.wait(0.25)

    def leader(self) -> str:
        """Return who leads beyond doubt; empty: nobody."""
        found = [n for n, v in self.all.items() if not v.is_dead and v.state.may_act(v.local_s(self.now_s))]
        assert len(found) <= 1, f"{found} lead at {self.now_s}"
        return found[0] if found else ""

    def random_step(self) -> None:
        roll, one, other = self.random.random(), *self.random.sample(self.names, 2)
        if roll < 0.55:
            for _ in range(self.random.randint(1, 8)):
                wires = sorted(each for each, wire in self.wires.items() if wire)
                if wires:
                    self.deliver(*self.random.choice(wires))
        elif roll < 0.70:
            self.wait(self.random.choice((0.1, 0.5, 1.0, 3.0, 9.0)))
        elif roll < 0.78:
            self.write(self.leader() or one)
        elif roll < 0.90:
            self.connect(one, other)
        else:
            self._break(roll, one, other)
        self.leader()

    def _break(self, roll: float, one: str, other: str) -> None:
        if roll < 0.92:
            self.disconnect(one, other)
        elif roll < 0.94:
            self.cut ^= {frozenset((one, other))}
        elif roll < 0.955:
            self.go_on(one) if self.all[one].is_stopped else self.stop(one)
        elif roll < 0.9575:
            self.tell(self.leader() or one, Resign())
        elif roll < 0.97:
            self.die(one)
        elif roll < 0.985:
            self.start(one)
        elif roll < 0.99:
            self.tell(self.leader() or one, Leaves(other, self.random.random() < 0.5))
        elif roll < 0.995:
            self.drop(one)
        else:
            self.calm(self.random.choice((5.0, 60.0)))

    def calm(self, seconds: float) -> None:
        """Whatever is broken stays so; all else is quick."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            for here in self.names:
                for there in self.names:
                    if here != there:
                        self.connect(here, there)
            self.deliver_all()
            self.wait(1.0)
            self.leader()
            if self.random.random() < 0.1:
                self.write(self.leader())

    # What they do.

    def _do(self, voter: Voter, actions: list[Action]) -> None:
        for action in actions:
            self._store(voter, action)
            match action:
                case Record():
                    voter.record = (voter.state.term, voter.state.voted)
                case Say(to=to, message=message):
                    self._send(voter.name, to, message)
                case Ship(to=to, message=append):
                    self._send(voter.name, to, self._filled(voter, append))
                case Committed(index=index):
                    self._check_committed(voter, index)
                case Lead():
                    self.elections += 1
                    assert self.led.setdefault(voter.state.term, voter.name) == voter.name
                    self._check_has_all(voter)
                    self.write(voter.name)
                case StopLeading(why=why):
                    self.said.append((self.now_s, voter.name, why))
                    self._arrive(voter.name)
                    self.die(voter.name)
                case _:
                    pass

    def _arrive(self, name: str) -> None:
        """What a process has sent may arrive after its end."""
        if self.last_words or (self.last_words is None and self.random.random() < 0.5):
            for wire in [each for each in self.wires if each[0] == name]:
                while self.deliver(*wire):
                    pass

    def _store(self, voter: Voter, action: Action) -> None:
        match action:
            case Cut(after=after):
                assert [i for i, each in voter.log.items() if i > after and self.truth.get(i) == each] == []
                voter.log = {index: each for index, each in voter.log.items() if index <= after}
            case Store(entries=entries):
                voter.log.update({each.index: each for each in entries})
            case StoreAnew():
                voter.anew = {} if action.begins else voter.anew
                voter.anew.update({each.index: each for each in action.entries})
                if action.is_whole:
                    voter.log = voter.anew
            case _:
                pass

    def _send(self, here: str, to: str, message: Message) -> None:
        is_request = isinstance(message, (Append, AskVote, Resigned))
        wire = self.wires.get((here, to) if is_request else (to, here))
        if wire is not None:
            wire.append((to, message))

    def _filled(self, voter: Voter, append: Append) -> Append:
        most = append.through if append.runs else voter.state.last
        found = [voter.log[i] for i in range(append.after + 1, most + 1) if i in voter.log][: self.batch]
        if append.runs and not found:
            return append
        return msgspec.structs.replace(append, entries=tuple(found))

    def _check_committed(self, voter: Voter, upto: int) -> None:
        for index in range(1, upto + 1):
            entry = voter.log.get(index)
            assert voter.state.term_at(index)
            if entry is not None:
                assert self.truth.setdefault(index, entry) == entry, f"{voter.name} has another entry {index}"

    def _check_has_all(self, voter: Voter) -> None:
        # One whose last vote was late leads in a term that is over: nobody answers it, and it commits nothing.
        for index, entry in self.truth.items():
            if entry.term > voter.state.term:
                continue
            assert voter.state.term_at(index) == entry.term, f"{voter.name} leads without entry {index}"
            assert voter.log.get(index, entry) == entry
