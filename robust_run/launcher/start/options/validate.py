"""From what was typed to a job that can be started: every value checked, every default decided."""

from __future__ import annotations

import math
import signal
from typing import TYPE_CHECKING

import msgspec

from robust_run.errors import UserError
from robust_run.launcher.agent.workers.devices import count_workers
from robust_run.launcher.model.job import NO_PORT, JobPolicy, JobSpec, ManyNodes, OutputStreams
from robust_run.launcher.model.job_parts import ImageUse, SetupUse
from robust_run.launcher.model.world import World, absolute
from robust_run.launcher.start.options.entrypoint import Entrypoint, resolve_entrypoint
from robust_run.launcher.start.options.options import Options
from robust_run.launcher.start.options.rendezvous import (
    Rendezvous,
    is_one_node,
    job_id,
    nothing_for_one_node,
    parse_host,
    parse_http_port,
    resolve_rendezvous,
)
from robust_run.launcher.start.options.run_output import resolve_log_dir, resolve_run_id, resolve_streams

if TYPE_CHECKING:
    from robust_run.launcher.start.options.health_use import HealthUse

MOST_WORKERS = 4096
"""More workers than any node runs: a larger number is a slip of the finger."""

SHORTEST_HANG_S = 1.0
"""Ranks wait for each other all the time; shorter waits say nothing."""

_UNSTOPPABLE = (signal.SIGKILL, signal.SIGSTOP)
DEFAULT_PRELOAD = ("torch", "torch.distributed")
_DEVICE_WORDS = ("auto", "cpu", "gpu", "xpu")

#: Options that say how the ladder goes.
LADDER_OPTIONS = frozenset(("diagnose-checks", "replay", "replay-unit", "admission-checks"))


class _Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """What had to be decided, because it was not typed as it is used or the machine has a say in it."""

    many: ManyNodes | None
    rendezvous: Rendezvous
    end_signals: tuple[int, ...]
    shutdown_timeout_s: float
    image: ImageUse | None
    setup: SetupUse | None
    health: HealthUse | None
    entrypoint: Entrypoint
    nproc: int
    streams: OutputStreams
    log_dir: str | None
    run_id: str
    notes: tuple[str, ...]


def resolve(options: Options, world: World) -> JobSpec:
    """Return the job the options describe; not for --resume, whose job is in a journal.

    With several nodes, the run id and where the workers meet are proposals: those of the node that hosts the controller
    count. Raises UserError, one line, for the first thing that cannot be done.
    """
    chosen = _choose(options, world)
    spec, health = _job(options, chosen, world), chosen.health
    if health is not None:
        spec = msgspec.structs.replace(
            spec, health_rules=health.rules, max_evict_share=health.max_evict_share, metrics_from=health.metrics_from
        )
    is_mentioned = options.ckpt_memory == "auto" and _mentions_checkpoint(options, world)
    if is_mentioned or options.ckpt_memory != "auto" or options.ckpt_every or options.ckpt_keep:
        from robust_run.launcher.start.options.memory_use import with_memory

        spec = with_memory(spec, options, is_mentioned=is_mentioned)
    if options.ckpt_ahead != "auto":
        from robust_run.launcher.start.options.ahead_use import with_ahead

        spec = with_ahead(spec, options.ckpt_ahead)
    if options.ckpt_mount:
        from robust_run.launcher.start.options.ckpt_url import with_mount

        spec = with_mount(spec)
    if options.ckpt_memory_dir is not None:
        from robust_run.launcher.start.options.memory_dir_use import with_memory_dir

        spec = with_memory_dir(spec, options.ckpt_memory_dir, world)
    if chosen.many is None and not options.given & LADDER_OPTIONS:
        return spec
    from robust_run.launcher.start.options.ladder_use import (
        with_ladder,  # for jobs that have more to decide than one node
    )

    return with_ladder(spec, options, world)


def _mentions_checkpoint(options: Options, world: World) -> bool:
    """Whether the script may save with `robust_run.checkpoint`."""
    text = "" if options.module or options.no_python else world.files.text(absolute(options.training_script, world))
    return "robust_run" in text and "checkpoint" in text


