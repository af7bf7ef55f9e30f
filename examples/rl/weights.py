"""How weights come from a trainer to rollouts: a file that is replaced whole, with the version of the policy. No code in it.

Rollouts follow the file, whether its version grew or not: a trainer that went back to a checkpoint publishes an older one.
"""

from __future__ import annotations

import hashlib
import os

import msgspec
import torch
from torch import nn


class Weights(msgspec.Struct, frozen=True, array_like=True):
    """Tensors of 32-bit floats by name: shape and bytes."""

    version: int
    tensors: dict[str, tuple[tuple[int, ...], bytes]]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Weights)


def publish(model: nn.Module, version: int, path: str) -> None:
    """Replace the file. Raises OSError."""
    tensors = {name: (tuple(each.shape), each.numpy().tobytes()) for name, each in model.state_dict().items()}
    aside = f"{path}.{os.getpid()}"
    with open(aside, "wb") as file:
        file.write(_encoder.encode(Weights(version, tensors)))
    os.replace(aside, path)


def run_folder() -> str:
    """Return the folder of the whole job: members' runs are in its `members`."""
    return os.path.dirname(os.path.dirname(os.environ["ROBUST_RUN_DIR"]))


class Follower:
    """A model that follows the file."""

    def __init__(self, model: nn.Module, path: str) -> None:
        self.model, self.version = model, -1
        self._path, self._seen = path, (0, 0)

    def look(self) -> int:
        """Load what was published, if that is another version; return the version that the model has now. Raises OSError."""
        with open(self._path, "rb") as file:
            status = os.fstat(file.fileno())
            seen = (status.st_ino, status.st_mtime_ns)
            if seen == self._seen:
                return self.version
            found = _decoder.decode(file.read())
        self.model.load_state_dict(
            {
                name: torch.frombuffer(bytearray(data), dtype=torch.float32).view(shape)
                for name, (shape, data) in found.tensors.items()
            }
        )
        self._seen, self.version = seen, found.version
        return self.version


def digest(model: nn.Module) -> str:
    """Return the SHA-256 of all weights."""
    whole = hashlib.sha256()
    for each in model.state_dict().values():
        whole.update(each.numpy().tobytes())
    return whole.hexdigest()
