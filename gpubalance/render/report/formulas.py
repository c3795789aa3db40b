"""What each number means and how it is computed: one table, for reports and for the guide's chapter `numbers`."""

from __future__ import annotations

from typing import NamedTuple


class Formula(NamedTuple):
    """A number, its formula in the signs of TERMS, and how it is measured or where it comes from."""

    number: str
    formula: str
    meaning: str


TERMS = (
    "A step is one synchronous forward, backward, all-reduce and weight update over all devices. bᵢ is a device's "
    "batch, cᵢ its compute time, uᵢ its update time, T the step time, rᵢ the most samples per second that the device "
    "gives alone."
)

STEP = (
    Formula(
        "step time",
        "T",
        "wall time of some consecutive steps, with all devices idle at both ends, divided by their number; the "
        "median of these timings. Simulated devices have clocks of their own, which go on from timing to timing as in "
        "training. On GPUs whose updates differ, a timing of one step is longer than a step of training, by that "
        "difference at most",
    ),
    Formula(
        "half, 95 % take up to",
        "p50, p95",
        "where batches differ in shape: quantiles of the timestamped steps, each with its input wait, and with what "
        "timestamps do not see: T less their mean",
    ),
    Formula("samples/s, total", "Σ bᵢ / T", "the throughput of the split"),
    Formula("samples/s, a device's", "bᵢ / T", "its share of the total"),
    Formula(
        "compute",
        "cᵢ",
        "from when a replica has its inputs to when its own gradients are on its device; median of the timestamped "
        "steps. Of one device alone T − uᵢ − w: it has nothing to sync",
    ),
    Formula(
        "update",
        "uᵢ",
        "from when the summed gradients are on a device to when its weights are updated; median of the timestamped "
        "steps",
    ),
    Formula("wait", "m − cᵢ − uᵢ", "m is the slowest replica's cᵢ + uᵢ, median of the timestamped steps"),
    Formula(
        "sync",
        "T − m − w − rare slow steps",
        "what is left: all-reduce. Beside rare slow steps it is M − m − w, so of the timestamped steps alone",
    ),
    Formula(
        "rare slow steps",
        "max(0, T − M)",
        "what they add to T without waits for data: M is the median of the timestamped steps, each with its input "
        "wait. 0 where none of them takes over 1.5 M, and a timing's steps do not take 0.7 M longer than those of the "
        "shortest timing and than as many of M",
    ),
    Formula(
        "input wait",
        "w",
        "how long the host waits for data; median of the timestamped steps, and what rare waits add to T. As a GPU may "
        "compute meanwhile, w is at most so long that M, above, is T",
    ),
    Formula("computing", "cᵢ / T", "part of the step in which a device computes"),
    Formula("imbalance", "max (cᵢ + uᵢ) / mean (cᵢ + uᵢ)", "1 is perfect"),
    Formula(
        "× the even split",
        "(B / T) / (B′ / T′)",
        "the total over that of the even split (B′, T′), measured in turns; B′ is B, in micro-batches if memory "
        "requires them; if those do not fit either, B′ is less than B and is shown",
    ),
    Formula(
        "its interval",
        "q · exp(± t · √(e² + e′²))",
        "q is the ratio; e and e′ are the errors of the two step times, and t is for Welch's degrees of freedom",
    ),
    Formula(
        "± and ranges",
        "median · exp(± t · e)",
        "95 % confidence, within this run; e is the error, below, and t Student's for its degrees of freedom",
    ),
    Formula(
        "error e of a step time",
        "√(π/2) · s / √n′, n′ = n · (1 − ρ)/(1 + ρ)",
        "s is the standard deviation of the logarithms of n timings, ρ their correlation, each with the next, and n′ "
        "how many independent ones they are worth: at least 3, with n′ − 1 degrees of freedom. A short series shows "
        "too small a ρ and s, so (2 + 4ρ)/n is added to ρ, and s² is taken n′/(n′ − 1) times. A timing more than 5 "
        "(scaled) MADs off counts as that far, of a fifth of them at most. e is no less than that of batch means: "
        "s / √k · √(1 + (π − 2)/2 · k/n) of the medians of k = 5 consecutive groups",
    ),
    Formula("MAD", "median |xᵢ − median x|", "median absolute deviation of the timings, unscaled"),
    Formula(
        "stamp cost",
        "T(timestamped) / T − 1",
        "by what part a timestamped step takes longer; of steps that wait for data only what is beyond that wait",
    ),
    Formula("excess", "max(0, m + input wait − T)", "by how much timestamping disturbs the step"),
)

