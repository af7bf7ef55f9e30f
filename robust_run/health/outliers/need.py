"""What is imported only here: numpy, which robust-run can do without."""

from __future__ import annotations

from robust_run.errors import UserError


def need_numpy() -> None:
    """Raise UserError where numpy is missing, before anything else fails in a less helpful way."""
    try:
        import numpy  # noqa: F401
    except ImportError:
        raise UserError("comparing machines needs numpy, which is not installed; pip install numpy") from None