def _choose(options: Options, world: World) -> _Chosen:
    """Decide what is to be decided, and check what is not. Raises UserError."""
    many, many_notes = _many(options, world)
    rendezvous = resolve_rendezvous(options) if many is None else Rendezvous(rdzv_id=job_id(options))
    _check_numbers(options)
    end_signals = parse_signals(options.signals_to_handle)
    shutdown_timeout_s = _shutdown_timeout_s(options, world)
    image = _image(options, world)
    setup = _setup(options, world)
    health = _health(options, world)
    entrypoint = resolve_entrypoint(options, world)
    nproc = _workers(options.nproc_per_node, world, in_image=image is not None)
    streams, stream_notes = resolve_streams(options, nproc, world.env)
    accepted_notes = _accepted_for_compatibility(options)
    log_dir, log_notes = resolve_log_dir(options, world)
    return _Chosen(
        many=many,
        rendezvous=rendezvous,
        end_signals=end_signals,
        shutdown_timeout_s=shutdown_timeout_s,
        image=image,
        setup=setup,
        health=health,
        entrypoint=entrypoint,
        nproc=nproc,
        streams=streams,
        log_dir=log_dir,
        run_id=resolve_run_id(options, rendezvous.rdzv_id, log_dir, world, shared=many is not None),
        notes=(*many_notes, *accepted_notes, *stream_notes, *log_notes, *_http_notes(options, many)),
    )


def _many(options: Options, world: World) -> tuple[ManyNodes | None, tuple[str, ...]]:
    """Return how the nodes meet, None for a job of one node; and notes for the user. Raises UserError."""
    if is_one_node(options):
        return None, nothing_for_one_node(options)
    from robust_run.launcher.start.options.many_nodes import resolve_many  # and what it imports, for several nodes only

    return resolve_many(options, world)


def _job(options: Options, chosen: _Chosen, world: World) -> JobSpec:
    """Return the job: what was decided, and what was typed in the words of the job. Raises UserError."""
    return JobSpec(
        argv=chosen.entrypoint.argv,
        script=options.training_script,
        is_python=chosen.entrypoint.is_python,
        nproc=chosen.nproc,
        role=options.role,
        run_id=chosen.run_id,
        rdzv_id=chosen.rendezvous.rdzv_id or chosen.run_id,
        log_dir=chosen.log_dir,
        master_addr=chosen.rendezvous.master_addr,
        master_port=chosen.rendezvous.master_port,
        max_restarts=options.max_restarts,
        progress_after_s=options.progress_after,
        progress_paths=tuple(absolute(path, world) for path in options.progress_path),
        restart_grace_s=options.restart_grace,
        shutdown_timeout_s=chosen.shutdown_timeout_s,
        end_signals=chosen.end_signals,
        numa_binding=options.numa_binding,
        virtual_local_rank=options.virtual_local_rank,
        warm=not options.no_warm,
        preload=_preload(options.preload),
        preload_auto=options.preload.strip() == "auto",
        streams=chosen.streams,
        omp_threads_defaulted=chosen.nproc > 1 and "OMP_NUM_THREADS" not in world.env,
        notes=chosen.notes,
        many=chosen.many,
        http_port=_http_port(options),
        http_host=parse_host("--http-host", options.http_host) if options.http_host else "",
        prometheus_dir=absolute(options.prometheus_dir, world) if options.prometheus_dir else "",
        on_hang=options.on_hang,
        hang_after_s=options.hang_after,
        hang_patience_s=_patience_s(options),
        on_slow=options.on_slow,
        on_outlier=options.on_outlier,
        slow_round_s=options.slow_round,
        check_reduced_steps=options.check_reduced,
        trace_nccl=options.trace_nccl,
        ckpt_dir=_ckpt_dir(options.ckpt_dir, world),
        image=chosen.image,
        setup=chosen.setup,
        prefetch_env=options.prefetch_env,
        record_window_s=options.record_window,
        code=options.code if chosen.image is None else "in-place",
        probation_steps=options.probation_steps,
        sensors=not options.no_sensors,
        diagnose=options.diagnose,
        notify=_notify(options.notify, world),
    )


