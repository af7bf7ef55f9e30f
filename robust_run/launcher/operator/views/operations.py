"""Operator requests: the event for the core, what to say, or why not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from robust_run.launcher.controller.handle_types import JobFacts
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.model.events import Event, SignalReceived
from robust_run.launcher.model.node_events import NodeEvicted, NodeReadmitted, RestartAsked
from robust_run.launcher.operator.views.show import plural
from robust_run.launcher.operator.views.status_types import ActionView

SIGTERM = 15

#: Characters of a reason or a name that are kept.
LONGEST = 500

_WAITS = "the job will wait for a node"


class OperatorWish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of every action. What is misspelled is refused, not ignored."""

    reason: str = ""
    by: str = ""
    force: bool = False
    """Evict a host that the job does not know (yet)."""
    now: bool = False
    """Stop without a grace for the workers."""


class OperationRefusedError(Exception):
    """A wish that cannot be granted: an HTTP status and a line for the person."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """What to tell the core (None: nothing, it is so already), and the answer."""

    event: Event | None
    answer: ActionView


def evict(facts: JobFacts, state: JobState, name: str, wish: OperatorWish, now_unix_s: float) -> Granted:
    """Take a host out of the job. Raises RefusedError for an unknown one, unless forced, or where no other could come."""
    host = evictable(facts.policy, state, name, force=wish.force)
    if host in state.evicted:
        done = f"{host} is evicted already: {state.evicted[host].reason or 'no reason given'}"
        return Granted(event=None, answer=ActionView(done=done, node=host))
    event = NodeEvicted(name=host, reason=one_line(wish.reason), by=_by(wish), at_unix_s=now_unix_s)
    used = any(state.standing(member) == "active" for member in state.members.values() if member.info.name == host)
    warning = eviction_warning(facts, state, host)
    then = "" if warning.endswith(_WAITS) else " and the job goes on without it"
    done = f"evicted {host}" + (f"; attempt {state.attempt} is ended{then}" if used else "")
    if used and state.is_stopping:
        done = f"evicted {host}; the job is being stopped anyway"
    return Granted(event=event, answer=ActionView(done=done, warning=warning, node=host))


def evictable(policy: CorePolicy, state: JobState, name: str, *, force: bool = False) -> str:
    """Return the host that an eviction would take out. Raises RefusedError as `evict` does."""
    _check_alive(state)
    if not policy.many:
        raise OperationRefusedError(409, "a job of one node cannot go on without it; robust stop ends the job")
    host = one_line(name) if force else ""
    host = _known_host(state, name) or host
    if not host:
        raise OperationRefusedError(404, _unknown(name, (member.info.name for member in state.members.values())))
    return host


def eviction_warning(facts: JobFacts, state: JobState, host: str) -> str:
    """Return what the job will lack without this host; empty if nothing."""
    if state.is_stopping or state.is_over:
        return ""
    rest = [
        member
        for member in state.members.values()
        if member.present and member.info.name != host and member.info.name not in state.evicted
    ]
    if len(rest) == state.usable:
        return ""  # it was not in use
    standbys = sum(state.standing(member) == "standby" for member in rest) if state.is_going else 0
    spare = plural(standbys, "standby")
    if len(rest) < facts.policy.fewest:
        return f"{len(rest)} of {facts.policy.fewest} needed nodes left, {spare}: {_WAITS}"
    at_work = len(state.layout) if state.layout and state.is_going else facts.policy.most
    if len(rest) < at_work:
        left = plural(len(rest), "node")
        return f"{left} left, {spare}: the job will go on with {left} instead of {at_work}"
    return ""


def readmit(state: JobState, name: str, wish: OperatorWish) -> Granted:
    """Allow an evicted host again, or one that was set aside. Raises RefusedError if it is not evicted."""
    host = readmittable(state, name)
    there = any(member.present and member.info.name == host for member in state.members.values())
    then = "it stands by" if there else "it is used when it joins"
    return Granted(
        event=NodeReadmitted(name=host, by=_by(wish)), answer=ActionView(done=f"readmitted {host}; {then}", node=host)
    )


def readmittable(state: JobState, name: str) -> str:
    """Return the host that would be allowed again, evicted or set aside. Raises RefusedError as `readmit` does."""
    _check_alive(state)
    aside = (member.info.name for member in state.members.values() if member.aside and member.present)
    host = match(name, dict.fromkeys((*state.evicted, *aside)))
    if not host:
        if not state.evicted:
            raise OperationRefusedError(404, f"{one_line(name)!r} is not evicted, nor is any other host")
        raise OperationRefusedError(404, f"{one_line(name)!r} is not evicted; evicted are {listed(state.evicted)}")
    return host


def restart(state: JobState, wish: OperatorWish) -> Granted:
    """Have a new attempt. Raises RefusedError where none runs."""
    _check_alive(state)
    if not state.is_going:
        raise OperationRefusedError(409, f"there is nothing to restart: {_now(state)}")
    done = f"attempt {state.attempt} is ended and started again as attempt {state.attempt + 1}"
    return Granted(event=RestartAsked(reason=one_line(wish.reason), by=_by(wish)), answer=ActionView(done=done))


def stop(facts: JobFacts, state: JobState, wish: OperatorWish) -> Granted:
    """End the job; with `now` its workers get no time. Raises RefusedError if it is over."""
    _check_alive(state)
    if state.stop_signal is not None and not wish.now:
        return Granted(event=None, answer=ActionView(done="the job is being stopped already; --now ends it at once"))
    grace = "at once" if wish.now else f"the workers have {facts.policy.shutdown_timeout_s:g} s to end"
    event = SignalReceived(signal=SIGTERM, again=wish.now, by=_by(wish))
    return Granted(event=event, answer=ActionView(done=f"stopping: {grace}"))


def match(name: str, hosts: Iterable[str]) -> str:
    """Return the host of this name, or the only one whose name begins with it up to a dot; else nothing."""
    known = set(hosts)
    if name in known:
        return name
    short = [host for host in known if host.partition(".")[0] == name]
    return short[0] if len(short) == 1 else ""


def near(name: str, hosts: Iterable[str], most: int = 3) -> list[str]:
    """Return the hosts that are spelled most alike: by what they share at both ends, which is how host names differ."""
    typed = name.lower()
    scored = [(_alike(typed, host.lower()), host) for host in sorted(set(hosts))]
    enough = max(len(name) * 0.8, 1)
    return [host for score, host in sorted(scored, key=lambda pair: -pair[0])[:most] if score >= enough]


def listed(names: Iterable[str], most: int = 8) -> str:
    """Return names, a comma between them, and how many are left out."""
    all_of_them = list(names)
    more = f" and {len(all_of_them) - most} more" if len(all_of_them) > most else ""
    return ", ".join(one_line(name) for name in all_of_them[:most]) + more


def one_line(text: str) -> str:
    """Return text from outside as it may be shown on a terminal and kept in the journal."""
    return "".join(char if char.isprintable() else " " for char in text[:LONGEST]).strip()


def _known_host(state: JobState, name: str) -> str:
    member = state.members.get(name)
    if member is not None:
        return member.info.name
    return match(name, [*state.evicted, *(member.info.name for member in state.members.values())])


def _unknown(name: str, hosts: Iterable[str]) -> str:
    alike = near(name, hosts)
    hint = f"; did you mean {' or '.join(alike)}?" if alike else "; robust nodes lists them"
    return f"no node {one_line(name)!r} in this job{hint} (--force forbids a host that has not joined)"


def _alike(one: str, other: str) -> int:
    return _shared(one, other) + _shared(one[::-1], other[::-1])


def _shared(one: str, other: str) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def _check_alive(state: JobState) -> None:
    if state.is_over:
        raise OperationRefusedError(409, f"the job is over{f' ({state.finish.outcome})' if state.finish else ''}")


def no_rank_runs(state: JobState) -> OperationRefusedError:
    """Return the refusal of what looks at ranks while there are none."""
    return OperationRefusedError(409, f"no rank runs now: the job is {state.phase}")


def _now(state: JobState) -> str:
    return {
        "new": "the job is starting",
        "diagnosing": "the nodes are being checked, and the job goes on by itself when that is over",
        "replaying": "groups of nodes replay the failure, and the job goes on by itself when that is over",
        "gathering": "the job waits for nodes, and starts by itself when they are there",
        "ending": f"attempt {state.attempt} is being ended",
        "stopping": "the job is being stopped",
    }[state.phase]


def _by(wish: OperatorWish) -> str:
    return one_line(wish.by) or "operator"


def number_in(query: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    """Return a number of a question. Raises RefusedError for what is none, or beyond its limits."""
    text = query.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise OperationRefusedError(400, f"{name}={one_line(text)!r} is no number from {least:g} to {most:g}")
    return value
