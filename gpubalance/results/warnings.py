"""The warnings that results carry: a row each, of its code, the message, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator

from gpubalance.results.common import Warning_

COOLER = "look at its temperature and power limit (nvidia-smi -q -d PERFORMANCE)"

# With this warning there is no verdict
TOO_SLOW = "too-slow-for-profile"

# The code is what comes before a slash. In braces stand the facts that `warning` is given.
_ROWS = {
    "throttled": (
        "{throttled} while it was measured, and measured once more after that",
        f"{COOLER}, and measure again",
    ),
    "throttled/speed": (
        "{device} became {part} {slower} while it was measured: "
        "the split is for its speed at the end",
        "{advice}",
    ),
    "throttled/probe": (
        "{device} changed its speed{why} while it was measured: "
        "batches were measured once more after that{left}",
        "{advice}, and probe again",
    ),
    "throttled/points": (
        "{device}: the step time at batch {batches} was of a throttled device ({reasons}), "
        "and was measured once more",
        "{advice}, and probe again",
    ),
    "telemetry-ended": (
        "{device} {fault}: NVML reports nothing of it any more. Its telemetry is of the time "
        "before, and whether its memory had errors after that is unknown",
        "{remedy}",
    ),
    "slower-than-profile": (
        "in {late} of the steps the real compute took longer than the profile's time, "
        "so the figures are this machine's and not the profile's",
        "{advice}",
    ),
    "too-slow-for-profile": (
        "in {late} of the steps, most of them, the real compute took longer than the profile's "
        "time: the figures are this machine's, and say nothing of the profile's devices",
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
        "{device}: the step time at batch {batches} is not known within ± 1 % (95 %), "
        "or within ± 3 % up to half of the largest batch",
        "measure longer (--duration), with nothing else running",
    ),
    "not-steady": (
        "the step time still had a trend when the warm-up ended",
        "run it again: clocks that rise or fall, or another program, may be the cause",
    ),
    "not-steady/machine": (
        "the machine is not steady: {split} gave {least} to {most} samples/s in {count} "
        "measurements, of which the median counts",
        "close other programs, and balance again",
    ),
    "not-steady/points": (
        "{device}: the step time at batch {batches} rose or fell while it was measured, "
        "and was measured once more",
        "probe again with nothing else running",
    ),
    "slow-steps": (
        "{slow}",
        "close other programs, or move them to another machine. "
        "If that does not help, see whether data or a checkpoint makes a step wait",
    ),
    "stamps-cost": (
        "steps in which the devices were timed took {costs} longer. "
        "Total throughput is from the others, but compute, wait and sync are only that exact",
        "larger batches reduce it",
    ),
    "parts-exceed-step": (
        "the slowest device's compute, timed in some steps, is {excess} longer than a whole step "
        "of the others, so compute, wait and sync are only that exact",
        "measure longer, with nothing else running",
    ),
    "loss-not-finite": (
        "the loss became infinite or NaN while it was measured, "
        "which changes nothing about a step's work and time",
        "nothing to do for a measurement on random data",
    ),
    "resumed": (
        "{count} of its {what} measured before it was interrupted{since}",
        "nothing to do, unless the machine was changed in between: then measure without --resume",
    ),
    "slower-than-larger": (
        "{device}: a step of {batch} samples took {time}, longer than one of {larger} "
        "({larger_time}), and did so when it was measured again",
        "nothing to do: plans use the larger batch. cuDNN chooses its algorithms by the size of a "
        "batch, and a multiple of 8 or 64 often has a faster one",
    ),
    "slower-than-larger/given": (
        "{device}: a step of {batch} samples takes {time}, longer than one of {larger} "
        "({larger_time}): plans use the larger batch",
        "measure both once more: a first step, which compiles and tunes, is no step time",
    ),
    "smaller-batch-failed": (
        "{device}: batch {batches} failed though a larger one trains",
        "nothing to do: memory in pieces, or a slower algorithm near the limit, can be the cause",
    ),
    "margin-unknown": (
        "{device}: TensorFlow does not report its memory, so no margin could be kept free",
        "give the profile a memory, or leave out --margin",
    ),
    "not-exact": (
        "{text}",
        "gpubalance guide refused says what a split trains exactly",
    ),
    "not-exact/batch-normalisation": (
        "{layers} not synchronised: each device normalises with its own share{shares}, "
        "whose statistics are noisier than the whole batch's",
        "BatchNormalization(synchronized=True) takes them over the whole batch, and is exact",
    ),
    "random-layers": (
        "{layers}: each device draws numbers of its own, "
        "so training is as random as on one device, and not the same",
        "nothing to do; gpubalance guide train, same result as one device",
    ),
    "not-compiled": (
        "the model is not compiled: it is measured with {compiled_with}, "
        "as its outputs suggest, and a split trains what is compiled in split.scope()",
        "compile it in that function; a training loop of your own belongs into the model's "
        "train_step: gpubalance guide train",
    ),
    "not-for-a-split": ("gpubalance balance will refuse this model: {why}", "{advice}"),
    "even-split-out-of-memory": (
        "{what}, interleaved with the run's split: there is no even split to compare with",
        "compare with smaller batches, or measure with --baseline none",
    ),
    "even-is-faster": (
        "{split} gave {rate} samples/s and the even split {even} beside it {even_rate}: "
        "the faster of them counts",
        "close other programs, and balance again: "
        "the devices were not as fast as when they were planned for",
    ),
    "even-is-faster/not-asked": (
        "{split} gave {rate} samples/s and the even split {even} beside it {even_rate}, "
        "but that is not what --global-batch, --batch-multiple or --margin asks for",
        "balance again without them, or run it: gpubalance run --batches {even_batches}",
    ),
    "batches-joined": (
        "the dataset's own batches have {own} samples and differ in shape: batches of {size} were "
        "made from them, each padded to its longest sample, "
        "but split.fit leaves such batches as they are",
        "let the dataset make batches of {size} there (batch or padded_batch)",
    ),
    "few-samples": (
        "{data} has {samples} samples, so a global batch has at most {samples}",
        "give more samples if a larger one is wanted",
    ),
    "batches-differ": (
        "the batches differ in shape: a step time is the mean over several of them, "
        "and plans use that mean. "
        "The batch limit was tried with the longest of the first batches",
        "keep some memory free with --margin if longer ones may come",
    ),
    "new-shapes": (
        "batches of new shapes kept coming while it was measured: step times have what TensorFlow "
        "takes to compile the step or choose algorithms for each",
        "pad to a few lengths: keras.utils.pad_sequences(…, maxlen=…) or "
        "tf.data.Dataset.bucket_by_sequence_length",
    ),
    "trace-without-gpu": (
        "{where}the trace has the host's part, and not that of every GPU: {missing}",
        # https://developer.nvidia.com/ERR_NVGPUCTRPERM
        "CUPTI must be there (it comes with the extra cuda) and open to all users: "
        "`options nvidia NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d/, then restart; "
        "in a container --cap-add=SYS_ADMIN",
    ),
    "measured-in-parallel": (
        "the devices were measured at the same time: they may have disturbed each other",
        "leave out --parallel for what each can do alone",
    ),
    "pipeline-unknown": (
        "the input pipeline was not measured alone: {why}",
        "{advice}",
    ),
    "sync-unknown": (
        "the plan assumes that sync takes no time: "
        "no balance by this probe that measured it is kept here",
        "gpubalance balance measures it and plans again; or give --sync, in seconds",
    ),
    "joint-unknown": (
        "the table has step times of devices alone. Only a joint step shows sync, taken as {sync} "
        "here, what each device takes beside the others, and the memory that the buckets of "
        "DistributedDataParallel take",
        "torch_ddp.py --times appends those times to the table: then plan again. "
        "gpubalance guide pytorch",
    ),
    "not-traced": ("{where}no trace was recorded: {why}", "{advice}"),
    "gpu-in-use": (
        "{device} is used by {others}",
        "figures and limits cover only what is left: end what you don't need, and measure again",
    ),
    "gpu-left-out": (
        "{gpu} is left out: {why}",
        "name the devices that you mean (--gpus), or make it usable: gpubalance doctor says how",
    ),
    "untested-version": ("{untested}", "{remedy}, if something fails or looks wrong"),
    "tf-config-ignored": (
        "TF_CONFIG names a cluster of {count}: it is ignored, and this host is measured alone",
        "nothing to do; a script that loads a plan for several hosts goes by it",
    ),
    "plan-forced": ("the plan is for other devices: {differences}", "{advice}"),
    "data-changed": (
        "{why}",
        "if its samples have another size now, other batches suit them: {balance}",
    ),
    "stamps-late": (
        "a device seems over twice as fast beside the others as alone, which can't be: timestamps "
        "within a step came late, so its compute, wait and sync say nothing. Step times and "
        "samples/s are measured without them",
        "leave the processor to gpubalance, and measure again; with --fresh if the probe was "
        "disturbed",
    ),
    "shares-assumed": (
        "a block's part of its device's profile is assumed to be its part of the model's "
        "operations, weights and activations",
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
