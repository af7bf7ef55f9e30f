"""Jobs on a real Slurm that it ends, warns or starts again: they are told why, and go on where they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clusters import PATIENT, STEPS, write
from jobs import wait_for
from slurm_cluster import SlurmCluster
from slurm_jobs import submit

pytestmark = pytest.mark.timeout(600)  # they wait for Slurm, most of the time

RESUMES = f"""{STEPS}

    def restored():
        try:
            return int(open(STEPS_DIR + "/checkpoint").read())
        except FileNotFoundError:
            return 0


    begun = count = restored()
    print("from", begun, flush=True)
    warning = os.environ.get("ROBUST_WARNING_FILE", "")
    is_saved = False
    told = []
    if "TEST_STAYS" in os.environ:
        signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    while not os.path.exists(DONE) and not (told and os.path.exists(warning)):
        step()
        count += 1
        if RANK == 0 and warning and os.path.exists(warning) and not is_saved:
            is_saved = True
            with open(STEPS_DIR + "/new", "w") as file:
                file.write(str(count))
            os.rename(STEPS_DIR + "/new", STEPS_DIR + "/checkpoint")
        pause(0.02)
"""
"""A training that saves when it is warned, and goes on from there. With TEST_STAYS it ends only when it has been warned: one that
ends at once may be gone before Slurm has said why."""

BREAKS = RESUMES.replace(
    "        pause(0.02)",
    """        pause(0.02)
        if socket.gethostname() == "node-2" and count >= begun + 5:
            print("CUDA error: uncorrectable ECC error encountered", file=sys.stderr, flush=True)
            sys.exit(1)""",
)
"""The same; on node-2 its GPU breaks, as a worker's output shows it: a rule evicts the node."""


def warnings(job_dir: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(job_dir.glob("warning-*.json"))]


def test_a_job_whose_time_is_over_is_warned_requeued_and_goes_on(slurm: SlurmCluster, tmp_path: Path) -> None:
    options = ["--warn-before", "50", "--shutdown-timeout", "2"]
    job = submit(slurm, write(tmp_path, RESUMES), tmp_path=tmp_path, sbatch=["-N2", "-t1"], options=options)
    job.wait_for_steps(0, 2)
    wait_for(lambda: (job.steps_dir / "checkpoint").exists(), f"the warning to be heard:\n{job.said()}", 150)
    saved = int((job.steps_dir / "checkpoint").read_text())
    assert {warned["reason"] for warned in warnings(job.run_dir)} == {"time_limit"}
    job.wait_said("is requeued")
    # However slow the machine is, there is no second warning.
    slurm.run("scontrol", "update", f"JobId={job.number}", "TimeLimit=30")
    job.wait_for_steps(1, 2)
    job.wait_said(f"from {saved}", times=2)
    assert slurm.job(job.number)["Restarts"] == "1"
    job.end("COMPLETED")
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_job_that_makes_room_goes_on_later(slurm: SlurmCluster, tmp_path: Path) -> None:
    site = ["-w", "node-[1-2]", "--exclusive"]
    options, stays = ["--shutdown-timeout", "60"], {"TEST_STAYS": "1"}
    job = submit(slurm, write(tmp_path, RESUMES), tmp_path=tmp_path, sbatch=site, options=options, env=stays)
    job.wait_for_steps(0, 2)
    urgent = slurm.sbatch("true", *site, "-phigh", f"--output={tmp_path}/urgent")
    wait_for(lambda: "preempted" in [warned["reason"] for warned in warnings(job.run_dir)], "the warning", 150)
    slurm.wait_state(urgent, "COMPLETED")
    job.wait_for_steps(1, 2)
    assert slurm.job(job.number)["Restarts"] == "1"
    job.end("COMPLETED")
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_job_with_too_few_nodes_is_requeued_without_the_lost_one(slurm: SlurmCluster, tmp_path: Path) -> None:
    options = ["--wait-for-nodes", "1", "--shutdown-timeout", "2"]
    job = submit(slurm, write(tmp_path, RESUMES), tmp_path=tmp_path, sbatch=["-N3"], options=options)
    job.wait_for_steps(0, 3)
    lost = next(name for name in job.layout(0) if name != slurm.job(job.number)["BatchHost"])
    slurm[lost].power_off()
    wait_for(lambda: slurm.job(job.number)["ExcNodeList"] == lost, f"{lost} to be excluded:\n{job.said()}", 150)
    job.wait_for_steps(1, 3)
    assert lost not in job.layout(1)
    job.end("COMPLETED")
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_job_that_is_cancelled_is_not_started_again(slurm: SlurmCluster, tmp_path: Path) -> None:
    options = ["--shutdown-timeout", "2"]
    job = submit(slurm, write(tmp_path, RESUMES), tmp_path=tmp_path, sbatch=["-N2"], options=options)
    job.wait_for_steps(0, 2)
    slurm.run("scancel", str(job.number))
    job.ended("CANCELLED")
    job.assert_nothing_left()
    assert slurm.job(job.number)["Restarts"] == "0"
    assert "requeue" not in job.said()


def test_a_node_that_a_rule_evicts_is_drained_and_left_out_after_the_requeue(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    assert BREAKS != RESUMES
    slurm.run("scontrol", "update", "NodeName=node-[4-8]", "State=DRAIN", "Reason=test")
    options = ["--wait-for-nodes", "10", "--shutdown-timeout", "2", *PATIENT]
    job = submit(slurm, write(tmp_path, BREAKS), tmp_path=tmp_path, sbatch=["-N3"], options=options)
    job.wait_said("node-2 is drained: robust-run: job")  # an administrator looks at it
    wait_for(lambda: slurm.job(job.number)["ExcNodeList"] == "node-2", f"node-2 to be excluded:\n{job.said()}", 150)
    slurm.run("scontrol", "update", "NodeName=node-[4-8]", "State=RESUME")
    job.wait_for_steps_from_now(3, without="node-2", count=3)
    job.end("COMPLETED")
    job.assert_nothing_left()


def test_a_job_that_requires_the_node_it_evicted_is_held_and_says_what_mends_that(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    options, site = ["--wait-for-nodes", "1", "--shutdown-timeout", "2", *PATIENT], ["-N3", "-w", "node-[1-3]"]
    job = submit(slurm, write(tmp_path, BREAKS), tmp_path=tmp_path, sbatch=site, options=options)
    said = job.wait_said("starts it on others")
    (mend,) = [line for line in said.splitlines() if "starts it on others" in line]
    assert f"job {job.number} is held: it requires node-2 (-w)" in mend
    facts = slurm.job(job.number)
    assert (facts["ReqNodeList"], facts["ExcNodeList"], facts["Priority"]) == ("node-[1-3]", "(null)", "0")
    for command in mend.partition("too few; ")[2].removesuffix(" starts it on others").split(" && "):
        slurm.run(*command.split())
    job.wait_for_steps_from_now(3, without="node-2", count=3)
    job.end("COMPLETED")
    job.assert_nothing_left()