def _http_port(options: Options) -> int | None:
    """Return the port; who wants to be found by Prometheus has one. Raises UserError."""
    port = parse_http_port(options.http_port)
    if options.prometheus_dir and port == NO_PORT:
        raise UserError("--prometheus-dir needs the web server: leave it or --http-port off out")
    return 0 if options.prometheus_dir and port is None else port


def _http_notes(options: Options, many: ManyNodes | None) -> tuple[str, ...]:
    """Return what is said where a port was asked for that other machines may be meant to reach, and cannot."""
    if many is None or options.http_host or parse_http_port(options.http_port) in (None, NO_PORT):
        return ()
    return ("--http-port: only the controller's own machine reaches it; --http-host 0.0.0.0 opens it to others",)


def _notify(words: tuple[str, ...], world: World) -> tuple[str, ...]:
    if not words:
        return ()
    from robust_run.launcher.start.options.notify_use import resolve_notify  # and the kinds of targets

    return resolve_notify(words, world)


def _patience_s(options: Options) -> float | None:
    if options.hang_patience.strip().lower() == "auto":
        return None
    from robust_run.launcher.start.options.patience_use import parse_patience_s

    return parse_patience_s(options.hang_patience, options.hang_after)


def _preload(text: str) -> tuple[str, ...]:
    """Return the module names of `--preload`. Raises UserError for what is no module name."""
    if text.strip() in ("", "auto"):
        return DEFAULT_PRELOAD if text.strip() == "auto" else ()
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise UserError(f"--preload {name!r} is no module name; give names separated by commas, or auto")
    return names


def parse_signals(text: str) -> tuple[int, ...]:
    """Return the numbers of `SIGTERM,int,...`, each once. Raises UserError for unknown names, SIGKILL and SIGSTOP."""
    numbers: list[int] = []
    for part in text.split(","):
        name = part.strip().upper()
        full_name = name if name.startswith("SIG") else f"SIG{name}"
        if full_name not in signal.Signals.__members__:
            from difflib import get_close_matches

            near = get_close_matches(full_name, signal.Signals.__members__, n=1)
            hint = f"did you mean {near[0]}?" if near else "write names like SIGTERM,SIGINT"
            raise UserError(f"--signals-to-handle: there is no signal {part.strip()!r}; {hint}")
        number = signal.Signals[full_name]
        if number in _UNSTOPPABLE:
            raise UserError(f"--signals-to-handle: no program can handle {full_name}; take it out of the list")
        if int(number) not in numbers:
            numbers.append(int(number))
    return tuple(numbers)


def _ckpt_dir(path: str | None, world: World) -> str | None:
    """Return the folder or URL of `--ckpt-dir`, which need not exist yet. Raises UserError for what is neither."""
    if path is None:
        return None
    if not path:
        raise UserError("--ckpt-dir '': it is empty; name a folder or its URL, or leave the option out")
    if "://" in path:
        from robust_run.launcher.start.options.ckpt_url import (
            resolve_url,
        )  # and the parsing of URLs, for jobs that have one

        return resolve_url(path)
    return absolute(path, world)


def _image(options: Options, world: World) -> ImageUse | None:
    """Return how an image is used. Raises UserError."""
    if not options.image:
        if "image" in options.given:
            raise UserError("--image '': it is empty; name an image, or leave the option out")
        for name in ("image-writable", "bind"):
            if name in options.given:
                raise UserError(f"--{name} needs --image URL; add it, or leave --{name} out")
        return None
    from robust_run.launcher.start.options.image_use import (
        resolve_image,  # and what it imports, for jobs with an image only
    )

    return resolve_image(options, world)


def _setup(options: Options, world: World) -> SetupUse | None:
    """Return which set-up is done. Raises UserError."""
    if not options.setup and not options.setup_file:
        if options.refresh_setup:
            raise UserError("--refresh-setup needs --setup CMD; add it, or leave --refresh-setup out")
        return None
    from robust_run.launcher.start.options.setup_use import resolve_setup  # for jobs with a set-up only

    return resolve_setup(options, world)


