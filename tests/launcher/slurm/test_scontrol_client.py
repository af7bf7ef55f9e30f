"""Who is spared when attempts end because Slurm is asked by it, and who is not any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from robust_run.slurm.scontrol_client import ScontrolClient

NODE_HAS = 7


def test_a_number_that_another_process_has_by_now_is_not_spared() -> None:
    started = {4711: 100}
    node: Any = SimpleNamespace(spec=SimpleNamespace(slurm=None), spare=lambda: [NODE_HAS])
    loop: Any = None
    client = ScontrolClient(node, loop, {}, started=lambda pid: started.get(pid, 0))
    client.spare(4711)
    assert node.spare() == [NODE_HAS, 4711]
    started.clear()  # it has ended; who asked collects its exit status
    assert node.spare() == [NODE_HAS, 4711]
    started[4711] = 90_000  # a process of the next attempt
    assert node.spare() == [NODE_HAS]
