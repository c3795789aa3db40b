"""What is refused before any device is touched, of rows 26, 27, 31, 32 and 34 among others: each gets one error."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest

from tests.bench.in_process import ESCAPE, Program
from tests.cli.program import QUICK_PAIR, ROOT
from tests.render.samples import BALANCE, PROBE

NAMES = {
    "quick": shlex.quote(QUICK_PAIR),
    "saved": ROOT / "tests" / "saved",
    "long": "x" * 10_000,
    "digits": "9" * 10_000,
}
# In a folder with plan.json, probe.json, estimate.json, models.py, there.html and huge, a file of 100 MB.
REFUSED = {
    "run --simulate {quick} --quiet": [
        ("--gpus 0 1 --batches 820", 2, "1 batch for 2 devices"),
        ("--gpus 0 --batches 820 568", 2, "2 batches for 1 device"),
        ("--batches 1 2 3", 2, "3 batches for 2 devices"),
        ("--batches 120", 2, "1 batch for 2 devices\n  → give each device a batch, in the order of --gpus, or name"),
        ("--batches 120", 2, " devices that train: --gpus 0\n"),
        ("--batch 8 8", 2, "no such option: --batch\n  → did you mean --batches?\n"),
        ("--batchs 8 8", 2, "  → did you mean --batches?\n"),
        ("plan.json", 2, "did you mean --plan plan.json?"),
        ("--batches", 2, "--batches needs a value"),
        ("--windows 1.5", 2, "--windows takes a whole number, not '1.5'\n  → gpubalance run --help\n"),
        ("--epoch 50,000", 2, "--epoch takes a whole number, not '50,000'\n  → gpubalance run --help\n"),
        ("--model model.py:net", 2, "--model: there is no file model.py\n  → did you mean --model models.py:net?\n"),
        ("--plan paln.json", 4, "  → did you mean plan.json?\n    gpubalance balance --simulate {quick} -o paln.json "),
        ("--plan estimate.json", 4, "estimate.json is an estimate that --dry-run wrote: nothing was measured"),
        ("--gpus 0 0 --batches 1 2", 2, "named twice"),
        ("--gpus 7", 2, "there is no device '7'"),
        ("--gpus '\u202e0\x1b[2J'", 2, "there is no device"),
        ("--batches 0 0", 2, "--batches: at least one device needs a batch above 0\n  → each device has one, in"),
        ("--batches -5 3", 2, "--batches takes 0 or more, not -5\n"),
        ("--batches many", 2, "'many'"),
        ("--batches", 2, "--batches needs a value"),
        ("--gpus --json", 2, "--gpus needs a value"),
        ("--micro-batches 8 8", 2, "--micro-batches needs --batches"),
        ("--batches 8 8 --micro-batches 4", 2, "--micro-batches: each batch needs one micro-batch, not 1 for 2\n"),
        ("--batches 8 8 --micro-batches 8 16", 2, "--micro-batches: micro-batches must be from 1 to their batch"),
        ("--batches 8 8 --micro-batches 8 four", 2, "'four'"),
        ("--windows 0", 2, "--windows"),
        ("--duration 0", 2, "--duration"),
        ("--duration nan", 2, "--duration"),
        ("--precision float8", 2, "float8"),
        ("--all-reduce nccl", 2, "needs GPUs"),
        ("--no-such-option", 2, "--no-such-option"),
        ("--model '\udc80.py:build'", 2, "its name is not UTF-8"),
        ("--model no.py:build", 2, "there is no file no.py\n  → give its path: --model folder/file.py:build\n"),
        ("--model no.keras", 2, "there is no file no.keras"),
        ("--model resnet5", 4, "there is no model 'resnet5': did you mean ResNet50?\n  → use probe, small, a keras"),
        ("--model models.py", 2, "name the one that builds the model: --model models.py:net or --model models.py:two"),
        ("-o /nowhere/run.json", 3, "can't write -o /nowhere/run.json: No such file or directory"),
        ("-o /tmp", 2, "is not a file"),
        ("--plan nowhere.json", 4, "can't read nowhere.json"),
        ("--plan huge", 4, "huge is larger than 32 MiB"),
        ("--plan plan.json --model VGG16", 2, " balance --simulate {quick} --gpus 0 1 --model VGG16 -o other.json\n"),
        ("--batch-size 8", 2, "  → did you mean --batches?\n"),
        ("--epochs 5e4", 2, "  → did you mean --epoch?\n"),
        ("--from-batch 64", 2, "  → --from-batch is an option of balance, plan: gpubalance balance --from-batch …\n"),
        ("--json=yes", 2, "option '--json' does not take a value\n  → gpubalance run --help\n"),
        ("--model models.py:bild", 4, "models.py has no function 'bild'\n  → name the one that builds the model: "),
        ("--model broken.py:build", 4, "--model: broken.py has no function 'build'\n  → name the one that builds"),
        ("--precision fp16", 2, "'mixed_bfloat16', not 'fp16'\n  → did you mean --precision mixed_float16?\n"),
        ("--plan plan.json -o plan.json --overwrite", 2, "-o plan.json is a file that run reads\n  → give "),
        ("--model models.py:net -o models.py --overwrite", 2, "-o models.py is a file that run reads"),
        ("--plan plan.json --batches 8 8", 2, "--batches and --plan: the plan has its own"),
        ("--data absent.py:samples", 2, "--data: there is no file absent.py"),
        ("--data models.py", 2, "--data models.py names a file, not a function in it"),
        ("--data mine", 2, "--data mine names no function"),
        ("--data mine:samples --input host", 2, "--input host is for random samples"),
        ("--tensorboard there.html/below", 3, "can't write to --tensorboard there.html/below"),
        ("--trace there.html", 3, "can't write to --trace there.html"),
    ],
    "probe --simulate {quick}": [
        ("--max-batch 0", 2, "--max-batch"),
        ("--batch-multiple 0", 2, "--batch-multiple"),
        ("--margin 512", 2, "--margin: 512 is 512 bytes: say the unit, 512MiB, or 512B if meant\n"),
        ("--margin '5 GB'", 2, "--margin: '5 GB' is not a size"),
        ("--duration nan", 2, "--duration takes a finite number, not 'nan'"),
        ("--time-limit -1", 2, "--time-limit takes more than 0, not -1"),
        ("--deadline 0", 2, "--deadline takes more than 0, not 0"),
    ],
    "balance --simulate {quick}": [
        ("--rounds 0", 2, "--rounds"),
        ("--dry-run -o plan.json --overwrite", 2, "plan.json exists, and --dry-run measures nothing"),
        ("--global-batch 0", 2, "--global-batch"),
        ("--global-batch auto", 2, "a whole number, not 'auto'\n  → leave --global-batch out\n"),
        ("--batch-size 8", 2, "  → did you mean --global-batch?\n"),
        ("--bathces 8 8", 2, "  → --batches is an option of run, independent: gpubalance run --batches …\n"),
        ("--global-batch 100", 2, "the nearest that is possible: 96 or 104"),
        ("--max-global-batch 4", 2, "is less than --batch-multiple 8"),
        ("--round-duration nan", 2, "--round-duration takes a finite number"),
        ("--accumulate {digits}", 2, "--accumulate: auto, off or a number"),
    ],
    "run": [
        ("--plan nowhere.json", 4, "can't read nowhere.json"),
        ("--plan plan.json", 2, "is a plan for simulated devices (GPU:0 "),
        ("--plan plan.json", 2, "gpubalance run --simulate PROFILE.toml --plan plan.json\n"),
    ],
    "--simulate {quick}": [("balance", 2, "--simulate is an option of devices, probe, balance, plan, run, ")],
    "plan": [
        ("--simulate {quick}", 4, "make one: gpubalance probe --simulate {quick} --gpus 0 1"),
        ("{quick}", 4, "is not JSON"),
        ("probe.json --global-batch 4", 2, "the nearest that is possible: 8"),
        ("'\x1b[31m[red]no.json'", 4, "can't read [red]no.json"),
        ("--simulate {quick} --model '\x1b]0;title\x07small'", 4, "there is no model"),
        ("--simulate {quick} --accumulate many", 2, "--accumulate: auto, off or a number"),
        ("--simulate {quick} --sync -1", 2, "--sync"),
    ],
    "compare": [
        ("", 2, "missing argument 'RESULT.json'\n  → gpubalance compare --help"),
        ("{saved}/guess.json", 2, "guess.json OTHER.json"),
        ("{saved}/guess.json nowhere.json", 4, "can't read nowhere.json"),
        ("{saved}/guess.json {quick}", 4, "is not JSON"),
        ("{saved}/guess.json {saved}/balanced.json --fail-slower 0.05", 2, "write --fail-slower 5%"),
        ("{saved}/guess.json {saved}/balanced.json --fail-slower 100%", 2, "for example --fail-slower 5%"),
        ("{saved}/guess.json {saved}/balanced.json --fail-slower 2,5%", 2, "for example --fail-slower 5%"),
        ("{saved}/guess.json {saved}/balanced.json -o {saved}/guess.json", 2, "guess.json is a file that compare "),
    ],
    "report plan.json": [
        ("", 2, "error: nothing was asked for\n  → give --html FILE, --png DIR, --markdown or --csv\n"),
        ("--markdown --csv", 2, "--markdown and --csv both print on stdout\n  → give one of them at a time"),
        ("--html plan.json --overwrite", 2, "--html plan.json is one of the results\n  → give another --html"),
        ("--html there.html", 2, "there.html exists\n  → give another --html, or --overwrite"),
        ("--html .", 2, "--html . is not a file\n  → give a file's name"),
        ("--html no/a.html", 3, "can't write --html no/a.html: No such file or directory\n  → give another --html"),
        ("--png there.html", 3, "can't write to --png there.html: it is a file\n  → give another --png"),
        ("nix.json --csv", 4, "can't read nix.json: No such file or directory\n  → gpubalance run -o nix.json "),
        ("there.html --csv", 4, "there.html is not JSON: expected value at line 1 column 1\n  → "),
    ],
    # Ten thousand characters, where a name, a number, a file or a command is wanted.
    "run --simulate 2": [
        ("--gpus {long}", 2, "there is no device"),
        ("--plan {long}", 4, "can't read"),
        ("--config {long}", 4, "can't read"),
        ("-o {long}", 3, "File name too long"),
        ("-o {long}/run.json", 3, "File name too long"),
        ("--batches {digits}", 2, ""),
        ("--precision {long}", 2, ""),
        ("--{long}", 2, ""),
    ],
    "devices": [
        ("--simulate config/quick-piar.toml", 4, "  → did you mean configs/quick-pair.toml?\n"),
        ("--simulate quick.tmol", 4, "can't read quick.tmol"),
        ("--simulate {long}", 4, "File name too long"),
        ("--simulate {digits}", 2, "--simulate"),
        ("--simulate huge", 4, "is larger than 1 MiB"),
        ("--simulate /dev/zero", 4, "is larger than 1 MiB"),
        ("--simulate 'no\x9b2J.toml'", 4, "can't read no"),
    ],
    "": [("{long}", 2, "")],
}
ROWS = [(f"{command} {words}", code, says) for command, rows in REFUSED.items() for words, code, says in rows]


@pytest.mark.parametrize(("line", "code", "says"), ROWS, ids=[ascii(line[:60]) for line, _, _ in ROWS])
def test_26_27_31_32_34_what_is_wrong_gets_one_line_that_says_what_is_right(
    in_process: Program, line: str, code: int, says: str
) -> None:
    shutil.copy(BALANCE, "plan.json")
    shutil.copy(PROBE, "probe.json")
    Path("estimate.json").write_text('{"kind": "balance-estimate"}')
    Path("configs").mkdir()
    shutil.copy(QUICK_PAIR, "configs")
    Path("huge").touch()
    os.truncate("huge", 100 << 20)
    Path("there.html").write_text("mine")
    Path("broken.py").write_text("import keras\nx = (\n")
    Path("models.py").write_text(
        "exit()\ndef net(): ...\ndef two(size=3): ...\ndef no(size): ...\ndef _no(): ...\ndef main(): pass\n"
    )
    done = in_process(shlex.split(line.format(**NAMES)))
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("error: ")
    assert says.format(**NAMES) in done.err
    assert not ESCAPE.search(done.err)
    assert Path("there.html").read_text() == "mine"
