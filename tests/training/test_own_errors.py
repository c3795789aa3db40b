"""What the user's own code raises while it gives data is named first, with its line.

TensorFlow tells of it in an error of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gpubalance.errors import BadInput
from tests.support.cases import cases, full
from tests.support.known import known
from tests.support.late import keras, ops, tf, users_errors
from tests.support.told import refused, warned
from tests.training.cases import in_split
from tests.training.models import classifier, compiled, dense
from tests.training.samples import numbers

X, Y = numbers(240)
RAISED_HERE = r"\(test_own_errors.py, line \d+\), raised by your own code in "
# As TensorFlow 2.21 tells of a PyDataset's process; {file} is the user's.
OF_A_PROCESS = """DataError: boom at 2
multiprocessing.pool.RemoteTraceback:
\"\"\"
Traceback (most recent call last):
  File "{file}", line 26, in __getitem__
    return part(number)
DataError: boom at 2
\"\"\"


The above exception was the direct cause of the following exception:


Traceback (most recent call last):

  File "{tensorflow}/python/ops/script_ops.py", line 269, in __call__
    ret = func(*args)
          ^^^^^^^^^^^

tests.training.test_own_errors.DataError: boom at 2


\t [[{{{{node PyFunc}}}}]] [Op:IteratorGetNext] name: """


class DataError(Exception):
    """One of the user's, whose text is not its argument."""

    def __str__(self) -> str:
        return f"boom at {self.args[0]}"


def boom(number: int) -> tuple[Any, Any]:
    if number == 2:
        raise DataError(2)
    return X[number * 40 : number * 40 + 40], Y[number * 40 : number * 40 + 40]


def of_generator(part: Callable[[int], Any]) -> Iterator[Any]:
    return (part(number) for number in range(6))


def py_dataset(part: Callable[[int], Any], **options: Any) -> Any:
    class Parts(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, number: int) -> Any:
            return part(number)

    return Parts(**options)


def from_generator(part: Callable[[int], Any]) -> Any:
    specs = tf.TensorSpec((None, 6), tf.float32), tf.TensorSpec((None,), tf.int64)
    of = tf.data.Dataset.from_generator
    return of(lambda: of_generator(part), output_signature=specs)


def mapped(part: Callable[[int], Any]) -> Any:
    def samples(number: Any) -> Any:
        types = [tf.float32, tf.int64]
        parts = tf.py_function(lambda at: part(int(at)), [number], types)
        return tuple(map(tf.ensure_shape, parts, ((40, 6), (40,))))

    return tf.data.Dataset.range(6).map(samples)


KINDS: dict[str, Callable[[Any], Any]] = {
    "generator": of_generator,
    "PyDataset": py_dataset,
    "PyDataset with workers": partial(py_dataset, workers=2),
    "from_generator": from_generator,
    "py_function": mapped,
}


@pytest.fixture(scope="module")
def trained() -> tuple[Any, Any]:
    """A split, and a model that it has trained."""
    split, model = in_split(classifier())
    split.fit(model, X, Y, verbose=0)
    return split, model


FIRST = ["generator", "PyDataset with workers"]
OTHERS = [full(n) for n in KINDS if n not in FIRST]


@cases("kind", *FIRST, *OTHERS)
def test_what_users_code_raises_is_the_cause(
    kind: str, trained: tuple[Any, Any]
) -> None:
    split, model = trained
    make = KINDS[kind]
    calls: dict[str, Any] = {
        "fit": lambda: model.fit(make(boom), verbose=0),
        "evaluate": lambda: model.evaluate(make(boom), verbose=0),
        "predict": lambda: split.predict(model, make(boom), verbose=0),
        "fit of": lambda: model.fit(X, Y, validation_data=make(boom), verbose=0),
    }
    for name, call in calls.items():
        with refused(f"^DataError: boom at 2 {RAISED_HERE}{name}") as caught:
            call()
        assert isinstance(caught.value.__cause__, DataError)
        assert caught.value.__cause__.args == (2,)  # the exception itself
        shown = caught.value.message
        assert "raise DataError(2)" in shown  # with the lines that lead there
        assert not re.search("concurrent|multiprocessing", shown)


def test_a_generator_that_fails_at_once_is_named_too(trained: tuple[Any, Any]) -> None:
    """Keras asks it for its first batches before the training begins."""
    _, model = trained
    with pytest.raises(BadInput, match=f"^DataError: boom at 2 {RAISED_HERE}fit"):
        model.fit((boom(number + 2) for number in range(6)), verbose=0)


def test_an_unknown_option_is_named_with_the_one_meant(
    trained: tuple[Any, Any],
) -> None:
    split, model = trained
    unexpected = r"^fit\(\) got an unexpected keyword argument 'epoch'"
    with refused(rf"{unexpected}: did you mean epochs\?$", TypeError):
        split.fit(model, X, Y, epoch=3)


ERRORS = [ValueError("bad row\n  of two lines"), RuntimeError("no such page")]
ERRORS += [KeyError("name"), NotImplementedError("later"), MemoryError("an image")]
ERRORS.append(json.JSONDecodeError("no comma", "[1 2]", 3))
ERRORS.append(UnicodeDecodeError("ascii", b"\xff", 0, 1, "not in range"))


@pytest.mark.parametrize("error", ERRORS)
def test_the_cause_is_what_was_raised(
    error: Exception, trained: tuple[Any, Any]
) -> None:
    def fails(number: int) -> Any:
        if number > 1:  # Keras asks for the first two itself
            raise error
        return boom(number)

    split, model = trained
    with pytest.raises(BadInput, match=f"{type(error).__name__}: ") as caught:
        split.evaluate(model, py_dataset(fails), verbose=0)
    assert caught.value.__cause__ is error
    # As it is made of TensorFlow's text, outside a training.
    raised = users_errors.raised_by_own_code(known(caught.value.__context__))
    again = known(raised).exception()
    assert isinstance(again, type(error))
    assert (type(again).__name__, str(again)) == (type(error).__name__, str(error))


def test_what_a_process_of_a_pydataset_raises_is_named_with_its_line() -> None:
    folder = Path(known(known(find_spec("tensorflow")).origin)).parent
    text = OF_A_PROCESS.format(file=__file__, tensorflow=folder)
    of_process = refused(r"^DataError: boom at 2 .*line 26")
    with of_process as caught, users_errors.own_code_named("fit"):
        raise tf.errors.UnknownError(None, None, text)
    assert isinstance(caught.value.__cause__, DataError)


def test_a_failure_in_the_loss_is_named_too() -> None:
    """A failure in the loss is named too and TensorFlow's own stays its own."""

    def fails(y: Any, _p: Any) -> Any:
        raise OSError(f"no teacher for {len(y)} labels")

    def loss(y: Any, p: Any) -> Any:
        weights = tf.ensure_shape(tf.py_function(fails, [y, p], tf.float32), (None,))
        return weights * keras.losses.sparse_categorical_crossentropy(y, p)

    split, model = in_split(compiled, dense(), loss)
    of_teacher = refused(r"^OSError: no teacher for \d+ labels \(")
    with warned("can't be tried"), of_teacher as own:
        split.fit(model, X, Y, verbose=0)
    assert isinstance(own.value.__cause__, OSError)

    def wide(_y: Any, p: Any) -> Any:
        return ops.sum(tf.debugging.check_numerics(p / 0.0, "of the outputs"), axis=-1)

    split, model = in_split(compiled, dense(), wide)
    with pytest.raises(BadInput, match=r"fit of the model .* failed(.|\n)*outputs"):
        split.fit(model, X, Y, verbose=0)
