"""A job of two roles on simulated hosts (see hosts.py), whose workers note on a shared disk what they did."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hosts import Cluster, Host
from jobs import Job, script, wait_for
from role_jobs import FILE, ROLLOUT, TRAINER, RoleJob

PORT = 29450
LONG_S = 150.0


class HostedRoles:
    """One job of several roles on all hosts of a cluster."""

    def __init__(self, cluster: Cluster, folder: Path, options: tuple[str, ...], is_shared: bool) -> None:
        self.cluster, self.folder, self.is_shared = cluster, folder, is_shared
        self.options = options
        self.run_id = f"roles-{os.urandom(4).hex()}"  # also the mark that its processes carry: no other test has it
        self.jobs: dict[str, Job] = {}
        for host in cluster:
            self.start(host)
            if host.index == 0:
                wait_for(lambda: list(self.log_dir(cluster[0]).glob("*/roles.place")), "the first to lead")

    def log_dir(self, host: Host) -> Path:
        return self.folder / "runs" if self.is_shared else host.private / "runs"

    def run(self, host: Host) -> Path:
        """Return the run directory as it is on a host."""
        return self.log_dir(host) / self.run_id

    def start(self, host: Host) -> None:
        meets = ("--nnodes", str(len(self.cluster)), "--rdzv-backend", "c10d", "--rdzv-id", "r")
        where = ("--rdzv-endpoint", f"{self.cluster[0].address}:{PORT}")
        self.jobs[host.name] = host.job(
            self.run_id, self.log_dir(host), "--roles", "roles.toml", *meets, *where, *self.options, cwd=self.folder
        )

    def offers(self, host: Host, of: Host) -> int:
        """Return how often a host came to who leads, by the journal that another one has."""
        said = f'"type":"node_offered","node":"{of.name}"'.encode()
        return (self.run(host) / "roles.jsonl").read_bytes().count(said)

    def ran(self, name: str) -> list[str]:
        """Return which launchers and attempts of a member have run, `1.0` the first."""
        return sorted(
            {each.name.removeprefix(f"ran-{name}.").split("-")[0] for each in self.folder.glob(f"ran-{name}.*")}
        )

    def nodes(self, host: Host) -> dict[str, list[str]]:
        """Return where each launcher was started, by the journal of who leads there."""
        path = self.run(host) / "roles.jsonl"
        lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[1:-1]]
        started = [a for line in lines for a in line.get("actions", ()) if a["type"] == "start_member"]
        return {f"{a['member']['role']}-{a['member']['index']}.{a['serial']}": a["nodes"] for a in started}

    def trained(self, count: int) -> None:
        """Wait until so many samples were trained on."""
        path = self.folder / "trained"
        wait_for(lambda: path.exists() and int(path.read_text() or 0) >= count, f"{count} samples", LONG_S)

    def done(self, *hosts: Host) -> None:
        """Wait for the job's good end on some hosts: each sample counts once, nothing is left there."""
        for host in hosts:
            assert self.jobs[host.name].finish(LONG_S) == 0, self.jobs[host.name].err
        history = json.loads((self.folder / "history").read_text())
        assert sorted(map(int, history)) == list(range(int((self.folder / "count").read_text())))
        for host in hosts:
            self.jobs[host.name].assert_nothing_left()

    def said(self, host: Host) -> str:
        """Return what the job has said on a host so far."""
        return (
            (self.jobs[host.name].process.err)
            if self.jobs[host.name].process.poll() is None
            else self.jobs[host.name].err
        )


@contextmanager
def roles_on_hosts(
    folder: Path,
    count: int,
    hosts: int = 3,
    text: str = FILE % "",
    files: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
    *,
    is_shared: bool = True,
) -> Iterator[HostedRoles]:
    """Start a job on hosts; the first founds it. `is_shared`: so is the folder of runs."""
    for name, source in {
        "trainer.py": TRAINER.replace("COUNT", str(count)),
        "rollout.py": ROLLOUT,
        **(files or {}),
    }.items():
        script(folder, source, name)
    (folder / "count").write_text(str(count))
    (folder / "roles.toml").write_text(text)
    token = folder / "token"
    token.write_text("a token that all hosts of this test know\n")
    token.chmod(0o600)
    with Cluster(hosts, folder) as cluster:
        yield HostedRoles(cluster, folder, ("--token-file", str(token), *options), is_shared)


__all__ = ["HostedRoles", "RoleJob", "roles_on_hosts"]
