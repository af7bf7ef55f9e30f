"""What operators make of the manifests in docs/kubernetes: pods, and the variables that they give them.

PyTorchJob: the training operator of Kubeflow, 1.8 and 1.9. TrainJob: the torch plugin of Kubeflow Trainer 2. Indexed Jobs,
which JobSet makes, too: the Job controller of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pods import Pod, manifests


def pytorchjob(processes: int) -> list[Pod]:
    """Return master and workers of a PyTorchJob with so many processes a pod."""
    (job,) = manifests("pytorchjob.yaml")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    kinds = [(kind, index) for kind in ("Master", "Worker") for index in range(replicas[kind]["replicas"])]
    name = job["metadata"]["name"]
    found = []
    for rank, (kind, index) in enumerate(kinds):
        container = _container(replicas[kind]["template"])
        port = next(each["containerPort"] for each in container["ports"] if each["name"] == "pytorchjob-port")
        master = {"MASTER_ADDR": f"{name}-master-0", "MASTER_PORT": str(port)}
        env = {
            "PYTHONUNBUFFERED": "1",
            **master,
            **{f"PET_{key}": value for key, value in master.items()},
            "WORLD_SIZE": str(len(kinds) * processes),
            "RANK": str(rank),
            "PET_NODE_RANK": str(rank),
            "PET_NPROC_PER_NODE": str(processes),
            "PET_NNODES": str(len(kinds)),
        }
        pod = f"{name}-{kind.lower()}-{index}"
        found.append(Pod(pod, pod, container, env, f"gpu-{rank}"))
    return found


def elastic_pytorchjob(fewest: int, most: int, processes: int) -> list[Pod]:
    """Return the workers of the same with an elasticPolicy, which has no master."""
    (job,) = manifests("pytorchjob.yaml")
    name = job["metadata"]["name"]
    container = _container(job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"])
    port = next(each["containerPort"] for each in container["ports"] if each["name"] == "pytorchjob-port")
    env = {
        "PYTHONUNBUFFERED": "1",
        "PET_RDZV_ENDPOINT": f"{name}-worker-0:{port}",
        "PET_RDZV_BACKEND": "c10d",
        "PET_NNODES": f"{fewest}:{most}",
        "PET_MAX_RESTARTS": "10",
        "PET_NPROC_PER_NODE": str(processes),
        "PET_STANDALONE": "",
    }
    names = [f"{name}-worker-{index}" for index in range(most)]
    return [Pod(each, each, container, env, f"gpu-{index}") for index, each in enumerate(names)]


def trainjob(processes: int) -> list[Pod]:
    """Return the pods of a TrainJob with so many processes a pod."""
    runtime, job = manifests("trainjob.yaml")
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    name, count = job["metadata"]["name"], job["spec"]["trainer"]["numNodes"]
    env = {
        "PET_NNODES": str(count),
        "PET_NPROC_PER_NODE": str(processes),
        "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
        "PET_MASTER_PORT": "29500",
    }
    container = _container(replicated["template"]["spec"]["template"])
    return [
        _indexed(f"{name}-node-0-{index}", name, container, index, {**env, "PET_NODE_RANK": str(index)})
        for index in range(count)
    ]


def jobset() -> list[Pod]:
    """Return the pods of the JobSet."""
    (job,) = manifests("jobset.yaml")
    (replicated,) = job["spec"]["replicatedJobs"]
    name, spec = job["metadata"]["name"], replicated["template"]["spec"]
    container = _container(spec["template"])
    return [
        _indexed(f"{name}-{replicated['name']}-0-{index}", name, container, index, {})
        for index in range(spec["completions"])
    ]


def indexed_job() -> list[Pod]:
    """Return the pods of the indexed Job."""
    service, job = manifests("indexed-job.yaml")
    name, spec = job["metadata"]["name"], job["spec"]
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    container = _container(spec["template"])
    return [
        _indexed(f"{name}-{index}", service["metadata"]["name"], container, index, {})
        for index in range(spec["completions"])
    ]


def _indexed(name: str, service: str, container: Mapping[str, Any], index: int, env: Mapping[str, str]) -> Pod:
    own = {"JOB_COMPLETION_INDEX": str(index), **env}
    return Pod(name, f"{name}.{service}", container, own, f"gpu-{index}")


def _container(template: Mapping[str, Any]) -> Mapping[str, Any]:
    (container,) = template["spec"]["containers"]
    return dict(container)
