"""Where the nodes of a step meet: a few ports that each of them can compute. Pure."""

from __future__ import annotations

from robust_run.slurm.rules.types import SlurmStep

FIRST, COUNT = 15_000, 16_000
"""Below what kernels give to outgoing connections (from 32768 on), above what services use."""
CANDIDATES = 6


def ports_of(step: SlurmStep) -> tuple[int, ...]:
    """Return ports to try, in this order; other jobs, steps and restarts have others, except by chance.

    A start after a requeue has new ones: what is left of the old one on a node that was cut off cannot be taken for its peer.
    """
    import zlib  # in the interpreter; hash() differs from process to process

    ports: list[int] = []
    number = 0
    while len(ports) < CANDIDATES:
        seed = f"{step.job}.{step.step}.{step.restart}.{number}".encode()
        port = FIRST + zlib.crc32(seed) % COUNT
        number += 1
        if port not in ports:
            ports.append(port)
    return tuple(ports)
