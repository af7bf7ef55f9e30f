"""Reads the rules' file: one TOML file that changes rows of the table, limits, and intervals and thresholds of the sensors.

    max_evict_share = 0.05

    [rules."network.link_down"]     # the quotes matter: the name has a dot
    count = 3
    within_s = 600

    [sensors.gpu]
    hot_celsius = 85

    [outliers]
    hold = 2

    [ladder]
    half_life_s = 86400

What is not named keeps its default. A name, a field or a value that is not known is refused, with the nearest that is.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

import msgspec

from robust_run import settings_file
from robust_run.errors import UserError
from robust_run.health.rules.names import is_known, names
from robust_run.health.rules.table import DEFAULTS
from robust_run.health.rules.types import Book, Comparing, Confidence, HealthRule, LadderTimes, RuleLimits, Rung
from robust_run.health.sensors.files import read_text
from robust_run.health.sensors.settings import SensorSettings

MOST_FILE_BYTES = 1 << 20
_TABLES = ("rules", "sensors", "outliers", "ladder")
_LIMITS = tuple(field.name for field in msgspec.structs.fields(RuleLimits))
_RULE_FIELDS = tuple(field.name for field in msgspec.structs.fields(HealthRule))
RUNGS: tuple[str, ...] = get_args(Rung)
CONFIDENCES: tuple[str, ...] = get_args(Confidence)
_T = TypeVar("_T")


def load(path: str) -> Book:
    """Return the defaults as a file changes them; an empty path changes nothing. Raises UserError."""
    if not path:
        return Book(rules=DEFAULTS)
    try:
        text = read_text(path, MOST_FILE_BYTES + 1)
    except OSError as error:
        raise UserError(f"the rules' file {path} cannot be read: {error.strerror}") from error
    if len(text.encode("utf-8", "replace")) > MOST_FILE_BYTES:
        raise UserError(
            f"the rules' file {path} is larger than {MOST_FILE_BYTES >> 20} MiB; it is hardly the right one"
        )
    return parse(text, path)


def parse(text: str, path: str = "rules.toml") -> Book:
    """Return the defaults as a text changes them; `path` is for messages. Raises UserError."""
    try:
        return _book(settings_file.parsed(text, path), path)
    except UserError as error:
        raise UserError(_shown(str(error))) from error


def _shown(text: str) -> str:
    """Return a message as it may be shown on a terminal, on one line: names in the file are untrusted."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _book(content: dict[str, Any], path: str) -> Book:
    for name in content:
        if name not in (*_TABLES, *_LIMITS):
            raise UserError(f"{path}: {name!r} is not known{_nearest(name, (*_TABLES, *_LIMITS))}")
    rows = _table(content.get("rules", {}), "rules", path)
    sensors = _table(content.get("sensors", {}), "sensors", path)
    outliers = _table(content.get("outliers", {}), "outliers", path)
    ladder = _table(content.get("ladder", {}), "ladder", path)
    return Book(
        rules={**DEFAULTS, **{name: _rule(name, row, path) for name, row in rows.items()}},
        limits=_convert({name: content[name] for name in _LIMITS if name in content}, RuleLimits, path, "", _LIMITS),
        sensors=_sensors(sensors, path),
        outliers=_convert(outliers, Comparing, path, "[outliers]", Comparing.__struct_fields__),
        ladder=_convert(ladder, LadderTimes, path, "[ladder]", LadderTimes.__struct_fields__),
    )


def _table(value: object, name: str, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{path}: {name} is a {type(value).__name__}, and must be a table: [{name}...]")
    return value


def _rule(name: str, row: object, path: str) -> HealthRule:
    where = f'[rules."{name}"]'
    if not isinstance(row, dict):
        raise UserError(f"{path}: {where} must be a table with some of: {', '.join(_RULE_FIELDS)}")
    nested = next((key for key, value in row.items() if isinstance(value, dict)), None)
    if nested is not None:
        raise UserError(f'{path}: [rules.{name}.{nested}]: write the name in quotes: [rules."{name}.{nested}"]')
    base = _nearest_default(name)
    if base is None or not is_known(name):
        raise UserError(f"{path}: {where}: no event has such a name{_nearest(name, names())}")
    if "rung" in row and row["rung"] not in RUNGS:
        raise UserError(f"{path}: {where}: rung = {_said(row['rung'])}: a rung is one of {', '.join(RUNGS)}")
    if "confidence" in row and row["confidence"] not in CONFIDENCES:
        levels = ", ".join(CONFIDENCES)
        raise UserError(f"{path}: {where}: confidence = {_said(row['confidence'])}: it is one of {levels}")
    changed = {**msgspec.to_builtins(base), **row}
    rule = _convert(changed, HealthRule, path, where, _RULE_FIELDS)
    if rule.count > 1 and rule.within_s <= 0:
        raise UserError(f"{path}: {where}: count = {rule.count} needs within_s, in seconds")
    return rule


def _said(value: object) -> str:
    """Return a value as a message shows it."""
    return repr(value)[:60]


def _nearest_default(name: str) -> HealthRule | None:
    """The row of that name, or that of its longest beginning: `gpu.xid.31` refines `gpu.xid`."""
    while name:
        if name in DEFAULTS:
            return DEFAULTS[name]
        name = name.rpartition(".")[0]
    return None


def _sensors(tables: dict[str, Any], path: str) -> SensorSettings:
    known = {field.name: type(field.default) for field in msgspec.structs.fields(SensorSettings)}
    changed: dict[str, Any] = {}
    for name, table in tables.items():
        if name not in known:
            raise UserError(f"{path}: [sensors.{name}]: there is no such sensor{_nearest(name, known)}")
        fields = tuple(field.name for field in msgspec.structs.fields(known[name]))
        changed[name] = _convert(_table(table, f"sensors.{name}", path), known[name], path, f"[sensors.{name}]", fields)
    return msgspec.structs.replace(SensorSettings(), **changed)


def _convert(values: Mapping[str, Any], kind: type[_T], path: str, where: str, fields: tuple[str, ...]) -> _T:
    for name in values:
        if name not in fields:
            raise UserError(f"{path}: {where}: {name!r} is not known{_nearest(name, fields)}")
    try:
        return msgspec.convert(dict(values), type=kind)
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: {where}: {_plain(str(error))}".replace(": : ", ": ")) from error


def _plain(message: str) -> str:
    """`Expected ... - at `$.count`` as `count: expected ...`."""
    text, _, at = message.partition(" - at `$.")
    return f"{at.rstrip('`')}: {text[:1].lower()}{text[1:]}" if at else message


def _nearest(name: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    if near:
        return f"; the nearest: {', '.join(near)}"
    return f"; known: {', '.join(list(known)[:20])}{', ...' if len(known) > 20 else ''}"
