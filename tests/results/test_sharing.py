"""What `report --share` leaves out: every text of every result is planted with a name first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from gpubalance.jobs.report import shareable
from gpubalance.results.common import Optimizer, Warning_
from gpubalance.results.independent import Independent
from gpubalance.results.layers import Layers, LayersBaselines
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Failure, Probe
from gpubalance.results.queue import Queue, Try
from gpubalance.results.records import Reported, read_reported
from gpubalance.results.run import Run
from gpubalance.results.sharing import without_names
from gpubalance.results.timing import Moment, Telemetry
from gpubalance.settings.record import Record
from tests.jobs.probes import inside
from tests.render import samples
from tests.support.altered import altered
from tests.support.known import known

KINDS = (Run, Probe, Plan, Independent, Layers, Queue)
# What is bought, not chosen, by a person.
PRODUCTS = {("Environment", "cpu")}


def texts_of(annotation: Any) -> bool:
    """Whether a field of this type may hold any text."""
    if get_origin(annotation) is Literal:
        return False
    return annotation is str or any(map(texts_of, get_args(annotation)))


def fields_with_text(kind: type[Record], seen: set[type]) -> Iterator[tuple[str, str]]:
    if kind in seen:
        return
    seen.add(kind)
    for name, field in kind.model_fields.items():
        if texts_of(field.annotation):
            yield kind.__name__, name
        parts = [field.annotation]
        for part in parts:
            parts += get_args(part)
            if isinstance(part, type) and issubclass(part, Record):
                yield from fields_with_text(part, seen)


class Planted:
    """Puts a name that begins with `planted` into each text, and keeps which fields it found."""

    def __init__(self) -> None:
        self.found: set[tuple[str, str]] = set()

    def into(self, record: Any) -> Any:
        changes = {}
        for name, field in type(record).model_fields.items():
            value = getattr(record, name)
            place = (type(record).__name__, name)
            if place in PRODUCTS:
                continue
            if texts_of(field.annotation):
                self.found.add(place)
                text = f"planted-{'-'.join(place)}"
                if name == "uuid":
                    text += str(record.index)  # no two have the same one
                changes[name] = self._of_type(field.annotation, value, text)
            else:
                changes[name] = self._within(value)
        return record.model_copy(update=changes)

    def _of_type(self, annotation: Any, value: Any, text: str) -> Any:
        if isinstance(value, dict):
            return {f"{text}-{key}": size for key, size in value.items()}
        if "tuple[tuple" in str(annotation):
            return ((text, 1),)
        if "tuple" in str(annotation):
            return (text, f"/home/{text}/train.py", f"{text}, 3.1 % of it")
        if annotation is str and text.endswith(("message", "next", "reason")):
            return f"GPU:0 is used by {text} (python {text}.py), at /home/{text}:3"
        return text if isinstance(value, str | None) else value

    def _within(self, value: Any) -> Any:
        if isinstance(value, Record):
            return self.into(value)
        if isinstance(value, tuple):
            return tuple(map(self._within, value))
        return value


def with_everything(result: Any) -> Any:
    """The result with what a file has only now and then."""
    told = Warning_(code="slow", message="", next="")
    changes: dict[str, Any] = {"warnings": (told,)}
    telemetry = Telemetry(duration_s=1.0, readings=1, course=(Moment(at_s=0.1),))
    failure = Failure(exit_code=1, message="")
    if isinstance(result, Plan | Probe | Run | Independent):
        optimizer = Optimizer(name="SGD", per_weight=0)
        changes["model"] = result.model and altered(result.model, optimizer=optimizer)
    if isinstance(result, Probe):
        first, *others = result.probes
        changes["probes"] = (altered(first, failures=(failure,)), *others)
        changes["margin_bytes"] = {"0": 5}
    if isinstance(result, Run):
        replica, *more = result.replicas
        changes["replicas"] = (altered(replica, telemetry=telemetry), *more)
    if isinstance(result, Layers):
        changes["baselines"] = LayersBaselines()
    if isinstance(result, Queue):
        tried = Try(device=0, start_s=0, end_s=1, exit=None)
        changes["commands"] = (altered(result.commands[0], tries=(tried,)),)
    return altered(result, **changes)


def results() -> Iterator[Reported]:
    yield samples.queue(complete=True)
    yield samples.fed_run().result
    yield samples.contended().result
    yield samples.goodput().result
    for name in ("probe", "run", "balance", "independent", "layers"):
        yield read_reported(samples.DATA / f"pair-{name}.json")


def test_no_name_is_left_whatever_text_holds_it(tmp_path: Path) -> None:
    planted = Planted()
    for number, result in enumerate(results()):
        path = tmp_path / f"{number}.json"
        path.write_text(planted.into(with_everything(result)).model_dump_json())
        copy, taken_out = shareable(path)
        left = copy.model_dump_json()
        assert "planted" not in left, left[left.index("planted") - 200 :][:300]
        assert taken_out
        assert "train.py" not in left
        path.write_text(left)
        assert read_reported(path) == copy
    seen: set[type] = set()
    every = {field for kind in KINDS for field in fields_with_text(kind, seen)}
    assert planted.found == every - PRODUCTS


def test_what_tells_nothing_of_its_owner_stays() -> None:
    """Figures, choices, products and plain words; a host has one number wherever it is named."""
    plan = known(samples.subject(samples.FOUR).plan)
    devices = []
    for number, device in enumerate(plan.devices):
        host = ("bob@a1", "b2")[number // 2]
        devices.append(altered(device, host=host, index=number % 2))
    told = Warning_(
        code="gpu-in-use",
        message="b2:1 is also used by process 4242 (python /home/bob/x.py, 3000 MiB)",
        next="end it, or gpubalance balance --margin b2:1=3GiB",
    )
    named = inside(plan, "settings", model="train.py:net", data="d:d")
    named = altered(named, devices=tuple(devices), warnings=(told,))
    words = {*told.message.split(), "end", "it"}
    copy, taken_out = without_names(named, words, set())
    used = "host-2:1 is also used by process 4242 …"
    assert copy.warnings[0].message.startswith(used)
    assert "bob" not in copy.model_dump_json()
    labels = [device.label for device in copy.devices]
    assert labels == ["host-1:0", "host-1:1", "host-2:0", "host-2:1"]
    assert (copy.settings.model, copy.settings.data) == ("model-1", "data-1")
    for name in ("shares", "predicted", "batches", "created"):
        assert getattr(copy, name) == getattr(plan, name)
    assert taken_out["host"] == 2
    assert taken_out["uuid"] == 4
