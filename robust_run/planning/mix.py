"""Kinds of faults and how often they come: the default, and a file that changes it.

lemons = 0.02

[faults.hang]                 # a kind of the default: what is not named stays as it is
per_1000_node_days = 0.3

[faults.flaky_nic]            # a new one
shows = "alert"
trouble = "network.link_flap"
per_1000_node_days = 0.05
detect = { median = 30, p95 = 60 }

[times]
repair = { median = 21600, p95 = 172800 }
"""

from __future__ import annotations

import difflib
from typing import Any, get_args

import msgspec

from robust_run import settings_file
from robust_run.errors import UserError
from robust_run.health.rules import names as sensor_events
from robust_run.health.types import Trouble
from robust_run.planning.words import KILLED, FaultKind, Mix, Saving, Spread, Times

#: Explicit failures that evicted a node or restarted the job in ByteRobust's dense job: 128 in 3 months of 1,200 nodes, per 1,000
#: node-days; implicit ones 15. They are divided among symptoms as table 1 has them.
EXPLICIT, IMPLICIT = 128 / (1.2 * 90), 15 / (1.2 * 90)
#: A switch of 32 nodes is lost as often as ByteRobust weighs it: 1 in 100 of these.
SWITCHES = round(EXPLICIT / 100, 6)
#: Updates of its code 20, and 12 that were taken back, in the 3 months of that job.
UPDATES, BAD_UPDATES = 20 / 90, 12 / 90
_SHARES = {
    "cuda_error": 36.1,
    "cpu_overload": 11.0,
    "host_memory": 10.1,
    "disk_space": 5.0,
    "infiniband": 2.9,
    "mount": 2.1,
    "storage": 2.0,
    "container": 1.4,
    "kernel_panic": 0.4,
    "gpu_memory": 0.3,
    "external_service": 0.2,
    "gpu_lost": 0.1,
    "disk_fault": 0.1,
}
_IMPLICIT = {"hang": 9.9, "slow": 0.8, "nan": 0.3}
_SOON, _SENSOR = Spread(2.0, 10.0), Spread(10.0, 30.0)
_KINDS: dict[str, FaultKind] = {
    "cuda_error": FaultKind(shows="crash", trouble="cuda", detect=_SOON, stays=0.6, found=0.8),
    "cpu_overload": FaultKind(shows="crash", trouble="peer", detect=Spread(30.0, 120.0)),
    "host_memory": FaultKind(shows="crash", trouble="host_memory", detect=_SOON),
    "disk_space": FaultKind(shows="crash", trouble="storage", detect=_SOON, stays=0.2, found=0.9),
    "infiniband": FaultKind(shows="alert", trouble="network.link_down", detect=Spread(30.0, 60.0), stays=1.0),
    "mount": FaultKind(shows="alert", trouble="mount.stale", detect=Spread(30.0, 60.0), stays=1.0),
    "storage": FaultKind(shows="crash", trouble="storage", detect=Spread(30.0, 120.0), lasts=Spread(60.0, 600.0)),
    "container": FaultKind(shows="crash", trouble="native_crash", detect=_SOON, stays=0.2),
    "kernel_panic": FaultKind(shows="lost", detect=Spread(4.0, 5.0), stays=0.3),
    "gpu_memory": FaultKind(shows="alert", trouble="gpu.ecc", detect=_SENSOR, stays=1.0),
    "external_service": FaultKind(shows="crash", trouble="storage", detect=Spread(30.0, 120.0)),
    "gpu_lost": FaultKind(shows="alert", trouble="gpu.lost", detect=_SENSOR, stays=1.0),
    "disk_fault": FaultKind(shows="alert", trouble="disk.read_only", detect=_SENSOR, stays=1.0),
    "hang": FaultKind(shows="hang", detect=Spread(8.0, 20.0), stays=0.5, found=0.6, recurs=Spread(3600.0, 43200.0)),
    "slow": FaultKind(shows="slow", detect=Spread(120.0, 600.0), stays=1.0),
    "nan": FaultKind(
        shows="nan",
        trouble="nan",
        detect=Spread(1800.0, 14400.0),
        stays=0.75,
        found=0.7,
        recurs=Spread(1800.0, 14400.0),
    ),
    "switch": FaultKind(
        shows="alert",
        trouble="network.link_down",
        per_1000_node_days=SWITCHES,
        detect=Spread(60.0, 70.0),
        nodes=32,
        lasts=Spread(1800.0, 7200.0),
        repair=Spread(3600.0, 14400.0),
    ),
    "update": FaultKind(shows="update", per_day=UPDATES),
    "bad_update": FaultKind(shows="bad_update", per_day=BAD_UPDATES, detect=Spread(5.0, 60.0)),
}


