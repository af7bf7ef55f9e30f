"""A node of a real job whose clocks fall stays apart from its peers, and is evicted where that was asked for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from clusters import STEPS, start_all, write
from hosts import Cluster, need_hosts
from jobs import wait_for
from sensor_ground import StubDriver, compile_stub

#: 30 readings are learnt from, who is far apart for seconds is named, and 5 s of steps later it stays so.
FAST = "[outliers]\nsettle_s = 6\nhold = 0.05\nstays_s = 5\n[sensors.gpu]\ninterval_s = 0.2\n"
TRAIN = f"""{STEPS}

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    while True:
        weight.grad = torch.tensor([float(os.path.exists(DONE))])
        dist.all_reduce(weight.grad)
        optimizer.step()
        step()
        if weight.grad:
            break
        pause(0.05)
    dist.destroy_process_group()
"""
PATIENCE_S = 150.0
HEALTHY = {"count": 1, "clock_0": 1980, "percent_0": 99, "watts_0": 600}


def test_a_node_whose_clocks_fall_stays_apart_and_is_evicted_where_that_was_asked(tmp_path: Path) -> None:
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    pytest.importorskip("numpy", reason="robust outliers needs numpy")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler for the stub of libnvidia-ml")
    need_hosts()
    (tmp_path / "driver").mkdir()
    library = compile_stub(compiler, tmp_path / "driver")
    rules = tmp_path / "rules.toml"
    rules.write_text(FAST)
    with Cluster(4, tmp_path) as four:
        drivers = {host.name: StubDriver(library, host.root / "run/tmp/gpus") for host in four}
        for driver in drivers.values():
            driver.set(**HEALTHY)
        options = ["--nnodes", "3", "--standby", "1", "--on-outlier", "evict", "--health-rules", str(rules)]
        options += ["--trace-nccl", "off", "--rdzv-conf", "keep_alive_interval=0.2,keep_alive_max_attempt=60"]
        env = {"ROBUST_NVML": library, "STUB_NVML_STATE": "/run/tmp/gpus"}
        job = start_all(four, write(tmp_path, TRAIN), tmp_path=tmp_path, options=options, env=env)
        job.wait_for_event("sensors_began", 4)
        job.wait_for_more_steps(0, 3, more=300)
        culprit = job.layout(0)[2]
        drivers[culprit].set(clock_0=1100)
        try:
            incident = wait_for(lambda: job.incidents(), "an eviction", PATIENCE_S)[0]
        except AssertionError:
            for e in job.events("health_seen"): print(e["node"], e["event"]["name"], e["event"]["kind"], e["event"]["detail"][:200])
            print(job.actions("rule_spoke"))
            raise
        print(job.said())
        print(incident)
        names = [each["event"]["name"] for each in job.events("health_seen") if "outlier" in each["event"]["name"]]
        print(names)
        assert (incident["action"]["name"], incident["verdict"]["rule"]) == ("evict", "outlier.stays")
        assert incident["verdict"]["nodes"] == [culprit]
        job.wait_for_steps(1, 3)
        assert culprit not in job.layout(1)
        job.finish()
        job.assert_nothing_left()
