"""What can be wrong with a version of code, by whose fault."""

from __future__ import annotations

from robust_run.errors import PlatformError, UserError


class CodeError(UserError):
    """A tree, a path or an update that is not taken: nothing was changed."""


class TooMuchError(CodeError):
    """A folder holds more than code."""


class CodeStoreError(PlatformError):
    """The store of versions cannot be written, or what it holds is damaged."""


class LackingError(CodeStoreError):
    """A version, or part of it, is not here."""
