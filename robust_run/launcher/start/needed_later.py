"""What processes of a job may need long after its start and import ahead of need (see `robust_run.imported_ahead`).

`tests/launcher/start/test_needed_later.py` sees to it that what these rooms import late is here.
"""

from __future__ import annotations

from collections.abc import Callable

from robust_run import imported_ahead
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.tracer.files.arming import keep

Later = Callable[[float, Callable[[], None]], object]

#: Acts on a node: evidence, the end of an attempt and the start of the next, what is seen of ranks that hang.
AGENT = tuple(
    "launcher.agent health launcher.records launcher.model launcher.control launcher.start.many tracer "
    "report.summary mounts.table terminal ckpt_io.memory.node_memory ckpt_io.newest_far ckpt_io.ahead.area "
    "launcher.controller.leadership".split()
)
#: Decides: verdicts, restarts, the ladder, what is said, and answers people. First what no failure can do without.
CONTROLLER = tuple(
    "launcher.core launcher.records launcher.controller health report fleet launcher.start.fleet_memory "
    "launcher.start.controller_records tracer launcher.model launcher.control launcher.operator.pages "
    "launcher.operator.views launcher.operator.gauges launcher.operator.reading launcher.operator.server mounts.table "
    "launcher.agent.workers.this_machine launcher.agent.code_versions".split()
)
#: They run in processes of their own, or in workers.
ELSEWHERE = tuple(
    "tracer.arm tracer.plugin tracer.native health.commands health.diagnostics health.outliers health.sensors.every "
    "launcher.agent.warm.start launcher.agent.warm.process launcher.agent.warm.standby launcher.agent.warm.become "
    "launcher.agent.warm.run launcher.agent.workers.store_process".split()
)


def import_ahead(later: Later, *rooms: str) -> None:
    """Import these rooms a while after the start."""
    _later(later, rooms, None)


def prepare_agent(later: Later, spec: JobSpec, run_directory: RunDirectory, *rooms: str) -> None:
    """Do the same for an agent, and keep what arms the workers of later attempts."""
    memory = run_directory.memory
    seen_by_workers = spec.image is None and spec.setup is None
    _later(later, rooms, (lambda: keep(memory)) if seen_by_workers and memory != run_directory.path else None)


def _later(later: Later, rooms: tuple[str, ...], first: Callable[[], None] | None) -> None:
    later(
        imported_ahead.AFTER_S,
        lambda: imported_ahead.begin(rooms, ELSEWHERE, first),
    )
