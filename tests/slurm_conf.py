"""The configuration files of a test's Slurm (see slurm_cluster.py), as text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Knobs:
    """What differs from one test's site to another's. All times are seconds, short where a real site's are minutes."""

    gpus: int = 0
    """GPUs per node: devices like /dev/null that Slurm hands out and counts."""
    cpus: int = 4
    """CPUs per node, whatever the machine has."""
    cred_expire_s: int = 5
    """How long a requeued job waits at least; real sites: 120."""
    slurmd_timeout_s: int = 10
    """Silence after which a node is down; Slurm then takes 6 to 10 s more to notice. Real sites: 300."""
    kill_wait_s: int = 5
    """From SIGTERM to SIGKILL; real sites: 30."""
    grace_s: int = 5
    """From the notice of a preemption to its SIGTERM for all."""
    more: Mapping[str, str] = field(default_factory=dict)
    """Lines of slurm.conf, over those below: `{"KillOnBadExit": "1"}`."""


def slurm_conf(folder: Path, login: tuple[str, str], nodes: Sequence[tuple[str, str, str]], knobs: Knobs) -> str:
    """Return slurm.conf for a login node (name, address) and compute nodes (Slurm's name, host name, address)."""
    lines = {
        "ClusterName": "robust",
        "SlurmctldHost": f"{login[0]}({login[1]})",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge.sock,cred_expire={knobs.cred_expire_s}",
        "CredType": "cred/munge",
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": "/run/slurmd",
        "SlurmctldPidFile": "/run/slurmctld.pid",
        "SlurmdPidFile": "/run/slurmd.pid",
        "SlurmctldLogFile": f"{folder}/slurmctld.log",
        "SlurmdLogFile": f"{folder}/slurmd-%n.log",
        "AccountingStorageType": "accounting_storage/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "JobCompType": "jobcomp/none",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "MailProg": "/bin/true",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "bf_interval=1,sched_interval=2,sched_min_interval=0",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "JobRequeue": "1",
        "ReturnToService": "2",
        "SlurmdParameters": "config_overrides",
        "SlurmdTimeout": str(knobs.slurmd_timeout_s),
        "SlurmctldTimeout": "10",
        "MessageTimeout": "10",
        "TCPTimeout": "2",
        "KillWait": str(knobs.kill_wait_s),
        "InactiveLimit": "0",
        "MinJobAge": "300",
        "UnkillableStepTimeout": "60",
        **({"GresTypes": "gpu"} if knobs.gpus else {}),
        **knobs.more,
    }
    gres = f" Gres=gpu:{knobs.gpus}" if knobs.gpus else ""
    text = "".join(f"{name}={value}\n" for name, value in lines.items())
    for name, host, address in nodes:
        text += f"NodeName={name} NodeHostname={host} NodeAddr={address} CPUs={knobs.cpus}{gres} State=UNKNOWN\n"
    return (
        f"{text}PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=10 GraceTime={knobs.grace_s}\n"
        "PartitionName=high Nodes=ALL MaxTime=INFINITE PriorityTier=20 PreemptMode=OFF\n"
    )


def gres_conf(folder: Path, gpus: int) -> str:
    """Return gres.conf: which files are the GPUs. Only character devices will do."""
    return "".join(f"Name=gpu File={folder}/{gpu_file(number)}\n" for number in range(gpus))


def gpu_file(number: int) -> str:
    """Return the name of a GPU's file."""
    return f"gpu{number}"
