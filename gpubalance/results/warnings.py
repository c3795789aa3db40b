"""The warnings that results carry: a row each, of its code, the message, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator

from gpubalance.results.common import Warning_

COOLER = "look at its temperature and power limit (nvidia-smi -q -d PERFORMANCE)"

# With this warning there is no verdict
TOO_SLOW = "too-slow-for-profile"
# Devices slow each other down if each takes over so many times as long as alone.
TOGETHER = 1.1

# The code is what comes before a slash. In braces stand the facts that `warning` is given.
_ROWS = {
    "throttled": (
        "{throttled} during the measurement, which was repeated afterwards",
        f"{COOLER}, and measure again",
    ),
    "throttled/speed": (
        "{device} became {part} {slower} during the measurement: the split is for "
        "its speed at the end",
        "{advice}",
    ),
    "throttled/probe": (
        "{device} changed its speed{why} during the measurement: batches were "
        "measured again afterwards{left}",
        "{advice}, and probe again",
    ),
    "throttled/points": (
        "{device} was throttled ({reasons}) at batch {batches}: the step time there "
        "was measured again",
        "{advice}, and probe again",
    ),
    "telemetry-ended": (
        "{device} {fault}: NVML no longer reports anything about it. Its telemetry "
        "ends there, and later memory errors would not be seen",
        "{remedy}",
    ),
    "slower-than-profile": (
        "in {late} of the steps the real compute took longer than the profile's "
        "time: the figures are this machine's, not the profile's",
        "{advice}",
    ),
    "too-slow-for-profile": (
        "in most steps ({late}) the real compute took longer than the profile's "
        "time: the figures are this machine's and say nothing about the profile's "
        "devices",
        "{advice}",
    ),
    "slower-than-profile/points": (
        "{device}: at batch {batches} the real compute took longer than the profile's time: "
        "the figures are this machine's, not the profile's",
        "{advice}",
    ),
    "wide-interval": (
        "{wide}",
        "measure longer (--windows, --duration), with nothing else running",
    ),
    "wide-interval/points": (
        "{device}: the step time at batch {batches} is not known precisely enough: the "
        "95 % interval should be within ± 1 %, or ± 3 % up to half of the largest "
        "batch",
        "measure longer (--duration), with nothing else running",
    ),
    "not-steady": (
        "the step time still rose or fell when the warm-up ended",
        "measure again: a changing clock or another program may be the cause",
    ),
    "not-steady/machine": (
        "the machine is not steady: {split} gave {least} to {most} samples/s in "
        "{count} measurements; their median counts",
        "close other programs, and balance again",
    ),
    "not-steady/points": (
        "{device}: the step time at batch {batches} rose or fell during the "
        "measurement, so it was measured again",
        "probe again with nothing else running",
    ),
    "slow-steps": (
        "{slow}",
        "close other programs, or move them to another machine. If that does not "
        "help, check whether data or a checkpoint delays steps",
    ),
    "stamps-cost": (
        "timestamped steps took {costs} longer. Throughput comes from the other "
        "steps, but compute, wait and sync are off by up to that much",
        "larger batches reduce this cost",
    ),
    "parts-exceed-step": (
        "the slowest device's compute in timestamped steps is {excess} longer than a "
        "whole step without timestamps, so compute, wait and sync are off by up to "
        "that much",
        "measure longer, with nothing else running",
    ),
    "loss-not-finite": (
        "the loss became infinite or NaN during the measurement. That changes "
        "nothing about a step's work and time",
        "nothing to do if the samples are random",
    ),
    "resumed": (
        "{count} of its {what} measured before it was interrupted{since}",
        "nothing to do, unless the machine was changed in between: then measure without --resume",
    ),
    "slower-than-larger": (
        "{device}: a step of {batch} samples took {time}, longer than one of "
        "{larger} ({larger_time}), also when measured again",
        "nothing to do: plans use the larger batch. cuDNN chooses its algorithms by the size of a "
        "batch, and a multiple of 8 or 64 often has a faster one",
    ),
    "slower-than-larger/given": (
        "{device}: a step of {batch} samples takes {time}, longer than one of {larger} "
        "({larger_time}): plans use the larger batch",
        "measure both again: a first step, which compiles and tunes, does not count",
    ),
    "smaller-batch-failed": (
        "{device}: batch {batches} failed though a larger one trains",
        "nothing to do: fragmented memory, or a slower algorithm near the limit, can "
        "be the cause",
    ),
    "margin-unknown": (
        "{device}: TensorFlow does not report its memory, so --margin has no effect",
        "give the profile a memory size, or leave out --margin",
    ),
    "not-exact": (
        "{text}",
        "see gpubalance guide refused for what a split trains as one device does",
    ),
    "not-exact/batch-normalisation": (
        "{layers} not synchronised: each device normalises its own share{shares}, "
        "with noisier statistics than the whole batch's",
        "BatchNormalization(synchronized=True) uses the whole batch's statistics, "
        "and is exact",
    ),
    "random-layers": (
        "{layers}: each device draws its own random numbers, so training is as "
        "random as on one device, but not identical",
        'nothing to do; see "same result as one device" in gpubalance guide train',
    ),
    "not-compiled": (
        "the model is not compiled: it is measured with {compiled_with}, chosen by "
        "its outputs; a split trains with what you compile in split.scope()",
        "compile it in the function that builds it. If you have a training loop of "
        "your own, move it to the model's train_step: gpubalance guide train",
    ),
    "not-for-a-split": ("gpubalance balance will refuse this model: {why}", "{advice}"),
    "even-split-out-of-memory": (
        "{what} while the even split was measured for comparison: there is nothing to "
        "compare the split with",
        "use smaller batches, or measure with --baseline none",
    ),
    "even-is-faster": (
        "{split} gave {rate} samples/s, but the even split {even} gave {even_rate} "
        "in the same run: the faster one is proposed",
        "close other programs and balance again: the devices were slower than when "
        "the split was planned",
    ),
    "even-is-faster/finer": (
        "{split} gave {rate} samples/s, but the even split {even} gave {even_rate} "
        "in the same run: the faster one is proposed",
        "balance again with --batch-multiple 1: of all other splits only multiples of "
        "{multiple} were tried",
    ),
    "even-is-faster/not-asked": (
        "{split} gave {rate} samples/s, but the even split {even} gave {even_rate} "
        "in the same run. It is not proposed, because --global-batch, "
        "--batch-multiple or --margin excludes it",
        "balance again without these options, or run the even split: gpubalance run "
        "--batches {even_batches}",
    ),
    "batches-joined": (
        "the dataset's batches have {own} samples and differ in shape. For this "
        "measurement they were joined into batches of {size}, each padded to its "
        "longest sample; split.fit uses them as they are",
        "let the dataset make batches of {size} (batch or padded_batch)",
    ),
    "few-samples": (
        "{data} has {samples} samples, so a global batch has at most {samples}",
        "give more samples if a larger one is wanted",
    ),
    "batches-differ": (
        "the batches differ in shape: a step time is the mean over several of them, "
        "and plans use that mean. "
        "The batch limit was tried with the longest of the first batches",
        "keep memory free with --margin if longer batches may come",
    ),
    "new-shapes": (
        "batches of new shapes kept coming during the measurement: step times "
        "include compiling and tuning for each new shape",
        "pad to a few lengths: keras.utils.pad_sequences(…, maxlen=…) or "
        "tf.data.Dataset.bucket_by_sequence_length",
    ),
    "trace-without-gpu": (
        "{where}the trace shows the host, but not every GPU: {missing}",
        # https://developer.nvidia.com/ERR_NVGPUCTRPERM
        "CUPTI must be installed (the extra cuda brings it) and open to all users: "
        "`options nvidia NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d/, "
        "then restart; in a container --cap-add=SYS_ADMIN",
    ),
    "measured-in-parallel": (
        "the devices were measured at the same time: they may have disturbed each other",
        "leave out --parallel to measure each device alone",
    ),
    "pipeline-unknown": (
        "the input pipeline was not measured alone: {why}",
        "{advice}",
    ),
    "sync-unknown": (
        "the plan assumes that sync takes no time: no stored result of gpubalance "
        "balance that used this probe has measured it",
        "measure it with gpubalance balance, or give it with --sync, in seconds",
    ),
    "joint-unknown": (
        "the table has step times of single devices only. Only a joint step shows sync, "
        "taken as {sync} here, the times of each device beside the others, and the "
        "memory that the buckets of DistributedDataParallel need",
        "append those times to the table with torch_joint.py, and plan again: "
        "gpubalance guide pytorch has an example",
    ),
    "not-traced": ("{where}no trace was recorded: {why}", "{advice}"),
    "gpu-in-use": (
        "{device} is also used by {others}",
        "figures and limits hold only for what these programs leave free: end those "
        "that you don't need, and measure again",
    ),
    "gpu-left-out": (
        "{gpu} is left out: {why}",
        "name the devices that you mean (--gpus), or make it usable: gpubalance doctor says how",
    ),
    "untested-version": ("{untested}", "{remedy}, if something fails or looks wrong"),
    "tf-config-ignored": (
        "TF_CONFIG names a cluster of {count}: it is ignored, and only this host is "
        "measured",
        "nothing to do; a script that loads a plan for several hosts uses it",
    ),
    "plan-forced": ("the plan is for other devices: {differences}", "{advice}"),
    "data-changed": (
        "{why}",
        "if its samples now have another size, another split suits them: {balance}",
    ),
    "stamps-late": (
        "a device seems over twice as fast with the others as alone, which is "
        "impossible: timestamps within a step came late. Compute, wait and sync "
        "cannot be trusted; step times and samples/s do not use these timestamps",
        "keep the processor free for gpubalance and measure again; add --fresh if "
        "the probe was disturbed too",
    ),
    "slower-together": (
        "the devices slow each other down: each computes at least {factor:.1f} × as long as alone",
        "gpubalance independent shows by how much, without a sync between them; "
        "they share host cores, PCIe lanes, power and input",
    ),
    "slower-together/independent": (
        "the devices slow each other down: a step takes at least {factor:.1f} × as long as alone",
        "see which they lack: host cores (nproc), PCIe lanes (nvidia-smi topo -m), power or input; "
        "gpubalance guide independent",
    ),
    "shares-assumed": (
        "a block is assumed to take the same share of the simulated step time and "
        "memory as it has of the model's operations, weights and activations",
        "nothing to do: real devices are measured block by block",
    ),
}


def codes_and_texts() -> Iterator[str]:
    """Every code, message and remedy, these with their facts in braces."""
    for row, texts in _ROWS.items():
        yield row.partition("/")[0]
        yield from texts


def warning(row: str, **facts: object) -> Warning_:
    """The warning of that row, with these facts in its text."""
    message, remedy = _ROWS[row]
    return Warning_(
        code=row.partition("/")[0],
        message=message.format(**facts),
        next=remedy.format(**facts),
    )
