"""Writes incidents: one JSON file per failure, whole or not at all."""

from __future__ import annotations

import os

import msgspec

from robust_run.atomic_file import write_file
from robust_run.report.regular import open_regular
from robust_run.report.types import Incident
from robust_run.tracer.types import Scene


def write(path: str, incident: Incident) -> None:
    """Write or replace the incident's file in one step. Raises OSError."""
    _replace(path, msgspec.json.format(msgspec.json.encode(incident), indent=2) + b"\n")


def write_scene(path: str, scene: Scene) -> None:
    """Write what an incident was concluded from. Raises OSError."""
    _replace(path, msgspec.json.encode(scene) + b"\n")


def _replace(path: str, content: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_file(path, content, durable=True)


def read_scene(path: str) -> Scene:
    """Return what an incident was concluded from. Raises OSError, or msgspec.MsgspecError for a file of another shape."""
    with open_regular(path) as file:
        return msgspec.json.decode(file.read(), type=Scene)


def read(path: str) -> Incident:
    """Return an incident. Raises OSError, or msgspec.MsgspecError for a file of another shape."""
    with open_regular(path) as file:
        return msgspec.json.decode(file.read(), type=Incident)


#: Clocks that were set between an onset and a look at the ranks.
SET_S = 2.0


def is_older(scene: Scene, incident: Incident) -> bool:
    """Whether ranks were looked at before an incident began: that explains another one. Scenes without a time may be."""
    return bool(scene.at_unix_s) and scene.at_unix_s < incident.onset_s - SET_S
