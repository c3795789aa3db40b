"""A result without what tells whose it is: the copy that somebody attaches to an issue.

A text is kept only where its field can't hold a name, or word by word where each is a known one: a
field that is added later, and an error of a program that nobody foresaw, are safe without a rule.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable
from typing import Any, Literal, TypeVar, get_args, get_origin

from gpubalance.results.common import Environment, Model, OfDevices, Optimizer, Warning_
from gpubalance.results.independent import OwnModel
from gpubalance.results.layers import MeasuredBlock
from gpubalance.results.queue import QueuedCommand
from gpubalance.results.timing import Remedy
from gpubalance.settings.choices import BUILT_IN
from gpubalance.settings.device import Device, DeviceProfile
from gpubalance.settings.record import Record
from gpubalance.settings.settings import Settings

_Result = TypeVar("_Result", bound=Record)
_Rule = Callable[["_Names", Any], Any]

_CUT = "…"
# Those of keras.applications: ResNet50V2, EfficientNetV2B0, ConvNeXtXLarge
_APPLICATION = re.compile(
    r"(convnext|densenet|efficientnet|inception|mobilenet|nasnet|resnet|vgg|xception)"
    r"([-_]|tiny|small|base|large|xlarge|mobile|resnet|v\d|b\d|\d+|[sml])*",
    re.IGNORECASE,
)
_OPTIMIZERS = (
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lamb"),
    *("Lion", "LossScaleOptimizer", "Muon", "Nadam", "RMSprop", "SGD"),
)
_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d:\d\d|Z)?"
_VERSION = r"\d+(\.\d+)*(\.?(a|b|rc|dev|post)\d+)*"
_NUMBER = re.compile(
    r"[±+−-]?(\d+|\d{1,3}(,\d{3})+)(\.\d+)?(/\d+)*(%|×|[KMG]i?B|m?s|W)?"
)
_SIGNS = re.compile(r"[±×%=→·–—+…-]+")
_LABEL = re.compile(r"(GPU|CPU):\d+")
_MARKS = ".,:;!?()[]«»'\"`"


class _Names:
    """The names of one result, by what is told of it: each has the same number everywhere.

    `words` are those that may stand in a text, `products` the names of simulated devices that come
    with gpubalance.
    """

    def __init__(self, words: Container[str], products: Container[str]) -> None:
        self._words = words
        self._products = products
        self._numbers: dict[str, dict[str, str]] = {}
        self._known: dict[str, str] = {}  # as they may stand in a text
        self._taken_out: dict[str, set[Any]] = defaultdict(set)

    @property
    def taken_out(self) -> dict[str, int]:
        """How many of each kind."""
        return {kind: len(values) for kind, values in self._taken_out.items()}

    def number(self, kind: str, name: str | None) -> str | None:
        """`host-1` for the first host."""
        if not name:
            return name
        same_kind = self._numbers.setdefault(kind, {})
        if name not in same_kind:
            same_kind[name] = f"{kind}-{len(same_kind) + 1}"
            self._known[name] = same_kind[name]
            self._taken_out[kind].add(name)
        return same_kind[name]

    def learn_devices(self, devices: Iterable[Device]) -> None:
        """Numbers their hosts and UUIDs, by which texts may call them."""
        for device in devices:
            self.number("uuid", device.uuid)
            host = self.number("host", device.host)
            if host is not None:
                self._known[device.called] = f"{host}:{device.index}"

    def model(self, name: str) -> str:
        """One name or several, without those of the user's own."""
        names = []
        for each in name.split():
            is_kept = each in BUILT_IN or _APPLICATION.fullmatch(each)
            names.append(each if is_kept else self.number("model", each) or "")
        return " ".join(names)

    def device_name(self, name: str) -> str | None:
        """The product; a number for the name that a profile of the user's own gives."""
        return name if name in self._products else self.number("device", name)

    def optimizer(self, name: str) -> str | None:
        """The class, if it is Keras' own."""
        return name if name in _OPTIMIZERS else self.number("optimizer", name)

    def drop(self, kind: str, value: Any) -> Any:
        """Nothing in the value's place: null, or an empty text or list."""
        if value:
            self._taken_out[kind].add(value)
        return type(value)()

    def matching(self, pattern: str, text: str | None) -> str | None:
        """What the text begins with, if that matches the pattern; else nothing of it."""
        if text is None:
            return None
        found = re.match(pattern, text)
        kept = found[0] if found else _CUT
        if kept != text:
            self._taken_out["version"].add(text)
        return kept

    def platform(self, text: str) -> str:
        """`Linux 6.8.0 x86_64`: a kernel of the user's own may have a name behind its version."""
        system, _, rest = text.partition(" ")
        version, _, machine = rest.partition(" ")
        parts = [self.matching(r"(Linux|Darwin|Windows)", system)]
        parts.append(self.matching(_VERSION, version))
        parts.append(self.matching(r"(x86_64|aarch64|arm64|AMD64|ppc64le)", machine))
        return " ".join(part or "" for part in parts)

    def text(self, text: str | None) -> str | None:
        """The text with … for words that are not known, such as paths and names."""
        if text is None:
            return None
        kept: list[str] = []
        for token in text.split():
            word = self._word(token)
            if word != _CUT or kept[-1:] != [_CUT]:
                kept.append(word)
        if _CUT in kept and _CUT not in text:
            self._taken_out["text"].add(text)
        return " ".join(kept)

    def _word(self, token: str) -> str:
        core = token.strip(_MARKS)
        if not core:
            return token
        if core in self._known:
            return token.replace(core, self._known[core])
        is_plain = any(sign.fullmatch(core) for sign in (_NUMBER, _SIGNS, _LABEL))
        if is_plain or core in self._words or core.lower() in self._words:
            return token
        return _CUT


