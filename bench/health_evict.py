"""From a fault on one of three hosts to a job that trains without it: the whole way, with real processes in namespaces.

    python bench/health_evict.py --rounds 3

Faults: a GPU that its driver loses (a stub of libnvidia-ml, compiled here) and a line of the host's kernel log. Times count from
the injection: until the rule's decision is in the journal, and until every rank of the next attempt (two nodes, the standby among
them) has made its first step. Needs root. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from clusters import TRAIN, ClusterJob, start_all, write
from hosts import Cluster, Host, supported
from jobs import wait_for
from sensor_ground import StubDriver, compile_stub

OPTIONS = ["--nnodes", "2", "--standby", "1", "--trace-nccl", "off"]
OWN_LOG = "mkfifo -m 600 /run/tmp/kmsg && mount --bind /run/tmp/kmsg /dev/kmsg"
LINE = "2,1,1,-;EXT4-fs (sda1): Remounting filesystem read-only\n"
FAULTS = {"gpu_lost": "gpu.lost", "kernel_log": "disk.read_only"}


def inject(fault: str, host: Host) -> None:
    """Do it to a host."""
    if fault == "gpu_lost":
        StubDriver("", host.root / "run/tmp/gpus").set(count=2, lost_1=1)
        return
    with (host.root / "run/tmp/kmsg").open("w") as log:
        log.write(LINE)


def evicted_at_s(job: ClusterJob, rule: str) -> float:
    """Wait until a rule has evicted, and return when, in seconds since the epoch."""

    def found() -> float | None:
        lines = (line for line in job.journal() if line.get("action", {}).get("type") == "rule_spoke")
        return next((x["at"] for x in lines if (x["action"]["rule"], x["action"]["rung"]) == (rule, "evict")), None)

    return float(wait_for(found, f"{rule} to evict:\n{job.said()}"))


def one(fault: str, library: str, chance: random.Random) -> tuple[float, float]:
    """Return the seconds to the decision, and to the first steps of all ranks without the host."""
    with tempfile.TemporaryDirectory(prefix="robust-evict-") as name, Cluster(3, Path(name)) as cluster:
        for host in cluster:
            host.run(["sh", "-c", OWN_LOG])
            StubDriver("", host.root / "run/tmp/gpus").set(count=2)
        env = {"ROBUST_NVML": library, "STUB_NVML_STATE": "/run/tmp/gpus"}
        job = start_all(
            cluster, write(Path(name), TRAIN), tmp_path=Path(name), options=OPTIONS, env=env, admission=True
        )
        job.wait_for_event("sensors_began", 3)
        job.wait_for_steps(0, 2)
        culprit = next(host for host in cluster if host.name == job.layout(0)[1])
        time.sleep(chance.uniform(0.0, 2.0))
        unix_s, start_s = time.time(), time.monotonic()
        inject(fault, culprit)
        decided_s = evicted_at_s(job, FAULTS[fault]) - unix_s
        resumed_s = max(worker.times[0] for worker in job.wait_for_steps(1, 2, count=1)) - start_s
        assert culprit.name not in job.layout(1)
        job.finish()
        return decided_s, resumed_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    compiler = shutil.which("cc") or shutil.which("gcc")
    if why := supported() or ("" if compiler else "there is no C compiler"):
        raise SystemExit(f"health_evict: {why}")
    chance = random.Random(options.seed)
    result: dict[str, object] = {"bench": "health_evict", "rounds": options.rounds}
    with tempfile.TemporaryDirectory(prefix="robust-stub-") as folder:
        library = compile_stub(str(compiler), Path(folder))
        for fault in FAULTS:
            times = [one(fault, library, chance) for _ in range(options.rounds)]
            decided, resumed = zip(*times, strict=True)
            result[fault] = {
                "decided_median_s": round(statistics.median(decided), 3),
                "decided_max_s": round(max(decided), 3),
                "resumed_median_s": round(statistics.median(resumed), 3),
                "resumed_max_s": round(max(resumed), 3),
            }
            print(f"{fault:12} {result[fault]}", flush=True)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
