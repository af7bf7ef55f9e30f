"""Memory that a GPU copies into directly (page-locked), where there is CUDA. Without it, copies are only slower."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

#: cudaHostRegisterPortable: for the devices of all contexts.
_PORTABLE = 1


def cudart() -> Any:
    """Return torch's view of CUDA's runtime; None: there is none, or no program here has used it."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        with suppress(Exception):
            return torch.cuda.cudart()
    return None


class Pinned:
    """Memory that is page-locked until it is closed, or was not to be.

    `library` has cudaHostRegister and cudaHostUnregister, as `cudart()` does. Whatever it says or raises is no error.
    `forget` is called where it refused.
    """

    def __init__(self, at: int, size_bytes: int, library: Any, forget: Callable[[], None] | None = None) -> None:
        self.is_pinned = False
        self._at, self._library = at, library
        if library is not None and size_bytes:
            with suppress(Exception):
                self.is_pinned = int(library.cudaHostRegister(at, size_bytes, _PORTABLE)) == 0
                if not self.is_pinned:
                    (forget or _forget)()

    def close(self) -> None:
        """Let the pages go, before the memory is given back."""
        if self.is_pinned:
            self.is_pinned = False
            with suppress(Exception):
                self._library.cudaHostUnregister(self._at)


def _forget() -> None:
    """Have the runtime forget its last error: torch asks for it after each kernel, and the program's next one would raise it."""
    if torch.cuda.is_initialized():
        with suppress(Exception):  # this is the kernel that it is raised in
            torch.zeros(1, device="cuda")


#: Where memory is page-locked, as an argument.
Library = Callable[[], Any]
