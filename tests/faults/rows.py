"""Where each fault is tested: the numbers of the list of faults, and the tests elsewhere that are of the same row.

The tests in this folder have the row in their names. Those elsewhere are not repeated here, as most are slow.
"""

from __future__ import annotations

ROWS = {
    1: "no NVML library, or no GPU",
    2: "the driver is not loaded, or not of its library's version",
    3: "the driver is too old for this TensorFlow",
    4: "NVML sees GPUs, TensorFlow sees none",
    5: "cuDNN without code for this GPU",
    6: "a GPU newer than TensorFlow's build",
    7: "TensorFlow leaves a small GPU out of a joint run",
    8: "NVML's and CUDA's order differ",
    9: "CUDA_VISIBLE_DEVICES hides devices, or is malformed",
    10: "an unknown, ambiguous or doubled device",
    11: "MIG slices",
    12: "another process holds GPU memory or computes",
    13: "NVML does not support a field",
    14: "out of memory at a batch",
    15: "out of memory at batch 1",
    16: "a disguised out-of-memory",
    17: "out of memory in the joint run only",
    18: "a worker aborts, or meets an illegal address or a segmentation fault",
    19: "a worker is killed by signal 9",
    20: "a worker is silent past its deadline",
    21: "a collective hangs",
    22: "a GPU is lost during a run",
    23: "a GPU throttles while it is measured",
    24: "uncorrected ECC errors rise",
    25: "a plan for other devices, model or settings",
    26: "a plan, profile or result is truncated, wrong or huge",
    27: "batches that can't be",
    28: "a model that can't be imported or trained",
    29: "Ctrl-C or SIGTERM",
    30: "the parent is killed",
    31: "the disk is full, or the output folder can't be written to",
    32: "the output file exists",
    33: "two gpubalance on one device",
    34: "names with escapes, markup, or ten thousand characters",
    35: "a pipe, a dumb terminal, no colour, 40 columns",
    36: "a malformed TF_CONFIG",
    37: "one GPU only, or identical ones",
    38: "the clock steps backwards",
}

ELSEWHERE = {
    1: [
        "cli/test_devices.py::test_without_nvml_one_line_says_so_and_offers_the_way_on",
        "devices/test_nvml.py::test_no_nvml_library",
    ],
    2: ["devices/test_nvml.py::test_no_gpu_and_why"],
    7: [
        "workers/test_process.py::test_the_environment_shows_a_worker_its_gpus_only_by_uuid",
        "engine/test_runtime.py::test_a_device_that_tensorflow_leaves_out_is_named",
    ],
    8: ["engine/test_runtime.py::test_another_order_of_tensorflows_is_followed"],
    9: ["devices/test_visible.py::test_uuids_are_exact"],
    10: [
        "devices/test_select.py::test_an_unknown_device_is_answered_with_the_candidates",
        "devices/test_select.py::test_a_device_named_twice",
    ],
    11: ["devices/test_nvml.py::test_mig_slices_are_listed"],
    12: ["devices/test_nvml.py::test_processes_of_both_kinds_are_merged_without_ours"],
    13: [
        "devices/test_nvml.py::test_what_is_not_supported_is_null",
        "devices/test_telemetry.py::test_a_refused_field_is_null_and_the_others_stay",
    ],
    15: ["jobs/test_probe.py::test_where_not_even_one_sample_fits_it_says_what_is_needed_and_the_others_are_measured"],
    16: ["engine/test_failures.py::test_tensorflows_errors_are_known_by_their_texts"],
    17: [
        "jobs/test_balance.py::test_a_run_out_of_memory_in_the_proof_steps_back_and_goes_on",
        "cli/test_run.py::test_the_published_pair_runs_out_of_memory_jointly_and_is_told_what_fits",
    ],
    18: ["workers/test_process.py::test_a_worker_killed_in_a_step_is_one_error"],
    19: ["workers/test_process.py::test_a_killed_worker_is_one_error"],
    22: ["devices/test_nvml.py::test_a_lost_gpu_is_told_and_the_others_go_on"],
    23: ["devices/test_telemetry.py::test_a_gpu_that_begins_to_throttle"],
    24: ["devices/test_telemetry.py::test_uncorrected_errors_that_rise_are_counted_from_the_first_reading"],
    25: ["jobs/test_plan.py::test_a_plan_finds_its_devices_by_uuid_and_refuses_others_with_the_difference"],
    26: [
        "devices/test_profile.py::test_what_is_wrong_is_named_with_its_place",
        "jobs/test_journal.py::test_a_journal_that_was_cut_off_loses_only_its_last_line",
    ],
    27: ["cli/test_refused.py::test_what_is_wrong_gets_one_line_that_says_what_is_right"],
    28: [
        "engine/test_models.py::test_what_can_not_be_trained",
        "workers/test_process.py::test_the_users_own_traceback_and_nothing_of_ours",
    ],
    29: [
        "cli/test_run.py::test_an_interrupt_ends_the_worker_and_prints_what_was_measured",
        "cli/test_probe.py::test_an_interrupted_probe_keeps_what_is_measured_and_goes_on",
        "jobs/test_kept.py::test_a_run_goes_on_after_its_last_whole_window",
        "jobs/test_kept.py::test_a_balance_goes_on_with_its_rounds_and_windows",
    ],
    30: ["test_kills.py::test_kills_lose_nothing_and_leave_nothing"],
    31: ["cli/test_run.py::test_a_full_disk_behind_stdout_loses_no_file"],
    34: [
        "devices/test_nvml.py::test_names_are_made_safe",
        "test_security.py::test_no_escape_of_the_command_line_comes_back",
    ],
    35: [
        "cli/test_live.py::test_the_screen_is_whole_in_any_width_and_goes_when_it_is_over",
        "cli/test_run.py::test_closed_standard_streams_do_no_harm",
    ],
    37: ["cli/test_run.py::test_what_a_split_is_compared_with"],
}
