"""`/metrics`: what Prometheus reads of a job, and who may read it."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from dashboards import job_view
from prometheus_client.parser import text_string_to_metric_families

from robust_run.errors import PlatformError
from robust_run.launcher.model.node_events import NodeEvicted
from robust_run.launcher.operator.gauges import SOURCES, GaugeFacts, families
from robust_run.launcher.operator.server.server import HttpPlace
from robust_run.tracer.nccl.rates import NAMES, CommRate, Totals

Serve = Callable[..., Any]
TCP = HttpPlace(address="127.0.0.1", name="127.0.0.1")


def numbers(body: bytes) -> dict[tuple[str, ...], float]:
    """Numbers by name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def scrape(served: Any, headers: dict[str, str]) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    try:
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read()
    finally:
        connection.close()


def test_a_job_and_its_communicators_are_read(serve: Serve):
    served = serve()
    served.controller.rates = [CommRate("dp_1", 4, 1000, 900, 0.5), CommRate("other", 1, 7, 8, 0.25)]
    found = numbers(served.unix().get("/metrics"))
    assert found["robust_run_running",] == 1
    assert found["robust_run_ranks",] == 32
    assert found["robust_run_nodes", "active"] == 4
    assert found["robust_run_attempts_total",] == 1
    assert found["robust_run_info", "run", "train.py", "0.1.0"] == 1
    assert found["robust_run_nccl_operations_total", "dp_1"] == 4
    assert found["robust_run_nccl_sent_bytes_total", "dp_1"] == 1000
    assert found["robust_run_nccl_received_bytes_total", "other"] == 8
    assert found["robust_run_nccl_operation_seconds_total", "dp_1"] == 0.5


def test_incidents_are_counted_by_kind_and_action(serve: Serve):
    served = serve()
    served.on_loop(lambda: served.controller.tell(NodeEvicted(name="gpu-2", reason="x", by="ann")))
    served.on_loop(lambda: served.controller.lose(3))
    found = numbers(served.unix().get("/metrics"))
    assert sum(value for key, value in found.items() if key[0] == "robust_run_incidents_total") >= 1
    assert found["robust_run_nodes", "evicted"] == 1


def test_the_port_needs_the_token_and_the_socket_does_not(serve: Serve, authorised: dict[str, str]):
    served = serve(http_place=TCP)
    assert scrape(served, {})[0] == 401
    status, content_type, body = scrape(served, authorised)
    assert status == 200
    assert content_type.startswith("text/plain")
    assert numbers(body)["robust_run_running",] == 1
    assert b"robust_run_running" in served.unix().get("/metrics")


def test_a_fault_while_gathering_is_told_to_whoever_asked(serve: Serve):
    served = serve()
    served.controller.fault = RuntimeError("broken")
    with pytest.raises(PlatformError, match="a fault of robust-run"):
        served.unix().get("/metrics")


def test_names_follow_the_conventions_and_lines_stay_few():
    totals = Totals()
    totals.add(CommRate(f"dp_{number}", 1, 1, 1, 0.1) for number in range(5000))
    found = families(GaugeFacts(job=job_view(), nccl=totals.rows()))
    names = [family.name for family in found]
    assert len(set(names)) == len(names)
    for family in found:
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert family.about.endswith(".")
        assert not {"rank", "node", "host"} & set(family.labels)
        assert len(family.samples) <= NAMES + 1
        assert all(len(sample.labels) == len(family.labels) for sample in family.samples)


def test_without_nccl_nothing_is_said_of_it():
    found = families(GaugeFacts(job=job_view()))
    assert len(found) < len(SOURCES)
    assert not any("nccl" in family.name for family in found)
    assert msgspec.to_builtins(found)


def test_start_up_phases_are_those_of_the_newest_attempt(serve: Serve):
    served = serve()
    path = served.run_directory / "startup.json"
    assert b"startup_phase" not in served.unix().get("/metrics")
    path.write_text(
        '{"schema":1,"attempts":[{"attempt":0,"phases":[{"phase":"image","longest_s":9.5}]},'
        '{"attempt":1,"phases":[{"phase":"imports","longest_s":1.5},{"phase":"a b\\n","longest_s":1.0}]}]}'
    )
    found = numbers(served.unix().get("/metrics"))
    assert {key[1]: value for key, value in found.items() if key[0] == "robust_run_startup_phase_seconds"} == {
        "imports": 1.5
    }
    path.write_text("no JSON")
    assert b"startup_phase" not in served.unix().get("/metrics")


def test_the_newest_checkpoint_has_an_age_and_a_step(tmp_path: Path):
    from robust_run.launcher.operator.server.live_routes import newest_checkpoint

    assert newest_checkpoint(str(tmp_path)) is None
    assert newest_checkpoint(str(tmp_path / "none")) is None


def test_a_large_job_has_as_many_series_as_a_small_one(
    serve: Serve, make_controller: Callable[..., Any], tmp_path: Path
):
    def series(nodes: int, folder: Path) -> int:
        controller = make_controller(nodes, folder=folder)
        controller.pace_s = 0.001
        served = serve(controller.start(nodes), folder=folder)
        body = served.unix().get("/metrics").decode()
        return len([line for line in body.splitlines() if not line.startswith("#")])

    folders = [tmp_path / "small", tmp_path / "large"]
    for folder in folders:
        folder.mkdir()
    assert series(2, folders[0]) == series(2000, folders[1])
