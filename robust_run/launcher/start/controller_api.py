"""What a controller of several nodes serves to people: the API at the run directory's socket, and the web server."""

from __future__ import annotations

import os
from collections.abc import Callable

from robust_run.clock import Clock
from robust_run.errors import PlatformError
from robust_run.launcher.controller.config import ControllerConfig
from robust_run.launcher.controller.controller import Controller
from robust_run.launcher.controller.handle import Handle, job_facts
from robust_run.launcher.model.job import NO_PORT
from robust_run.launcher.operator.server.server import ApiServer, HttpPlace
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.records.token import metrics_token_here, write_token


def serve_people(
    config: ControllerConfig,
    controller: Controller,
    run_directory: RunDirectory,
    clock: Clock,
    started_unix_s: float,
    *,
    silent_s: Callable[[str], float | None],
    say: Callable[[str], None],
) -> ApiServer:
    """Start the servers. `silent_s`: for how long a node has been silent; None: it was not heard in this term."""
    spec, many = config.spec, config.spec.many
    assert many is not None
    path = "" if config.temporary else config.run_path
    facts = job_facts(spec, controller, config.host, started_unix_s, path)
    http = HttpPlace(
        address=spec.http_host,
        port=spec.http_port or 0,
        name=config.address.rpartition(":")[0].strip("[]"),
        tls_cert=many.tls_cert,
        tls_key=many.tls_key,
        tls_ca=many.tls_ca,
        metrics_token="" if many.insecure else metrics_token_here(many.token_file, os.environ),
        prometheus_dir=spec.prometheus_dir,
        run_id=spec.run_id,
    )
    served = http if http.port != NO_PORT else None
    handle = Handle(facts, controller, run_directory.journal, silent_s)
    api = ApiServer(handle, run_directory.path, config.token, clock, say, served)
    try:
        write_token(run_directory.path, config.token)
    except PlatformError as error:
        say(str(error))
    api.start()
    return api
