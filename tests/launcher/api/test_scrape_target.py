"""The file that leads Prometheus to a job: there while the job serves, whole, readable by all, without a secret."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from robust_run.errors import PlatformError, UserError
from robust_run.launcher.operator.reading.client import ApiTarget
from robust_run.launcher.operator.server.scrape_target import ScrapeTarget, remove, write
from robust_run.launcher.operator.server.server import HttpPlace
from robust_run.launcher.records.token import metrics_token, metrics_token_here, reading_token

Serve = Callable[..., Any]
SECRET = "a secret of sixteen characters and more"


def place(folder: Path) -> HttpPlace:
    return HttpPlace(
        address="127.0.0.1",
        name="127.0.0.1",
        prometheus_dir=str(folder),
        run_id="run-7",
        metrics_token=metrics_token(SECRET),
    )


def target(folder: Path, url: str = "https://gpu-1:8080") -> ScrapeTarget:
    return ScrapeTarget(folder=str(folder), run_id="run-7", url=url, host="gpu-1")


def test_it_is_there_while_the_job_serves_and_gone_afterwards(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet"
    served = serve(http_place=place(folder))
    (path,) = folder.iterdir()
    assert path.name == "robust-run-run-7.json"
    ((only),) = json.loads(path.read_text())
    assert only["targets"] == [f"127.0.0.1:{served.port}"]
    assert (only["labels"]["__scheme__"], only["labels"]["run_id"]) == ("http", "run-7")
    assert stat.S_IMODE(path.stat().st_mode) & 0o444 == 0o444, "Prometheus is another user"
    served.end()
    assert list(folder.iterdir()) == []


def test_no_secret_is_in_it(tmp_path: Path, token: str, serve: Serve) -> None:
    serve(http_place=place(tmp_path))
    text = next(tmp_path.glob("*.json")).read_text()
    assert not [each for each in (token, reading_token(token), metrics_token(SECRET)) if each in text]


def test_another_controller_replaces_it_and_the_first_one_leaves_that_alone(tmp_path: Path) -> None:
    first, second = target(tmp_path), target(tmp_path, "https://gpu-2:8080")
    write(first)
    write(second)
    remove(first)
    ((only),) = json.loads((tmp_path / "robust-run-run-7.json").read_text())
    assert only["targets"] == ["gpu-2:8080"]
    remove(second)
    remove(second)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said_and_the_job_goes_on(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    served = serve(http_place=place(tmp_path / "file"))
    assert served.tcp().get("/v1/status")
    assert served.complaints == [
        f"--prometheus-dir {tmp_path / 'file'}: Prometheus will not find this job: File exists"
    ]


def test_without_the_option_nothing_is_written(serve: Serve, tmp_path: Path) -> None:
    serve(http_place=msgspec.structs.replace(place(tmp_path), prometheus_dir=""))
    assert list(tmp_path.glob("*.json")) == []


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
def test_prometheus_takes_it(tmp_path: Path) -> None:
    write(target(tmp_path))
    config = tmp_path / "prometheus.yml"
    config.write_text(
        f"scrape_configs: [{{job_name: robust-run, file_sd_configs: [{{files: ['{tmp_path}/*.json']}}]}}]\n"
    )
    done = subprocess.run(["promtool", "check", "config", str(config)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# --- the token that reads metrics ---


def asking(served: Any, secret: str) -> ApiTarget:
    return msgspec.structs.replace(served.tcp(), token=secret)


def test_the_metrics_token_reads_metrics_and_nothing_else(serve: Serve, tmp_path: Path) -> None:
    served = serve(http_place=place(tmp_path))
    it = asking(served, metrics_token(SECRET))
    assert b"robust_run_info" in it.get("/metrics")
    for path in ("/", "/v1/status", "/v1/nodes", "/v1/events", "/v1/code", "/page"):
        with pytest.raises((PlatformError, UserError), match="reads /metrics alone"):
            it.get(path)


@pytest.mark.parametrize("wrong", [metrics_token("another secret of sixteen"), "", SECRET])
def test_another_token_does_not(serve: Serve, tmp_path: Path, wrong: str) -> None:
    with pytest.raises((PlatformError, UserError), match="token"):
        asking(serve(http_place=place(tmp_path)), wrong).get("/metrics")


def test_where_there_is_none_an_empty_one_opens_nothing(serve: Serve, tmp_path: Path) -> None:
    served = serve(http_place=msgspec.structs.replace(place(tmp_path), metrics_token=""))
    with pytest.raises((PlatformError, UserError), match="token"):
        asking(served, "").get("/metrics")


def test_it_comes_from_the_secret_that_is_there_and_makes_none(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert metrics_token_here("", home) == ""
    assert list(tmp_path.iterdir()) == [], "a job of one node makes no secret"
    assert metrics_token_here("", {"ROBUST_TOKEN": SECRET}) == metrics_token(SECRET)
    assert metrics_token_here("", {"ROBUST_TOKEN": "short"}) == ""
    file = tmp_path / "secret"
    file.write_text(SECRET)
    os.chmod(file, 0o600)
    assert metrics_token_here(str(file), {}) == metrics_token(SECRET)
    os.chmod(file, 0o644)
    assert metrics_token_here(str(file), {}) == "", "others may have it"
