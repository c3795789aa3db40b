"""Whatever is refused before any device is touched gets one error.

It is in rows 26, 27, 31, 32 and 34, among others.
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest

from tests.cli.program import QUICK_PAIR, ROOT
from tests.render.samples import BALANCE, PROBE
from tests.support.in_process import ESCAPE, Program

NAMES = {
    "quick": shlex.quote(QUICK_PAIR),
    "hosts": shlex.quote(str(ROOT / "configs" / "two-hosts.toml")),
    "saved": ROOT / "tests" / "saved",
    "long": "x" * 10_000,
    "digits": "9" * 10_000,
}
# The folder has plan.json, probe.json, estimate.json, there.html and huge, a file of 100 MB.
REFUSED = {
    "run --simulate {quick} --quiet": [
        (
            "--batches 1 2 3",
            2,
            "batches: 3 given for 2 devices\n  → give one whole number per device, in --gpus",
        ),
        (
            "--plan plan.json -o plan.json --overwrite",
            2,
            "-o plan.json is a file that run reads\n  → give another -o",
        ),
        ("--force", 2, "--force is for --plan\n"),
        ("--model resnet5", 4, "there is no model 'resnet5': did you mean ResNet50?\n"),
        (
            "--model small --data nothere.py:data",
            2,
            "--data: there is no file nothere.py\n",
        ),
        ("--model net.h5", 4, "net.h5: a file of that kind may hold code"),
        (
            "--model nothere.keras",
            2,
            "there is no file nothere.keras\n  → give its path: --model folder/saved.keras\n",
        ),
        (
            "--data train.py",
            2,
            "there is no file train.py\n  → give its path: --data folder/train.py:function\n",
        ),
        (
            "--batchs 8 8",
            2,
            "no such option: --batchs (Possible options: --batches, --micro-batches)\n",
        ),
        (
            "plan.json",
            2,
            "got unexpected extra argument(s) (plan.json)\n  → gpubalance run --help\n",
        ),
        ("--batches", 2, "option '--batches' requires an argument"),
        ("--windows 1.5", 2, "--windows '1.5' should be a valid integer, "),
        (
            "--plan paln.json",
            2,
            "  → did you mean plan.json?\n    gpubalance balance -o paln.json ",
        ),
        (
            "--plan estimate.json",
            4,
            "estimate.json is an estimate that --dry-run wrote: nothing was measured",
        ),
        ("--gpus '\u202e0\x1b[2J'", 2, "there is no device"),
        (
            "--batches 0 0",
            2,
            "at least one device needs a batch above 0\n  → give one whole number per device, "
            "in --gpus order",
        ),
        ("--batches -5 3", 2, "--batches '-5' should be greater than or equal to 0\n"),
        ("--gpus ,", 2, "--gpus needs a value"),
        (
            "--batches 8 8 --micro-batches 4",
            2,
            "each batch needs one micro-batch, not 1 for 2\n",
        ),
        (
            "--batches 8 8 --micro-batches 8 16",
            2,
            "micro-batches must be from 1 to their batch",
        ),
        ("--duration nan", 2, "--duration 'nan' should be a finite number"),
        (
            "--precision fp16",
            2,
            "--precision 'fp16' should be 'float32', 'tf32', 'mixed_float16' or 'mixed_b",
        ),
        ("--all-reduce nccl", 2, "needs GPUs"),
        (
            "--all-reduce ring",
            2,
            "is for several hosts, and the devices are on one\n  → use auto\n",
        ),
        (
            "--model '\udc80.py:build'",
            2,
            "--model '\\udc80.py:build' should be a valid string, ",
        ),
        (
            "-o /nowhere/run.json",
            3,
            "can't write -o /nowhere/run.json: No such file or directory",
        ),
        ("-o /tmp", 2, "is not a file"),
        ("--plan huge", 4, "huge is larger than 32 MiB"),
        ("--json=yes", 2, "option '--json' does not take a value\n"),
        (
            "--plan plan.json --batches 8 8",
            2,
            "--plan has its own devices, batches and settings\n  → leave out --plan",
        ),
        (
            "--plan plan.json --xla",
            2,
            "--plan has its own devices, batches and settings\n  → leave out --plan, or ",
        ),
        ("--data mine:samples --input host", 2, "--input host is for random samples"),
        (
            "--tensorboard there.html/below",
            3,
            "can't write to --tensorboard there.html/below",
        ),
        ("--trace there.html", 3, "can't write to --trace there.html"),
    ],
    "probe --simulate {quick}": [
        (
            "--margin 512",
            2,
            "--margin: 512 is 512 bytes: give a unit, 512MiB, or 512B if you mean it\n",
        ),
        ("--margin '5 GB'", 2, "--margin: '5 GB' is not a size"),
    ],
    "balance --simulate {quick}": [
        (
            "--dry-run -o plan.json --overwrite",
            2,
            "plan.json exists, and --dry-run measures nothing",
        ),
        ("--global-batch 100", 2, "the nearest that is possible: 96 or 104"),
        (
            "--max-global-batch 4",
            2,
            "a global batch of at most 4 is less than the least batch, 8",
        ),
        ("--accumulate {digits}", 2, "--accumulate: auto, off or a number"),
    ],
    "run": [
        ("--plan nowhere.json", 2, "can't read nowhere.json"),
        ("--plan plan.json", 2, "simulate them as it was made: "),
    ],
    "plan": [
        (
            "--simulate {quick}",
            4,
            "make one: gpubalance probe --simulate {quick} --gpus 0 1",
        ),
        ("{quick}", 4, "is not JSON"),
        ("probe.json -o /dev/null --overwrite", 2, "-o /dev/null is not a file"),
        ("probe.json --global-batch 4", 2, "the nearest that is possible: 8"),
        (
            "probe.json --precision mixed_float16",
            2,
            "a file of measurements has its own model and settings\n  → leave out the ",
        ),
        ("'\x1b[31m[red]no.json'", 2, "can't read [red]no.json"),
    ],
    "compare": [
        (
            "{saved}/guess.json",
            2,
            "guess.json is compared with nothing: give a second result",
        ),
        ("{saved}/guess.json nowhere.json", 2, "can't read nowhere.json"),
        (
            "{saved}/guess.json {saved}/balanced.json --fail-slower 100%",
            2,
            "--fail-slower '100%' should be less",
        ),
        (
            "{saved}/guess.json {saved}/balanced.json --fail-slower 2,5%",
            2,
            "--fail-slower '2,5' should be a ",
        ),
    ],
    "independent --simulate {quick}": [
        (
            "--gpus 0",
            2,
            "needs at least 2 devices; only GPU:0 selected\n  → --gpus 0 1\n",
        ),
        ("--gpus 0 1 --model small small small", 2, "--model: 3 given for 2 devices\n"),
        ("--batches 8 0", 2, "--batches '0' should be greater than or equal to 1\n"),
    ],
    "layers": [
        ("--simulate {hosts}", 2, "layers are cut over the devices of one host")
    ],
    "devices --simulate {hosts} --hosts alpha": [
        ("", 2, "--hosts has no beta, which the profile's devices")
    ],
    "doctor": [
        ("--hosts alpha --gpus beta:0", 2, "there is no device 'beta:0' on alpha"),
        ("--via 'env {{host}}'", 2, "--via needs --hosts"),
    ],
    "run --simulate {hosts}": [
        (
            "--all-reduce hierarchical",
            2,
            "--all-reduce hierarchical works on one host only, and the ",
        )
    ],
    "run --simulate 4 --batches 8 8 8 0": [
        (
            "--all-reduce hierarchical",
            2,
            "if their number is odd, and 3 of 4 have samples in this split\n  → use ",
        )
    ],
    "balance --simulate 3": [
        (
            "--all-reduce hierarchical",
            2,
            "--all-reduce hierarchical drops the gradients of one device if ",
        )
    ],
    "report plan.json": [
        (
            "--markdown --csv",
            2,
            "--markdown and --csv both print on stdout\n  → give one of them at a time",
        ),
        (
            "--html plan.json --overwrite",
            2,
            "--html plan.json is one of the results\n  → give another --html",
        ),
        (
            "--html there.html",
            2,
            "there.html exists\n  → give another --html, or --overwrite",
        ),
        ("--html .", 2, "--html . is not a file\n  → give a file's name"),
        (
            "--html no/a.html",
            3,
            "can't write --html no/a.html: No such file or directory\n  → give another --html",
        ),
        (
            "--png there.html",
            3,
            "can't write to --png there.html: it is a file\n  → give another --png",
        ),
        (
            "nix.json --csv",
            2,
            "can't read nix.json: No such file or directory\n  → gpubalance run -o nix.json ",
        ),
        (
            "there.html --csv",
            4,
            "there.html is not JSON: expected value at line 1 column 1\n  → ",
        ),
    ],
    # Ten thousand characters are given for a name, a number, a file or a command.
    "run --simulate 2": [
        ("--gpus {long}", 2, "there is no device"),
        ("--plan {long}", 4, "can't read"),
        ("-o {long}", 3, "File name too long"),
        ("--batches {digits}", 2, ""),
        ("--precision {long}", 2, ""),
        ("--{long}", 2, ""),
    ],
    "devices": [
        (
            "--simulate configs/quick-piar.toml",
            2,
            "  → did you mean configs/quick-pair.toml?\n",
        ),
        ("--simulate {long}", 4, "File name too long"),
        ("--simulate {digits}", 2, "--simulate"),
        ("--simulate huge", 4, "is larger than 1 MiB"),
        ("--simulate 0", 2, "--simulate 0: from 1 to 64 devices"),
        ("--simulate 65", 2, "--simulate 65: from 1 to 64 devices"),
        ("--simulate .", 4, "can't read ."),
        ("--simulate /dev/zero", 4, "is larger than 1 MiB"),
        ("--simulate 'no\x9b2J.toml'", 2, "can't read no"),
    ],
    "": [("{long}", 2, "")],
}
ROWS = [
    (f"{command} {words}", code, says)
    for command, rows in REFUSED.items()
    for words, code, says in rows
]


@pytest.mark.parametrize(
    ("line", "code", "says"), ROWS, ids=[ascii(line[:60]) for line, _, _ in ROWS]
)
def test_26_27_31_32_34_one_line(
    in_process: Program, line: str, code: int, says: str
) -> None:
    """What is wrong gets one line that says what is right."""
    shutil.copy(BALANCE, "plan.json")
    shutil.copy(PROBE, "probe.json")
    Path("estimate.json").write_text('{"kind": "balance-estimate"}')
    Path("configs").mkdir()
    shutil.copy(QUICK_PAIR, "configs")
    Path("huge").touch()
    os.truncate("huge", 100 << 20)
    Path("there.html").write_text("mine")
    done = in_process(shlex.split(line.format(**NAMES)))
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("error: ")
    assert says.format(**NAMES) in done.err
    assert not ESCAPE.search(done.err)
    assert Path("there.html").read_text() == "mine"
