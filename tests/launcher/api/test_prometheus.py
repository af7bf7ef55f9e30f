"""A real Prometheus reads a real job: with its token, and it answers every question of the dashboard."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dashboards import expressions, needs_promtool
from etcd import free_port
from jobs import running, script, wait_for

from robust_run.launcher.operator.reading.client import ApiTarget

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs prometheus (Debian: prometheus)"
)

TRAINS = """
    import os, pathlib, time, torch
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while not pathlib.Path("enough").exists():
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.02)
        if pathlib.Path("fail").exists() and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os._exit(3)
"""


@contextlib.contextmanager
def prometheus(tmp_path: Path, url: str, token_file: Path) -> Iterator[str]:
    """Run one that scrapes a job every few seconds, and waits as long for its answer; yield its address."""
    target = urllib.parse.urlsplit(url)
    (tmp_path / "prometheus.yml").write_text(
        f"""
global: {{scrape_interval: 3s, evaluation_interval: 1s}}
rule_files: [{Path(__file__).parents[3] / "docs" / "grafana" / "alerts.yml"}]
scrape_configs:
  - job_name: training
    authorization: {{credentials_file: {token_file}}}
    params: {{nodes: ["5"]}}
    static_configs: [{{targets: ["127.0.0.1:{target.port}"]}}]
"""
    )
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'tsdb'}",
            f"--web.listen-address={address}",
            "--log.level=warn",
        ],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait()


def ask(base: str, query: str) -> list[dict[str, Any]]:
    """Return what a query gives; nothing while nobody listens yet."""
    try:
        with urllib.request.urlopen(
            f"{base}/api/v1/query?{urllib.parse.urlencode({'query': query})}", timeout=30
        ) as got:
            answer = json.load(got)
    except urllib.error.HTTPError as error:
        if error.code == 503:  # it starts
            return []
        raise AssertionError(f"{query}: {error.read().decode()}") from error
    except OSError:
        return []
    assert answer["status"] == "success"
    return list(answer["data"]["result"])


def told(base: str, query: str) -> list[dict[str, Any]]:
    """Return what a query gives once it gives anything: the job may have been too busy to answer the newest scrape."""
    return wait_for(lambda: ask(base, query), f"Prometheus to know of {query}", 60)


def plain(expression: str) -> str:
    """Fill in what Grafana fills in."""
    return expression.replace("$__rate_interval", "1m").replace("$job", ".*").replace("$instance", ".*")


@needs_prometheus
@needs_promtool
def test_a_real_prometheus_reads_a_real_job_and_promtool_has_nothing_to_say_of_its_metrics(tmp_path: Path) -> None:
    options = ("--http-port", "0", "--slow-round", "1")
    with running(tmp_path, *options, script(tmp_path, TRAINS)) as run:
        place = run.run_dir / "api.json"
        wait_for(place.exists, "the job to be served")
        wait_for(lambda: run.events("first_step"), "the first step")
        (tmp_path / "fail").touch()
        wait_for(lambda: len(run.events("first_step")) > 1, "the first step after a failure")
        url = json.loads(place.read_text())["http"]
        with prometheus(tmp_path, url, run.run_dir / "token") as base:
            assert told(base, "robust_run_step > 20")
            assert len(told(base, "up == 1")) == 1
            assert told(base, 'robust_run_incidents_total{kind="crash",action="relaunch"}')[0]["value"][1] == "1"
            assert told(base, "robust_run_recovery_seconds_sum > 0")
            assert 0 < float(told(base, "robust_run_ettr_ratio")[0]["value"][1]) <= 1
            assert len(told(base, "robust_run_node_step_own_seconds")) == 1
            for expression in expressions():
                ask(base, plain(expression))
            with urllib.request.urlopen(f"{base}/api/v1/rules", timeout=30) as got:
                rules = json.load(got)["data"]["groups"][0]["rules"]
            assert all(rule["health"] in ("ok", "unknown") for rule in rules)
        body = ApiTarget(socket=str(run.run_dir / "api.sock")).get("/metrics", {"nodes": 5})
        assert b"robust_run_step " in body
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=body, capture_output=True, timeout=60, check=False
        )
        (tmp_path / "enough").touch()
        assert run.finish() == 0
        run.assert_nothing_left()
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