def _with_rates() -> dict[str, FaultKind]:
    found = dict(_KINDS)
    for shares, rate in ((_SHARES, EXPLICIT), (_IMPLICIT, IMPLICIT)):
        for name, share in shares.items():
            per = round(rate * share / sum(shares.values()), 6)
            found[name] = msgspec.structs.replace(found[name], per_1000_node_days=per)
    return found


DEFAULT = Mix(faults=_with_rates())


class MixFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says."""

    mix: Mix = DEFAULT
    times: Times = Times()
    saving: Saving = Saving()
    named: frozenset[str] = frozenset()
    """What the file sets: `faults.hang.stays`, `times.end`, `lemons`. Nothing else that is known of a cluster changes it."""


def load(path: str) -> MixFile:
    """Return the defaults as a file changes them. Raises UserError: it cannot be read, or says what is not known."""
    return parse(settings_file.read(path, "--mix"), path)


def parse(text: str, path: str = "mix.toml") -> MixFile:
    """Return the defaults as a text changes them; `path` is for messages. Raises UserError."""
    content: dict[str, Any] = settings_file.parsed(text, path)
    own = {name: content.pop(name, {}) for name in ("faults", "times", "saving")}
    for name, table in own.items():
        if not isinstance(table, dict):
            raise UserError(f"{path}: {name} must be a table: [{name}...]")
    named = {name for name in content if name != "faults"}
    named |= {f"{table}.{name}" for table in ("times", "saving") for name in own[table]}
    faults = {**DEFAULT.faults, **{name: _kind(name, row, path) for name, row in own["faults"].items()}}
    return MixFile(
        mix=_changed(DEFAULT, {**content, "faults": faults}, path, ""),
        times=_changed(Times(), own["times"], path, "[times]"),
        saving=_changed(Saving(), own["saving"], path, "[saving]"),
        named=frozenset(named | {f"faults.{kind}.{name}" for kind, row in own["faults"].items() for name in row}),
    )


def scaled(mix: Mix, per_1000_node_days: float) -> Mix:
    """Return a mix whose faults of nodes come so often in all, in the same proportions."""
    now = total(mix)
    if now <= 0:
        raise UserError("--rate needs a mix with faults of nodes: none has per_1000_node_days above 0")
    factor = per_1000_node_days / now
    faults = {
        name: msgspec.structs.replace(kind, per_1000_node_days=kind.per_1000_node_days * factor)
        for name, kind in mix.faults.items()
    }
    return msgspec.structs.replace(mix, faults=faults)


def total(mix: Mix) -> float:
    """Return how often nodes fail in all, per 1,000 node-days."""
    return sum(kind.per_1000_node_days for kind in mix.faults.values())


def _kind(name: str, row: Any, path: str) -> FaultKind:
    where = f"[faults.{name}]"
    if not isinstance(row, dict):
        raise UserError(f"{path}: {where} must be a table")
    base = DEFAULT.faults.get(name)
    if base is None and "shows" not in row:
        near = difflib.get_close_matches(name, DEFAULT.faults, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"{path}: {where} is no kind of the default, and does not say how it shows (shows = ...){hint}")
    changed: FaultKind = _changed(base if base is not None else FaultKind(shows="crash"), row, path, where)
    _check_trouble(changed, path, where)
    return changed


def _check_trouble(kind: FaultKind, path: str, where: str) -> None:
    """Refuse what no rank says and no sensor sees: a plan would take it for something else. Raises UserError."""
    if kind.shows == "crash":
        known, what = (*get_args(Trouble), KILLED), "no trouble of a rank"
        is_known = kind.trouble in known
    elif kind.shows == "alert":
        known, what = sensor_events.names(), "no event of a sensor (docs/health.md)"
        is_known = sensor_events.is_known(kind.trouble)
    else:
        return
    if not is_known:
        near = difflib.get_close_matches(kind.trouble, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"one is {known[1]}"
        raise UserError(f"{path}: {where} trouble = {kind.trouble[:80]!r} is {what}; {hint}")


def _changed(base: Any, changes: dict[str, Any], path: str, where: str) -> Any:
    """Return a Struct with some fields replaced, checked."""
    try:
        return msgspec.convert({**msgspec.to_builtins(base), **msgspec.to_builtins(changes)}, type(base))
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: {where} {error}".replace("  ", " ")) from error
