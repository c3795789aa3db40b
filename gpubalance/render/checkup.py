"""What the checks of a machine, or of a model and its data, found, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from gpubalance.numbers.units import format_bytes
from gpubalance.render.table import Paragraph, prose
from gpubalance.results.checkup import (
    FEW_SAMPLES,
    Check,
    Checkup,
    Checkups,
    ModelCheck,
    Status,
    few_samples_text,
)
from gpubalance.results.common import Model
from gpubalance.settings.settings import Settings
from gpubalance.text import clean, clean_lines


def check_summary(check: ModelCheck) -> Iterator[Paragraph]:
    """Whether a split can train it, how large it is, and the batches of its data."""
    if check.refused is not None:
        split = "a split can't train it, only one device can"
    elif any(warning.code == "not-exact" for warning in check.warnings):
        split = "a split trains it, but not exactly as one device does"
    elif check.compiled_with is not None:
        split = "a split trains it once it is compiled"
    else:
        split = "a split trains it"
    yield f"{check.settings.model} can be measured; {split}"
    yield model_text(check.model, check.settings.data, check.own_batch, check.samples)


def model_text(
    model: Model, data: str | None, own_batch: int | None, samples: int | None
) -> str:
    """The model's weights, what an all-reduce moves, and the batches of the data, in a line."""
    size = format_bytes(model.gradient_bytes)
    weights = (
        f"{model.name}: {model.parameters:,} trainable parameters, {size} of gradients"
    )
    if data is None:
        return f"{weights}; random samples"
    gives = []
    if own_batch:
        gives.append(f"batches of {own_batch}")
    if samples is None:
        gives = gives or ["samples"]
    elif samples <= FEW_SAMPLES:
        gives.append(few_samples_text(samples))
    else:
        gives.append(f"{samples:,} samples in all")
    return f"{weights}; {data} gives {', '.join(gives)}"


def model_built_text(
    settings: Settings,
    model: Model,
    own_batch: int | None,
    warned: Sequence[str],
    samples: int | None,
) -> str:
    """The same while a balance begins, with what a split does not train exactly."""
    texts = [model_text(model, settings.data, own_batch, samples)]
    texts += [f"not exact: {text}" for text in warned]
    return "; ".join(texts)


_NARROW = 60  # below this many columns the detail gets lines of its own
_STATUSES: tuple[Status, ...] = ("failure", "warning", "skipped", "ok")
_STATUS_WIDTH = max(map(len, _STATUSES))
_LEAST = 24

Paint = Callable[[Status, str], str]


def checkup_text(
    checkup: Checkup | Checkups, columns: int = 80, paint: Paint = lambda _, word: word
) -> str:
    """The checkup in lines of at most `columns`, but for longer words; hosts under their names.

    `paint` may colour a status.
    """
    if isinstance(checkup, Checkups):
        texts = [
            f"{host.host}\n{checkup_text(host, columns, paint)}"
            for host in checkup.hosts
        ]
        return "\n\n".join(texts)
    width = max(_LEAST, columns)
    longest = max((len(check.what) for check in checkup.checks), default=0)
    lines = prose(_counts(checkup), width, hanging="")
    for check in checkup.checks:
        lines += _check_lines(check, width, longest, paint)
    return "\n".join(lines)


def _counts(checkup: Checkup) -> str:
    """`nothing is wrong: 2 skipped, 12 ok`."""
    counts = Counter(check.status for check in checkup.checks)
    texts = []
    for status in _STATUSES:
        plural = "s" if status in ("failure", "warning") and counts[status] > 1 else ""
        if counts[status]:
            texts.append(f"{counts[status]} {status}{plural}")
    text = ", ".join(texts)
    if not checkup.complete:
        return f"{text}; cut short"
    if counts["failure"] or counts["warning"]:
        return text
    return f"nothing is wrong: {text}"


def _check_lines(check: Check, width: int, longest: int, paint: Paint) -> list[str]:
    word = check.status.ljust(_STATUS_WIDTH)
    detail = clean(check.detail, 1000)
    if width < _NARROW:
        indent = "  "
        lines = [f"{word}  {check.what}", *prose(detail, width, indent, indent)]
    else:
        head = f"{word}  {check.what.ljust(longest)}  "
        indent = " " * len(head)
        lines = prose(detail, width, head, indent) or [head.rstrip()]
    lines[0] = paint(check.status, word) + lines[0].removeprefix(word)
    mark = "→ "
    for line in clean_lines(check.next or "").splitlines():
        lines += prose(line, width, f"{indent}{mark}", f"{indent}  ")
        mark = "  "
    return lines