def _number(kind: str) -> _Rule:
    return lambda names, value: names.number(kind, value)


def _drop(kind: str) -> _Rule:
    return lambda names, value: names.drop(kind, value)


def _matching(pattern: str) -> _Rule:
    return lambda names, value: names.matching(pattern, value)


_VERSIONS = ("gpubalance", "python", "tensorflow", "keras", "cuda", "cudnn", "driver")
# Of a record's field.
_RULES: dict[tuple[type[Record], str], _Rule] = {
    (Device, "uuid"): _number("uuid"),
    (Device, "host"): _number("host"),
    (Device, "bus_id"): _matching(r"[0-9a-f:.]+"),
    (DeviceProfile, "name"): _Names.device_name,
    (Settings, "model"): _Names.model,
    (Settings, "data"): _number("data"),
    (Model, "name"): _Names.model,
    (Model, "step"): _drop("step"),
    (Optimizer, "name"): _Names.optimizer,
    (OwnModel, "model"): _Names.model,
    (MeasuredBlock, "name"): _number("layer"),
    (Environment, "platform"): _Names.platform,
    (Environment, "cpu"): lambda _, name: name,
    (Warning_, "code"): _Names.text,
    (Remedy, "where"): _drop("line"),
    (QueuedCommand, "command"): _number("command"),
    (QueuedCommand, "log"): _drop("log"),
    (QueuedCommand, "tail"): _drop("output"),
    **{(Environment, name): _matching(_VERSION) for name in _VERSIONS},
}
# Of a field in any other record; every other text is taken word by word.
_BY_NAME: dict[str, _Rule] = {
    "cuts": lambda names, cuts: tuple(names.number("layer", name) for name in cuts),
    "code": _drop("hash"),
    **dict.fromkeys(("created", "probed", "balanced"), _matching(_TIME)),
}


def without_names(
    result: _Result, words: Container[str], products: Container[str]
) -> tuple[_Result, dict[str, int]]:
    """A copy of a result to show to anyone, and how much of each kind was taken out of it.

    UUIDs, hosts, models and layers are numbered, everywhere alike, and of the names of simulated
    devices only the `products` stay. In texts only `words` and numbers stay.
    """
    names = _Names(words, products)
    if isinstance(result, OfDevices):
        names.learn_devices(result.devices)
    copy = _copied(names, result)
    # Checks that it is still a result
    return type(result).model_validate(copy.model_dump()), names.taken_out


def _copied(names: _Names, record: _Result) -> _Result:
    changes = {}
    for name, value in record:
        rule = _RULES.get((type(record), name)) or _BY_NAME.get(name)
        if rule is not None:
            changes[name] = rule(names, value)
        elif value not in _choices(type(record).model_fields[name].annotation):
            changes[name] = _value(names, value)
    if isinstance(record, Device):
        changes["name"] = record.name
        if record.profile is not None:
            changes["name"] = names.device_name(record.name)
    return record.model_copy(update=changes)


def _value(names: _Names, value: Any) -> Any:
    """What a field holds, with a copy of each record and text in it."""
    if isinstance(value, Record):
        return _copied(names, value)
    if isinstance(value, tuple):
        return tuple(_value(names, each) for each in value)
    if isinstance(value, dict):
        return {names.text(key): _value(names, each) for key, each in value.items()}
    return names.text(value) if isinstance(value, str) else value


def _choices(annotation: Any) -> list[Any]:
    """The words that a field may hold, if it is one of a few."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [word for part in get_args(annotation) for word in _choices(part)]