def _health(options: Options, world: World) -> HealthUse | None:
    """Return what was asked for beyond the defaults. Raises UserError."""
    if options.health_rules is None and options.max_evict_share is None and not options.metrics_from:
        return None
    from robust_run.launcher.start.options.health_use import (
        resolve_health,  # and the rules, for jobs that change them only
    )

    return resolve_health(options, world)


def _check_numbers(options: Options) -> None:
    if options.max_restarts < 0:
        raise UserError(f"--max-restarts {options.max_restarts}: must be 0 (never restart) or more")
    if options.probation_steps < 2:
        raise UserError(
            f"--probation-steps {options.probation_steps}: must be 2 or more, to tell how long a step takes"
        )
    if options.check_reduced < 0:
        raise UserError(f"--check-reduced {options.check_reduced}: must be 0 (off) or the steps between checks, as 100")
    for name, seconds in (
        ("--restart-grace", options.restart_grace),
        ("--progress-after", options.progress_after),
        ("--slow-round", options.slow_round),
        ("--record-window", options.record_window),
        ("--warn-before", options.warn_before),
    ):
        _check_seconds(name, seconds)
    if options.on_slow != "report" and not options.slow_round:
        raise UserError(
            f"--on-slow {options.on_slow}: --slow-round 0 compares no ranks, so nothing would be slow; leave one out"
        )
    if not (options.hang_after >= SHORTEST_HANG_S and math.isfinite(options.hang_after)):
        raise UserError(
            f"--hang-after {options.hang_after:g}: must be {SHORTEST_HANG_S:g} seconds or more, and not infinite"
        )
    if not (options.monitor_interval > 0 and math.isfinite(options.monitor_interval)):
        raise UserError(f"--monitor-interval {options.monitor_interval:g}: must be more than 0 seconds")


def _check_seconds(name: str, seconds: float) -> None:
    if not (seconds >= 0 and math.isfinite(seconds)):
        raise UserError(f"{name} {seconds:g}: must be 0 seconds or more, and not infinite")


def _shutdown_timeout_s(options: Options, world: World) -> float:
    variable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    if options.shutdown_timeout is not None:
        _check_seconds("--shutdown-timeout", options.shutdown_timeout)
        return float(options.shutdown_timeout)
    text = world.env.get(variable)
    if not text:
        return JobPolicy().shutdown_timeout_s
    try:
        seconds = float(text)
    except ValueError:
        raise UserError(f"{variable}={text!r} is not a number of seconds; unset it or write one, like 30") from None
    _check_seconds(variable, seconds)
    return seconds


def _workers(text: str, world: World, *, in_image: bool) -> int:
    if text in _DEVICE_WORDS:
        count = count_workers(text, world, in_image=in_image)
    else:
        try:
            count = int(text)
        except ValueError:
            raise UserError(f"--nproc-per-node {text!r} is neither a number nor one of auto, cpu, gpu, xpu") from None
    if not 1 <= count <= MOST_WORKERS:
        raise UserError(f"--nproc-per-node {text}: must be 1 to {MOST_WORKERS} workers")
    return count


def _accepted_for_compatibility(options: Options) -> tuple[str, ...]:
    """Check the options that change nothing here; return a note for each that asks for what is done differently."""
    if options.logs_specs is not None:
        raise UserError(
            f"--logs-specs {options.logs_specs!r}: log plug-ins are not supported; use --log-dir, --redirects and --tee"
        )
    notes = []
    if options.event_log_handler not in ("null", "console", "dynamic_rendezvous"):
        raise UserError(f"--event-log-handler: there is no handler {options.event_log_handler!r}; use null or console")
    if options.event_log_handler != "null":
        notes.append(
            f"--event-log-handler {options.event_log_handler} does nothing: events are in the run's journal.jsonl"
        )
    if options.start_method != "spawn":
        notes.append(f"--start-method {options.start_method} does nothing: each worker is a new program")
    return tuple(notes)
