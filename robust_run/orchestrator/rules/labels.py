"""Labels of nodes: what `where` of a role names, and `--node-label` gives. Pure."""

from __future__ import annotations

import re

from robust_run.errors import UserError

MOST_LABELS = 16

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def is_label(text: str) -> bool:
    """Whether it may be one."""
    return _LABEL.fullmatch(text) is not None


def parse(text: str) -> tuple[str, ...]:
    """Return what --node-label says, `gpu` or `gpu,fast`. Raises UserError."""
    labels = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for label in labels:
        if not is_label(label):
            raise UserError(f"--node-label {label[:80]!r} is no label: letters, digits, dots, - and _, at most 63")
    if len(labels) > MOST_LABELS:
        raise UserError(f"--node-label has {len(labels)} labels; at most {MOST_LABELS} are possible")
    return labels


def of_component(number: int) -> str:
    """Return the label of the nodes of a component of a heterogeneous job of Slurm."""
    return f"het-{number}"
