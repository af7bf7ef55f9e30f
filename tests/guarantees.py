"""The guarantee set: for each promise of the README, tests that see it kept by a real job. All of them are in `make test`."""

from __future__ import annotations

GUARANTEES: dict[str, tuple[str, ...]] = {
    "It starts at once.": (
        "launcher/options/test_front_door.py::test_nothing_heavy_is_imported_on_the_way_to_the_first_worker",
        "launcher/options/test_front_door.py::test_workers_get_torchruns_environment",
    ),
    "Restarts work, every time.": (
        "launcher/agent/test_healing.py::test_a_job_with_kills_ends_with_the_same_weights_as_an_undisturbed_one_bit_for_bit",
        "launcher/agent/test_healing.py::test_a_port_stolen_between_attempts_is_survived",
    ),
    "A crash costs a fraction of a second.": (
        "launcher/warm/test_warm_jobs.py::test_after_a_kill_the_waiting_workers_are_promoted",
    ),
    "Even the first start can be warm.": ("launcher/warm/test_daemon.py::test_after_a_kill_it_heals_as_ever",),
    "It survives the loss of any node.": (
        "launcher/many/test_node_loss.py::test_a_standby_takes_the_place_of_a_node_that_lost_power",
        "launcher/many/test_node_loss.py::test_a_node_that_is_cut_off_ends_its_workers_before_they_are_replaced",
        "launcher/many/test_controller_dies.py::test_a_killed_controller_comes_back_and_no_worker_notices",
    ),
    "It names the rank that everyone is waiting for": (
        "launcher/many/test_hangs.py::test_the_node_of_a_stuck_rank_is_evicted_and_the_standby_takes_its_place",
        "launcher/watching/test_tracing.py::test_ranks_that_come_one_after_the_other_are_left_alone_as_long_as_torch_waits_for_each",
    ),
    "It looks inside NCCL.": (
        "launcher/watching/test_nccl_stall.py::test_a_gpu_that_stands_still_is_named_and_the_job_is_started_again",
    ),
    "It says who failed first, and why.": (
        "launcher/agent/test_healing.py::test_broken_connections_are_not_blamed_while_somebody_says_why",
    ),
    "It knows when to stop.": (
        "launcher/agent/test_healing.py::test_an_exception_that_repeats_itself_stops_the_job_with_its_traceback",
        "launcher/agent/test_healing.py::test_training_steps_are_progress",
    ),
    "Checkpoints at every step.": (
        "launcher/memory/test_memory_jobs.py::test_ranks_that_die_at_any_point_of_a_save_cost_one_step_at_most",
        "launcher/many/test_memory_copies.py::test_a_rank_that_dies_and_then_a_node_that_loses_its_power_cost_a_step_each",
    ),
    "Checkpoints that load at the speed of the hardware, and never wrongly.": (
        "launcher/agent/test_resume_jobs.py::test_a_flipped_bit_in_the_newest_costs_one_attempt_and_no_restart",
    ),
    "Containers start before the image is downloaded.": (
        "launcher/images/test_image_jobs.py::test_the_second_launch_fetches_what_the_first_one_read",
    ),
    "Packages are installed once.": (
        "launcher/images/test_setup_jobs.py::test_the_first_run_installs_and_the_second_mounts",
    ),
    "Code updates that wait for a failure.": (
        "launcher/code_versions/test_code_jobs.py::test_a_pending_update_waits_for_a_crash_and_the_weights_go_on",
        "launcher/code_versions/test_code_jobs.py::test_a_bad_update_is_rolled_back_without_a_human[a crash",
    ),
    "Broken nodes are found and left out.": (
        "launcher/many/test_health.py::test_the_node_of_a_lost_gpu_is_evicted_and_remembered_and_the_standby_takes_over",
        "launcher/watching/test_ladder_jobs.py::test_a_program_that_always_dies_climbs_all_rungs_and_ends_with_what_is_known",
    ),
    "On Slurm no other options are needed.": (
        "launcher/slurm/test_cluster_losses.py::test_a_batch_job_trains_on_its_nodes_and_replaces_a_launcher_that_dies",
    ),
    "In Kubernetes, with and without Kubeflow.": (
        "kubernetes/test_pods_heal.py::test_a_worker_that_is_killed_is_replaced_and_the_pods_stay[TrainJob",
    ),
    "Trainers and rollouts heal apart.": (
        "orchestrator/test_role_jobs.py::test_a_killed_rollout_comes_back_alone_and_what_it_worked_on_is_given_to_another",
        "orchestrator/test_role_jobs.py::test_a_killed_trainer_goes_back_to_its_checkpoint_and_rollouts_do_not_notice",
    ),
    "Jobs learn from each other.": (
        "launcher/records/test_fleet_memory.py::test_a_job_that_failed_leaves_its_facts_and_the_same_exit_code",
    ),
    "It shows what happened.": ("launcher/startup/test_startup_jobs.py::test_a_start_is_measured_told_and_drawn",),
    "Nothing is left behind.": ("launcher/agent/test_endings.py::test_sigkill_of_the_launcher_leaves_nothing",),
}
"""Promises as the README has them in bold; ids of tests below tests/, of several cases as far as it takes to choose one."""

TESTS_OF_GUARANTEES = frozenset(test for tests in GUARANTEES.values() for test in tests)
