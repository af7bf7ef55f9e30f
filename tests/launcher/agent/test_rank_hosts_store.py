"""torch's own switch for the agent's store: with it rank 0 hosts the store of each attempt, and the agent starts no process."""

from __future__ import annotations

from pathlib import Path

from jobs import running, script

TRAIN = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
helpers = [open(f"/proc/{pid}/cmdline").read() for pid in os.listdir("/proc") if pid.isdigit() and parent(pid) == os.getppid()]
if os.environ["RANK"] == "0":
    hosted = any("store_process" in each for each in helpers)
    print("attempt", attempt, os.environ["TORCHELASTIC_USE_AGENT_STORE"], int(total), hosted)
    sys.exit(attempt == "0")
"""
PARENT = """
def parent(pid):
    try:
        return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    except OSError:
        return 0
"""


def test_rank_0_hosts_the_store_of_each_attempt(tmp_path: Path) -> None:
    script(tmp_path, PARENT + TRAIN, "train.py")
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with running(tmp_path, "--nproc-per-node", "2", "--max-restarts", "1", "train.py", env=env) as job:
        assert job.finish() == 0
        said = [line.partition("attempt ")[2] for line in job.out.splitlines() if "attempt " in line]
    assert said == ["0 False 2 False", "1 False 2 False"]
