"""Writes incidents: one JSON file per failure, whole or not at all."""

from __future__ import annotations

import os

import msgspec

from robust_run.atomic_file import write_file
from robust_run.decoders import json_decoder
from robust_run.report.files import read_regular
from robust_run.report.types import Incident
from robust_run.tracer.types import Scene

#: What is larger is no incident, and no scene.
LARGEST_BYTES, LARGEST_SCENE_BYTES = 64 << 20, 512 << 20


def write(path: str, incident: Incident) -> None:
    """Write or replace the incident's file in one step. Raises OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_file(path, msgspec.json.format(msgspec.json.encode(incident), indent=2) + b"\n", durable=True)


def write_scene(path: str, scene: Scene) -> None:
    """Write what an incident was concluded from. Raises OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_file(path, msgspec.json.encode(scene) + b"\n", durable=True)


def read_scene(path: str) -> Scene:
    """Return what an incident was concluded from. Raises OSError, or msgspec.MsgspecError for a file of another shape."""
    return json_decoder(Scene).decode(read_regular(path, LARGEST_SCENE_BYTES))


def read(path: str) -> Incident:
    """Return an incident. Raises OSError, or msgspec.MsgspecError for a file of another shape."""
    return json_decoder(Incident).decode(read_regular(path, LARGEST_BYTES))