ALONE = (
    Formula(
        "step-time model",
        "t(b) = α + β · b",
        "the line with the least Σ ((α + β·b − t) / t)² through the measured points; α is the fixed cost of a step, "
        "its update included",
    ),
    Formula("model's throughput", "b / (α + β · b)", "towards 1/β as the batch grows"),
    Formula("residual", "max |α + β·b − t| / t", "above 3 %, planning uses the measured curve, made monotone"),
    Formula("batch limit", "fits, fails", "the largest batch that trains and the smallest that does not, both tried"),
    Formula("solo best", "rᵢ = max b / t(b)", "the highest measured throughput of the device alone"),
    Formula(
        "solo sum",
        "Σ rᵢ",
        "of all devices that were asked for, also of those left out: the ceiling that no split can pass",
    ),
    Formula("of the solo sum", "(B / T) / Σ rᵢ", "scaling efficiency"),
    Formula("FLOP/s, MFU", "FLOP of a step, forward and backward · samples/s; over the peak", "at the solo best"),
    Formula("samples/J", "samples/s · seconds / energy", "at the solo best"),
)

GAP = (
    Formula("left out", "Σ rᵢ of devices without samples", "what they would give alone"),
    Formula("batches that are not the best alone", "Σ rᵢ − Σ bᵢ / tᵢ(bᵢ)", "because of memory or the global batch"),
    Formula("slower than alone", "bᵢ / tᵢ(bᵢ) − bᵢ / (cᵢ + uᵢ)", "for each device, in the joint run"),
    Formula(
        "waiting for the slowest",
        "Σ bᵢ / (cᵢ + uᵢ) − B / max (cᵢ + uᵢ)",
        "the cost of the imbalance that is left",
    ),
    Formula("sync, of the distance", "B / max (cᵢ + uᵢ) − B / T", "everything but the slowest compute and update"),
)

PLAN = (
    Formula(
        "predicted step time",
        "max (cᵢ(bᵢ) + uᵢ) + sync",
        "cᵢ(b) = tᵢ(b) − uᵢ; in k micro-batches of m: (k − 1) · cᵢ(m), and cᵢ of the first. One device alone has no "
        "sync. Only the all-reduce is a barrier: a device whose update is over begins with its next batch",
    ),
    Formula("learning rate, SGD", "B / B₀", "B₀ is the global batch that it suits now (Goyal et al. 2017)"),
    Formula(
        "learning rate, SGD, measured",
        "(1 + φ / B₀) / (1 + φ / B)",
        "where the noise scale φ is known (McCandlish et al. 2018, eq. 2.9)",
    ),
    Formula("learning rate, Adam", "√(B / B₀)", "Malladi et al. 2022"),
)

NOISE = (
    Formula(
        "noise scale",
        "φ = tr Σ / ‖G‖²",
        "in samples: Σ is the covariance of one sample's gradient, G its mean (McCandlish et al. 2018). A ratio of the "
        "means of both over the stamped steps; its interval is Fieller's (1954)",
    ),
    Formula(
        "tr Σ of a step",
        "Σ bᵢ‖gᵢ − g‖² / (n − 1)",
        "gᵢ is the mean gradient of a device's bᵢ samples, or of a micro-batch, g that of all, n how many there are",
    ),
    Formula("‖G‖² of a step", "‖g‖² − tr Σ / B", "without bias, as tr Σ is, for every split"),
    Formula("efficiency", "1 / (1 + B / φ)", "what a sample is worth beside one of a very small batch"),
    Formula("goodput", "B / T · 1 / (1 + B / φ)", "Pollux, Qiao et al., OSDI 2021"),
)

INDEPENDENT = (
    Formula("alone", "sᵢ = bᵢ / Tᵢ", "Tᵢ is the median step time of the device while the others have nothing to do"),
    Formula("at once", "aᵢ = bᵢ / T′ᵢ", "T′ᵢ is that of timings that began and ended while every device was measured"),
    Formula(
        "contention", "1 − aᵢ / sᵢ", "by how much less a device gives at once; its steps take sᵢ / aᵢ times as long"
    ),
    Formula("the sum at once", "Σ aᵢ", "of the devices that were measured at once"),
    Formula("the sum's ±", "Σ aᵢ · eᵢ / Σ aᵢ", "its error: errors add up, as what disturbs one may disturb all alike"),
)

LAYERS = (
    Formula(
        "forward, backward",
        "Fᵢ, Bᵢ",
        "a device's passes of all micro-batches: their part of the stamped steps, the median of it, times T",
    ),
    Formula(
        "transfer",
        "Σ max(0, min(r, s) − max(f, t))",
        "before each task that began at s on a device free from f on, whose inputs were all sent at t and there at r",
    ),
    Formula("bubble", "T − Fᵢ − Bᵢ − transfer − uᵢ", "what is left of a step without stamps"),
    Formula(
        "bubble at best",
        "(S − 1) / (K + S − 1)",
        "for S equal stages and K micro-batches, without transfers",
    ),
    Formula(
        "predicted", "the simulated schedule", "each task after what it takes and after the one before it on its device"
    ),
    Formula("× over the batch split", "(K · m / T) / (B / T′)", "T′ is the step time of the batch split B"),
)

GROUPS = (
    ("A step of several devices", STEP),
    ("A model of its own on each device", INDEPENDENT),
    ("A model cut over devices", LAYERS),
    ("A device alone", ALONE),
    ("The distance from the solo sum; the parts are all of it", GAP),
    ("What is planned", PLAN),
    ("How large a batch is worth it", NOISE),
)
FORMULAS = tuple(formula for _, group in GROUPS for formula in group)
