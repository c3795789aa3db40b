"""The title and the unit of every table's columns, by the name of the field in the result."""

from __future__ import annotations

from gpubalance.render.report.table import Column, Unit

_COLUMNS: dict[str, tuple[str, Unit]] = {
    # what the row is about
    "split": ("split", "text"),
    "device": ("device", "text"),
    "name": ("name", "text"),
    "uuid": ("UUID", "text"),
    "bus_id": ("bus id", "text"),
    "simulated": ("simulated", ""),
    "setting": ("setting", "text"),
    "value": ("value", "text"),
    "round": ("round", ""),
    "trial": ("trial", ""),
    "sample": ("timing", ""),
    # the split
    "batches": ("batches", "text"),
    "batch": ("batch", ""),
    "micro_batch": ("micro-batch", ""),
    "global_batch": ("global batch", ""),
    "even_global_batch": ("even split's", ""),
    "limit": ("up to", ""),
    "binds": ("bound by", "text"),
    # throughput
    "predicted_throughput": ("predicted", "samples/s"),
    "throughput": ("throughput", "samples/s"),
    "throughput_from": ("from (95 %)", "samples/s"),
    "throughput_to": ("to (95 %)", "samples/s"),
    "speedup_over_even": ("× over even", ""),
    "speedup_from": ("from (95 %)", ""),
    "speedup_to": ("to (95 %)", ""),
    "solo_best": ("best alone", "samples/s"),
    "solo_best_batch": ("batch", ""),
    "sensible_batch": ("within 5 % from", ""),
    "solo_sum": ("solo sum", "samples/s"),
    "scaling_efficiency": ("of the solo sum", "%"),
    "gain": ("throughput would change by", "%"),
    "cause": ("from the solo sum to what they give together", "text"),
    "rate": ("throughput", "samples/s"),
    "part": ("of the solo sum", "%"),
    "model": ("model", "text"),
    "solo_throughput": ("alone", "samples/s"),
    "contention": ("contention", "%"),
    "contention_from": ("from (95 %)", "%"),
    "contention_to": ("to (95 %)", "%"),
    "overlap_s": ("measured at once for", "s"),
    "joint_batches": ("one model on all, split", "text"),
    "joint_throughput": ("gave", "samples/s"),
    "measured": ("measured", "text"),
    "failure": ("failure", "text"),
    # time
    "step_time_s": ("step time", "ms"),
    "step_time_from_s": ("from (95 %)", "ms"),
    "step_time_to_s": ("to (95 %)", "ms"),
    "mad_s": ("MAD", "ms"),
    "compute_s": ("compute", "ms"),
    "update_s": ("update", "ms"),
    "wait_s": ("wait", "ms"),
    "sync_s": ("sync", "ms"),
    "input_wait_s": ("input wait", "ms"),
    "slow_s": ("rare slow steps", "ms"),
    "excess_s": ("excess", "ms"),
    "utilisation": ("computing", "%"),
    "imbalance": ("imbalance", ""),
    "stamp_cost": ("stamp cost", "%"),
    "warmup_steps": ("warm-up steps", ""),
    "steps": ("measured steps", ""),
    "steps_per_sample": ("steps a timing", ""),
    "samples": ("timings", ""),
    "at_s": ("ended at", "s"),
    "seconds": ("took", "s"),
    "measured_s": ("in measured steps", "s"),
    "elapsed_s": ("in all", "s"),
    # the step-time model
    "alpha_s": ("α", "ms"),
    "beta_s": ("β a sample", "µs"),
    "residual": ("off by at most", "%"),
    "planned_with": ("planned with", "text"),
    # the batch limit
    "fits": ("trains", ""),
    "fails": ("does not", ""),
    "max_batch": ("looked up to", ""),
    "outcome": ("outcome", "text"),
    "reason": ("reason", "text"),
    "fresh": ("in a fresh worker", ""),
    # memory
    "memory_peak_bytes": ("memory peak", "GiB"),
    "memory_bytes": ("memory", "GiB"),
    "needed_bytes": ("the next one asked for", "GiB"),
    # how certain it is
    "precise": ("within ±1 %", ""),
    "steady": ("steady", ""),
    "measured_again": ("measured again", ""),
    "late_part": ("later than its profile", "%"),
    "complete": ("whole", ""),
    "children": ("workers", ""),
    "failures": ("failures", "text"),
    # compute and energy
    "flops_per_sample": ("FLOP a sample", ""),
    "flops_per_s": ("at its best", "FLOP/s"),
    "peak_flops_per_s": ("peak", "FLOP/s"),
    "mfu": ("MFU", "%"),
    "samples_per_joule": ("energy", "samples/J"),
    # telemetry
    "readings": ("readings", ""),
    "duration_s": ("over", "s"),
    "temperature_c": ("temperature", "°C"),
    "power_w": ("power", "W"),
    "energy_j": ("energy", "J"),
    "sm_clock_mhz": ("SM clock", "MHz"),
    "memory_clock_mhz": ("memory clock", "MHz"),
    "throttle_reasons": ("throttled by", "text"),
    "ecc_uncorrected": ("uncorrected ECC errors", ""),
    # what samples are worth
    "of": ("split", "text"),
    "efficiency": ("a sample's worth", "%"),
    "goodput": ("goodput", "samples/s"),
    # the learning rate
    "from_batch": ("from global batch", ""),
    "to_batch": ("to global batch", ""),
    "linear": ("times, with SGD", ""),
    "measured_factor": ("by the noise scale", ""),
    "square_root": ("times, with Adam", ""),
}


def column(key: str, label: str | None = None) -> Column:
    """The column of a field; `label` replaces its usual title."""
    usual, unit = _COLUMNS[key]
    return Column(key, label or usual, unit)
