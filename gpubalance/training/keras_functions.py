"""How a split or stages train: Keras' own `fit` and the like call functions of ours for a batch.

Keras itself handles whole batches, as on one device.
"""

from __future__ import annotations

import difflib
import inspect
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import GeneratorType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from gpubalance.engine.step.trainable import are_the_same, compiled_objects
from gpubalance.errors import BadInput

if TYPE_CHECKING:
    import keras

    from gpubalance.engine.replacing import Replacements

# Where a model keeps its functions, by what trains it. They refer to the model, so they must be
# the model's own to go with it.
_FUNCTIONS = "_gpubalance_functions"
_choosing = threading.RLock()  # which of its functions a thread calls
_TURN = (
    "_turn"  # the attribute of Keras' iterator over epochs with its generator's `Turn`
)


class Trainer(ABC):
    """What trains a model over devices through Keras' own methods.

    It does not keep a model alive, and a model keeps its traces for as long as both are held.
    """

    called = "split"  # how messages call it

    def fit(self, model: keras.Model, *arguments: Any, **options: Any) -> Any:
        """Keras' `model.fit`, with all its arguments, over these devices; returns its History.

        Datasets and arrays are brought into global batches of this size, which `steps_per_epoch`
        counts, unless `batch_size` says otherwise; `validation_steps` counts the user's own. If the
        model's class overrides `fit`, that is called, and its `super().fit` trains over these
        devices, if called in the same thread. Raises BadInput for a model that these devices can't
        train, and for data that can't be dispatched or whose own code fails.
        """
        return self._call("fit", model, arguments, options)

    def evaluate(self, model: keras.Model, *arguments: Any, **options: Any) -> Any:
        """Keras' `model.evaluate` over these devices: the losses and metrics of all samples."""
        return self._call("evaluate", model, arguments, options)

    def predict(self, model: keras.Model, *arguments: Any, **options: Any) -> Any:
        """Keras' `model.predict` over these devices; outputs are in the order of the samples."""
        return self._call("predict", model, arguments, options)

    def _call(
        self, name: str, model: Any, arguments: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        """Calls the model's method. Inside it Keras' own methods of the model use the devices.

        Warns if a subclass's method never calls Keras' own.
        """
        check_model(model, f"{self.called}.{name}(model, …)")
        import keras

        from gpubalance.engine.replacing import Method, acting
        from gpubalance.engine.user_functions import warn_user

        called: set[str] = set()

        def over_devices(
            keras_method: Any, model: Any, *given: Any, **named: Any
        ) -> Any:
            called.add(keras_method.__name__)
            return self.call(keras_method, model, given, named)

        # A subclass's `fit` may take other arguments than Keras', and also evaluate.
        own: Replacements = {
            Method.of(model, method, keras.Model): over_devices
            for method in ("fit", "evaluate", "predict")
        }
        with acting(own):
            result = getattr(type(model), name)(model, *arguments, **options)
        if name not in called:
            warn_user(
                f"the {name} of the model {model.name} did not call super().{name} in "
                f"this thread, so {self.called} had no part in it"
            )
        return result

    def call(
        self,
        keras_method: Callable[..., Any],
        model: Any,
        arguments: Sequence[Any],
        options: dict[str, Any],
    ) -> Any:
        """Keras' own `fit`, `evaluate` or `predict` of a model over the devices.

        A call from inside another one, by Keras or a callback, calls Keras' method as it is.
        """
        if self.functions_called_here(model) is not None:
            return keras_method(model, *arguments, **options)
        by_name = keras_method_arguments(keras_method, model, arguments, options)
        with self._free_functions(model) as functions:
            return functions.call(keras_method, by_name)

    def functions_called_here(self, model: Any) -> KerasFunctions | None:
        """The model's functions that Keras is calling in this thread, if it is calling any."""
        here = threading.get_ident()
        for functions in self.functions_of(model):
            if functions.thread == here:
                return functions
        return None

    @contextmanager
    def _free_functions(self, model: Any) -> Iterator[KerasFunctions]:
        """The model's functions, for this thread alone inside the block.

        A thread that evaluates a model while another one trains it has functions of its own.
        """
        with _choosing:
            known = self.functions_of(model)
            known[:] = [one for one in known if one.is_current or one.thread]
            free = [one for one in known if one.is_current and not one.thread]
            if not free:
                free = [self._functions_for(model)]
                known += free
            functions = free[0]
            functions.thread = threading.get_ident()
        try:
            yield functions
        finally:
            functions.thread = None

    def functions_of(self, model: Any) -> list[KerasFunctions]:
        """The functions of the model, for each thread that uses it; some may not be current."""
        by_trainer = vars(model).setdefault(_FUNCTIONS, WeakKeyDictionary())
        known: list[KerasFunctions] = by_trainer.setdefault(self, [])
        return known

    @abstractmethod
    def _functions_for(self, model: Any) -> KerasFunctions:
        """The functions of a model, whose traces are kept until it is compiled again.

        They must not refer to this object, or it would live as long as the model.
        """


def trace_all_again(model: Any) -> None:
    """Has all functions of a model, whatever trains it, traced again."""
    for known in vars(model).get(_FUNCTIONS, {}).values():
        for functions in known:
            for kind in ("train", "test", "predict"):
                functions.trace_again(kind)


class KerasFunctions(ABC):
    """A model's train, test and predict functions, as it was compiled when they were made.

    `thread` is that in which Keras is calling them, None if it is not. `monitor` is the Monitor of
    the `fit` that does. `reads_generators_ahead`: a thread of theirs asks generators for batches
    before these are needed, as nobody else does.
    """

    reads_generators_ahead = True

    def __init__(self, model: Any) -> None:
        from gpubalance.training.called_function import CalledFunction

        self.model = model
        self.monitor: Any = None
        self._compiled = compiled_objects(model)
        self.thread: int | None = None
        self._called = [
            CalledFunction("train", model, self.train, self.trace_again),
            CalledFunction("test", model, self.test, self.trace_again),
            CalledFunction("predict", model, self.predict, self.trace_again),
        ]

    @property
    def is_current(self) -> bool:
        """Whether the model has not been compiled again since."""
        return are_the_same(self._compiled, compiled_objects(self.model))

    @abstractmethod
    def call(self, method: Callable[..., Any], options: dict[str, Any]) -> Any:
        """Calls Keras' method with its arguments by name."""

    @contextmanager
    def called_by_keras(self, options: dict[str, Any]) -> Iterator[None]:
        """Inside the block Keras' methods of the model call these functions."""
        from gpubalance.engine.replacing import acting

        with acting(self._replacements(options)):
            yield

    def _replacements(self, options: dict[str, Any]) -> Replacements:
        """What Keras calls instead of its own, in this thread."""
        from gpubalance.engine import keras_patches
        from gpubalance.training.called_function import BatchEnds

        ends = BatchEnds()
        replacements: Replacements = {
            keras_patches.EPOCH_ITERATOR_INIT: _begin_on_the_host,
            keras_patches.EPOCH_ITERATOR_BATCHES: self._batches_of,
            keras_patches.ON_TRAIN_BATCH_END: ends.of("on_train_batch_end"),
            keras_patches.ON_TEST_BATCH_END: ends.of("on_test_batch_end"),
        }
        # A regrouped dataset does not know its length, so Keras warns when it ends.
        if options.get("steps_per_epoch", options.get("steps")) is None:
            replacements[keras_patches.EPOCH_ITERATOR_WARNING] = _say_nothing
        strategy = keras_patches.of_training(self.model, "_distribute_strategy")
        replacements[strategy] = _none
        for function in self._called:
            replacements.update(function.replacements(self.model))
        return replacements

    def _batches_of(self, _: Any, epochs: Any) -> Any:
        """The batches of one of Keras' epochs; the next epoch need not wait for its end."""
        from gpubalance.engine.iterators import Batches, GeneratorBatches, ReadAhead
        from gpubalance.engine.keras_patches import GeneratorDataAdapter

        data = epochs.data_adapter
        if not isinstance(data, GeneratorDataAdapter):
            return Batches(epochs._distributed_dataset)
        turn = vars(epochs)[_TURN]
        batches = GeneratorBatches(data.generator(), data._output_signature, turn)
        return ReadAhead(batches) if self.reads_generators_ahead else batches

    @abstractmethod
    def train(self, iterator: Iterator[Any]) -> Any:
        """Trains `steps_per_execution` steps and returns the last one's logs.

        Raises StopIteration without data.
        """

    def test(self, iterator: Iterator[Any]) -> Any:
        """Tests on `steps_per_execution` batches and returns the last logs. Raises as `train`."""
        return self._several(iterator, self._test_on)

    @abstractmethod
    def trace_again(self, what: str) -> None:
        """Traces `train`, `test` or `predict` again, with the layers that are trainable now."""

    @abstractmethod
    def predict(self, batches: Sequence[Any]) -> Any:
        """The outputs for all samples of some batches, in their order."""

    @abstractmethod
    def _test_on(self, iterator: Iterator[Any]) -> Any:
        """Tests on the next batch and returns the logs. Raises StopIteration without one."""

    def _several(
        self, iterator: Iterator[Any], step: Callable[[Iterator[Any]], Any]
    ) -> Any:
        """Calls `step` as often as `steps_per_execution` says; returns the last logs."""
        logs = None
        for _ in range(self.model.steps_per_execution):
            try:
                logs = step(iterator)
            except StopIteration:
                break
        if logs is None:
            raise StopIteration
        return logs


def _none(_: Any) -> None:
    """The value of a replaced attribute, whatever the model has."""


def _say_nothing(*_: Any) -> None:
    """In place of a warning."""


def _begin_on_the_host(
    begin: Callable[..., None], epochs: Any, *arguments: Any, **options: Any
) -> None:
    """Makes Keras' iterator over epochs on the host: it would fill the first GPU with arrays.

    Keras takes a generator's first batches for that, so this waits for the generator's turn: a
    thread of an earlier call may still hold it.
    """
    import tensorflow as tf

    from gpubalance.engine.iterators import GeneratorFailedError, turn_of

    taken: AbstractContextManager[None] = nullcontext()
    data = options.get("x")
    if isinstance(data, GeneratorType):
        turn = vars(epochs)[_TURN] = turn_of(data)
        taken = turn.taken(warns=True)
    with tf.device("/CPU:0"), taken:
        try:
            begin(epochs, *arguments, **options)
        except Exception as error:
            if isinstance(data, GeneratorType) and _is_raised_in(data, error):
                raise GeneratorFailedError(error) from error
            raise


def _is_raised_in(generator: GeneratorType[Any, Any, Any], error: Exception) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is generator.gi_code for frame, _ in frames)


def keras_method_arguments(
    method: Callable[..., Any],
    model: Any,
    arguments: Sequence[Any],
    options: dict[str, Any],
) -> dict[str, Any]:
    """The arguments of a model's method, by name. Raises TypeError for one that it lacks."""
    signature = inspect.signature(method)
    try:
        bound = signature.bind(model, *arguments, **options).arguments
    except TypeError as error:
        text = f"{method.__name__}() {error}"
        for option in options:
            if option not in signature.parameters:
                close = difflib.get_close_matches(option, signature.parameters, 1)
                text += "".join(f": did you mean {name}?" for name in close)
                break
        raise TypeError(text) from None
    bound.update(bound.pop("kwargs", {}))
    del bound["self"]
    return bound


def check_model(model: Any, call: str) -> None:
    """Raises BadInput unless it is a Keras model; `call` shows the right call, for the remedy."""
    import keras

    if not isinstance(model, keras.Model):
        function = call.partition("(")[0]
        got = f"got a value of type {type(model).__name__}"
        raise BadInput(f"{function} takes a Keras model first, and {got}", remedy=call)
