"""startup.json: written whole or not at all, and read with care."""

from __future__ import annotations

import msgspec

from robust_run.atomic_file import write_file
from robust_run.decoders import json_decoder
from robust_run.errors import PlatformError
from robust_run.report.files import open_regular
from robust_run.report.startup.types import SCHEMA, Startup

NAME = "startup.json"
#: No file of ours is as large.
LARGEST_BYTES = 8 << 20


class OtherVersionError(PlatformError):
    """The file is of a version of robust-run that writes another schema."""


class _Version(msgspec.Struct):
    schema: int = SCHEMA


def write(path: str, startup: Startup) -> None:
    """Write or replace the file in one step. Raises OSError."""
    write_file(path, msgspec.json.encode(startup) + b"\n")


def read(path: str) -> Startup | None:
    """Return what a run directory has; None if there is nothing. Raises PlatformError for what is no such file, and
    OtherVersionError."""
    try:
        with open_regular(path) as file:
            content = file.read(LARGEST_BYTES + 1)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise PlatformError(f"cannot read {path!r}: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > LARGEST_BYTES:
        raise PlatformError(f"{path!r} is larger than {LARGEST_BYTES >> 20} MiB: it is not of robust-run; move it away")
    try:
        schema = json_decoder(_Version).decode(content).schema
        if schema != SCHEMA:
            raise OtherVersionError(
                f"{path!r} has schema {schema}, and this robust-run reads {SCHEMA}; use the newer one"
            )
        return json_decoder(Startup).decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PlatformError(f"{path!r} is not a startup.json of this version of robust-run: {error}") from error
