"""Real jobs of two roles for tests: rollouts make samples, a trainer takes them all. Each process notes that it ran."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from jobs import Job, running, script, unused_port, wait_for

ROLLOUT = """
import os, time
from pathlib import Path
from robust_run import roles
me = roles.me()
Path(f"ran-{me.role}-{me.index}.{me.serial}.{me.attempt}-{os.getpid()}").touch()
prompts, samples = roles.queue("prompts"), roles.queue("samples")
roles.ready()


def is_held(number):
    try:
        return number >= int(Path("hold").read_text() or 0)
    except FileNotFoundError:
        return False


for item in iter(lambda: prompts.take(1), []):
    Path(f"has-{item[0].number}-{me.index}").touch()
    while is_held(item[0].number):
        time.sleep(0.01)
    samples.put(item[0].payload, key=item[0].key)
    prompts.done(item[0])
"""

TRAINER = """
import json, os, time
from pathlib import Path
from robust_run import roles
me = roles.me()
Path(f"ran-{me.role}-{me.index}.{me.serial}.{me.attempt}-{os.getpid()}").touch()
prompts, samples = roles.queue("prompts"), roles.queue("samples")
saved = json.loads(Path("saved").read_text()) if Path("saved").exists() else {"samples": None, "history": []}
samples.load_state_dict(saved["samples"])
history = saved["history"]
for number in range(COUNT):
    prompts.put(b"%d" % number, key=str(number))
while len(history) < COUNT:
    for item in samples.take(3, keep=True):
        history.append(item.key)
    Path("trained").write_text(str(len(history)))
    if len(history) % 2 == 0:
        Path("saved.new").write_text(json.dumps({"samples": samples.state_dict(), "history": history}))
        os.replace("saved.new", "saved")
    time.sleep(0.02)
while Path("not-yet").exists():
    time.sleep(0.02)
Path("history").write_text(json.dumps(history))
"""

BARE = """options = ["--no-sensors", "--no-warm"]
env = { TORCH_DISABLE_SHARE_RDZV_TCP_STORE = "1" }"""
"""For members of which sensors, warm start and torch's store are not the subject: they import no torch, and the warm process and
the store of each would."""

FILE = f"""
[roles.trainer]
command = "trainer.py"
ends = "job"
{BARE}
%s

[roles.rollout]
command = "rollout.py"
{BARE}
members = 2
fewest = 1
most = 3
restart = "alone"
ready = "called"
"""
FULL = FILE.replace(BARE, "")
"""Members as they are by default."""


class RoleJob:
    """A job of several roles that runs in a folder."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.folder = job, folder

    def ran(self, name: str) -> dict[str, int]:
        """Return the pids of all starts of a member so far, by launcher and attempt."""
        found = [each.name.removeprefix(f"ran-{name}.").split("-") for each in self.folder.glob(f"ran-{name}.*")]
        return {which: int(pid) for which, pid in found}

    def all_ran(self) -> list[str]:
        """Return all starts of all members so far."""
        return sorted(each.name for each in self.folder.glob("ran-*"))

    def pid(self, name: str, which: str = "1.0") -> int:
        """Return the pid of one start, once it is there."""
        found: int = wait_for(lambda: self.ran(name).get(which), f"start {which} of {name}")
        return found

    def newest(self, name: str) -> int:
        """Return the pid of a member's newest start."""
        ran = wait_for(lambda: self.ran(name), f"a start of {name}")
        return int(ran[max(ran, key=lambda which: tuple(map(int, which.split("."))))])

    def trained(self, count: int) -> None:
        """Wait until so many samples were trained on."""
        path = self.folder / "trained"
        wait_for(lambda: path.exists() and int(path.read_text() or 0) >= count, f"{count} samples")

    def hold(self, first: int) -> None:
        """Have rollouts keep this prompt and all later ones, until `go`."""
        (self.folder / "hold").write_text(str(first))

    def go(self) -> None:
        """Let them go on."""
        (self.folder / "hold").unlink()

    def leader(self) -> int:
        """Return the pid of the leader now."""
        found: int = wait_for(self._leader, "a leader")
        return found

    def _leader(self) -> int:
        guard = Path(f"/proc/{self.job.pid}/cmdline").read_bytes()
        for pid in Path(f"/proc/{self.job.pid}/task/{self.job.pid}/children").read_text().split():
            try:
                if Path(f"/proc/{pid}/cmdline").read_bytes() == guard and os.getpgid(int(pid)) == int(pid):
                    return int(pid)
            except OSError:
                continue
        return 0

    def launcher(self, name: str) -> int:
        """Return the pid of a member's launcher."""
        found: int = wait_for(lambda: self._launcher(name), f"a launcher of {name}")
        return found

    def _launcher(self, name: str) -> int:
        for pid in Path(f"/proc/{self.job.pid}/task/{self.job.pid}/children").read_text().split():
            try:
                if f"{name}.".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return int(pid)
            except OSError:
                continue
        return 0

    def journal(self) -> list[dict[str, Any]]:
        """Return what is on record, without the head."""
        lines = (self.job.run_dir / "roles.jsonl").read_bytes().split(b"\n")[1:-1]
        return [json.loads(line) for line in lines]

    def done(self) -> None:
        """Wait for the job's good end: each sample counts once, nothing is left."""
        code = self.job.finish()
        assert code == 0, self.job.err
        history = json.loads((self.folder / "history").read_text())
        count = int((self.folder / "count").read_text())
        assert sorted(map(int, history)) == list(range(count))
        self.job.assert_nothing_left()


def nodes_of(roles: RoleJob) -> dict[str, list[str]]:
    """Return where each launcher of each member was started."""
    started = [a for line in roles.journal() for a in line.get("actions", ()) if a["type"] == "start_member"]
    return {f"{a['member']['role']}-{a['member']['index']}.{a['serial']}": a["nodes"] for a in started}


@contextmanager
def role_job(
    folder: Path, count: int = 40, trainer: str = "", hold: int | None = None, file: str = FILE, **more: Any
) -> Iterator[RoleJob]:
    """Start a job of two roles. `trainer`: further lines of its table; `hold`: rollouts keep this prompt and later ones."""
    script(folder, TRAINER.replace("COUNT", str(count)), "trainer.py")
    script(folder, ROLLOUT, "rollout.py")
    (folder / "count").write_text(str(count))
    (folder / "roles.toml").write_text(file % trainer)
    if hold is not None:
        (folder / "hold").write_text(str(hold))
    with running(folder, "--roles", "roles.toml", **more) as job:
        yield RoleJob(job, folder)


@contextmanager
def three_nodes(folder: Path, count: int, *options: str) -> Iterator[tuple[RoleJob, RoleJob, RoleJob]]:
    """Start a job on nodes a, b and c, which are launchers on this machine; a founds it."""
    script(folder, TRAINER.replace("COUNT", str(count)), "trainer.py")
    script(folder, ROLLOUT, "rollout.py")
    (folder / "count").write_text(str(count))
    (folder / "roles.toml").write_text(FILE % "")
    where = ("--rdzv-endpoint", f"127.0.0.1:{unused_port()}", "--rdzv-id", "r")
    meets = ("--nnodes", "3", "--rdzv-backend", "c10d", *where, *options)
    with ExitStack() as stack:
        found: list[RoleJob] = []
        for name in ("a", "b", "c"):
            job = stack.enter_context(running(folder, "--roles", "roles.toml", *meets, "--node-name", name))
            found.append(RoleJob(job, folder))
            wait_for(lambda: list(folder.glob("runs/*/roles.place")), "a to lead")
        yield found[0], found[1], found[2]
