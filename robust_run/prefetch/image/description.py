"""What an image that we made tells about itself, in a file in its root."""

from __future__ import annotations

from typing import Literal

import msgspec

#: The file's name.
DESCRIPTION = ".robust-image.json"


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """How the image's programs want to be run."""

    schema: Literal["robust-image"] = "robust-image"
    env: tuple[str, ...] = ()
    """`NAME=VALUE` each: what programs in it expect."""
    working_dir: str = "/"
