"""The manifests in docs/kubernetes are what clusters take, by Kubernetes' own schemas, strictly; and what operators need of them.

CustomResourceDefinitions are not to be had here. What we use of them is little and written down below; the pods, Jobs and probes
in them are compared with the schemas of Kubernetes like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from pods import MANIFESTS, manifests

from robust_run.launcher.start.options.command import parse

FILES = sorted(path.name for path in MANIFESTS.glob("*.yaml"))
#: The oldest with all that is used here (podFailurePolicy is stable since 1.31), and the newest that the schemas know.
VERSIONS = ("1.31", kubernetes_validate.latest_version())
NUMBER, TEXT, YES = {"type": "integer", "minimum": 0}, {"type": "string", "minLength": 1}, {"type": "boolean"}


def exactly(required: str, **properties: object) -> dict[str, object]:
    """A schema of an object with these fields and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def kind(version: str, name: str, spec: object) -> dict[str, object]:
    return exactly(
        "apiVersion kind metadata spec",
        apiVersion={"const": version},
        kind={"const": name},
        metadata=exactly("name", name={"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"}),
        spec=spec,
    )


#: Compared with the schema of Kubernetes in a step of its own: see `inner`.
ANY_OBJECT = {"type": "object"}
REPLICA = exactly(
    "replicas restartPolicy template",
    replicas=NUMBER,
    restartPolicy={"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
    template=ANY_OBJECT,
)
REPLICATED_JOBS = {
    "type": "array",
    "items": exactly("name template", name=TEXT, replicas=NUMBER, template=ANY_OBJECT),
}
JOBSET_SPEC = exactly(
    "replicatedJobs",
    replicatedJobs=REPLICATED_JOBS,
    network=exactly("", enableDNSHostnames=YES, subdomain=TEXT, publishNotReadyAddresses=YES),
    failurePolicy=exactly("", maxRestarts=NUMBER),
    ttlSecondsAfterFinished=NUMBER,
)
CUSTOM = {
    "PyTorchJob": kind(
        "kubeflow.org/v1",
        "PyTorchJob",
        exactly(
            "pytorchReplicaSpecs",
            nprocPerNode={"type": "string", "pattern": r"^(auto|cpu|gpu|\d+)$"},
            runPolicy=exactly(
                "",
                ttlSecondsAfterFinished=NUMBER,
                backoffLimit=NUMBER,
                cleanPodPolicy={"enum": ["None", "Running", "All"]},
            ),
            pytorchReplicaSpecs=exactly("", Master=REPLICA, Worker=REPLICA),
        ),
    ),
    "JobSet": kind("jobset.x-k8s.io/v1alpha2", "JobSet", JOBSET_SPEC),
    "TrainingRuntime": kind(
        "trainer.kubeflow.org/v1alpha1",
        "TrainingRuntime",
        exactly(
            "template",
            mlPolicy=exactly("", numNodes=NUMBER, torch=exactly("", numProcPerNode={"type": ["integer", "string"]})),
            template=exactly("spec", spec=JOBSET_SPEC),
        ),
    ),
    "TrainJob": kind(
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        exactly(
            "runtimeRef",
            runtimeRef=exactly(
                "name", apiGroup=TEXT, kind={"enum": ["TrainingRuntime", "ClusterTrainingRuntime"]}, name=TEXT
            ),
            trainer=exactly("", image=TEXT, numNodes=NUMBER, numProcPerNode=NUMBER),
        ),
    ),
    "PodMonitor": kind(
        "monitoring.coreos.com/v1",
        "PodMonitor",
        exactly(
            "selector podMetricsEndpoints",
            selector=ANY_OBJECT,
            podMetricsEndpoints={
                "type": "array",
                "items": exactly(
                    "port",
                    port=TEXT,
                    path=TEXT,
                    interval={"type": "string", "pattern": r"^\d+(ms|s|m|h)$"},
                    authorization=exactly(
                        "credentials", type=TEXT, credentials=exactly("key name", name=TEXT, key=TEXT)
                    ),
                ),
            },
        ),
    ),
}


def objects() -> list[Any]:
    return [pytest.param(each, id=f"{name}-{each['kind']}") for name in FILES for each in manifests(name)]


def inner(each: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what Kubernetes itself knows of an object: the object, or the Jobs and pods that an operator is to make."""
    name = {"name": "of-an-operator"}
    if each["kind"] == "PyTorchJob":
        for replica in each["spec"]["pytorchReplicaSpecs"].values():
            yield {"apiVersion": "v1", "kind": "PodTemplate", "metadata": name, "template": replica["template"]}
    elif each["kind"] in ("JobSet", "TrainingRuntime"):
        jobset = each["spec"] if each["kind"] == "JobSet" else each["spec"]["template"]["spec"]
        for replicated in jobset["replicatedJobs"]:
            template = replicated["template"]
            metadata = {**name, **template.get("metadata", {})}
            yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": template["spec"]}
    elif each["kind"] not in CUSTOM:
        yield each


def containers() -> list[Any]:
    """Return every container, with the pod that it is in."""
    found = []
    for name in FILES:
        for number, each in enumerate(part for whole in manifests(name) for part in inner(whole)):
            pod = each["template"] if each["kind"] == "PodTemplate" else each.get("spec", {}).get("template", {})
            here = pod.get("spec", {}).get("containers", ())
            found += [pytest.param(pod["spec"], container, id=f"{name}-{number}") for container in here]
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("each", objects())
def test_kubernetes_takes_it(each: dict[str, Any], version: str) -> None:
    for part in inner(each):
        kubernetes_validate.validate(part, version, strict=True)
    if each["kind"] in CUSTOM:
        jsonschema.validate(each, CUSTOM[each["kind"]])


def test_a_misspelt_field_is_refused() -> None:
    (job,) = manifests("pytorchjob.yaml")
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        for part in inner(job):
            kubernetes_validate.validate(part, VERSIONS[-1], strict=True)


@pytest.mark.parametrize(("pod", "container"), containers())
def test_robust_run_takes_its_arguments_and_gets_signals_itself(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert container["command"] == ["robust-run"], "process 1: a shell would keep signals to itself"
    options = parse([word.replace("$(JOB_COMPLETION_INDEX)", "0") for word in container["args"]], {})
    assert options.training_script == "train.py"
    grace_s = pod["terminationGracePeriodSeconds"]
    pre_stop = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
    sleeps_s = max((int(each) for each in re.findall(r"\d+", " ".join(pre_stop))), default=0)
    assert options.shutdown_timeout is not None
    assert grace_s >= options.shutdown_timeout + sleeps_s + 10, "the kubelet kills who is not done by then"


@pytest.mark.parametrize(("pod", "container"), containers())
def test_pods_run_as_nobody_special_with_a_secret_a_probe_and_memory(
    pod: dict[str, Any], container: dict[str, Any]
) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    token = next(each for each in container["env"] if each["name"] == "ROBUST_TOKEN")
    assert token["valueFrom"]["secretKeyRef"] == {"name": "robust-run", "key": "token"}
    assert container["readinessProbe"]["exec"]["command"][:2] == ["robust", "ready"]
    assert "livenessProbe" not in container, (
        "robust-run looks after itself; a kubelet that is late would end what is well"
    )
    memory = next(each["name"] for each in container["volumeMounts"] if each["mountPath"] == "/dev/shm")
    assert next(each for each in pod["volumes"] if each["name"] == memory)["emptyDir"]["medium"] == "Memory"
    assert "latest" not in container["image"]
    assert ":" in container["image"]


def test_kubeflow_finds_what_it_looks_for_by_name() -> None:
    (job,) = manifests("pytorchjob.yaml")
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        (container,) = replica["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"
        assert "pytorchjob-port" in [port["name"] for port in container["ports"]]
    runtime, _ = manifests("trainjob.yaml")
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert replicated["name"] == "node"
    assert replicated["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert replicated["template"]["spec"]["template"]["spec"]["containers"][0]["name"] == "node"


def test_finished_jobs_are_cleared_away() -> None:
    for name in FILES:
        for each in manifests(name):
            if each["kind"] in ("Job", "JobSet", "PyTorchJob", "TrainingRuntime"):
                assert "ttlSecondsAfterFinished" in yaml.safe_dump(each["spec"]), name


@pytest.mark.parametrize("file", ["indexed-job.yaml", "jobset.yaml", "trainjob.yaml"])
def test_the_monitor_finds_the_port_of_pods_that_have_its_label(file: str) -> None:
    (monitor,) = manifests("podmonitor.yaml")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    jobs = [part for each in manifests(file) for part in inner(each) if part["kind"] == "Job"]
    for job in jobs:
        pod = job["spec"]["template"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        assert endpoint["port"] in [port["name"] for port in pod["spec"]["containers"][0]["ports"]]
