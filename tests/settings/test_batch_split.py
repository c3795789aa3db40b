"""The laws of a split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gpubalance.errors import UsageError
from gpubalance.settings.batch_split import BatchSplit, shares_of
from tests.support.cases import cases

SHARE = st.integers(0, 10**6).flatmap(
    lambda batch: st.tuples(st.just(batch), st.integers(min(1, batch), batch))
)
SPLIT = (
    st.lists(SHARE, min_size=1, max_size=8)
    .filter(lambda shares: any(batch for batch, _ in shares))
    .map(lambda shares: BatchSplit(*zip(*shares, strict=True)))
)
EVEN = st.integers(1, 64).flatmap(
    lambda n: st.tuples(st.integers(n, 10**6), st.just(n))
)


@given(st.lists(st.integers(0, 10**6), min_size=1).filter(any).map(tuple))
def test_a_split_without_micro_batches_has_one_form(batches: tuple[int, ...]) -> None:
    split = BatchSplit(batches)
    assert split == BatchSplit(batches, batches) == BatchSplit(batches, ())
    assert hash(split) == hash(BatchSplit(batches, batches))
    assert (split.accumulates, split.micro_batches) == (False, batches)


@given(SPLIT)
def test_devices_without_samples_change_nothing_else(split: BatchSplit) -> None:
    used = split.without_idle
    assert used.batches == tuple(batch for batch in split.batches if batch)
    assert used.used == tuple(range(len(split.used)))
    assert used.without_idle == used
    assert (used.global_batch, used.accumulates) == (
        split.global_batch,
        split.accumulates,
    )
    assert used.counts == tuple(split.counts[device] for device in split.used)


@given(SPLIT)
def test_a_message_carries_a_split_unchanged(split: BatchSplit) -> None:
    adapter = TypeAdapter(BatchSplit)
    assert adapter.validate_json(adapter.dump_json(split)) == split


@cases(
    "batches, micro_batches, why",
    ((), (), "at least one device"),
    ((0, 0), (), "at least one device"),
    ((10, -1), (), "below 0"),
    ((1640, 568), (820,), "one micro-batch size: 1 given for 2"),
    ((1640, 568), (0, 568), "micro-batch"),
    ((1640, 568), (820, 600), "micro-batch"),
    ((1640, 0), (820, 1), "micro-batch"),
    ((0.6, 0.4), (), "whole numbers"),
)
def test_what_no_step_could_have_is_refused(
    batches: tuple[int, ...], micro_batches: tuple[int, ...], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        BatchSplit(batches, micro_batches)


@pytest.mark.parametrize(
    "message",
    ['{"batches": [0]}', '{"batches": ["8"]}', '{"batches": [8], "sizes": [8]}'],
)
def test_a_message_with_anything_else_is_refused(message: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(BatchSplit).validate_json(message)


@given(EVEN)
def test_an_even_split_is_equal_but_for_one_sample(case: tuple[int, int]) -> None:
    global_batch, devices = case
    even = BatchSplit.even(global_batch, devices)
    assert even.global_batch == global_batch
    assert len(even.used) == devices
    assert max(even.batches) - min(even.batches) <= 1
    assert not even.accumulates
    with pytest.raises(ValueError, match=f"{devices - 1} samples"):
        BatchSplit.even(devices - 1, devices)


def test_typed_shares_are_a_split_and_ratios_are_told_in_whole_numbers() -> None:
    assert shares_of([8, 4], [2, 4], 2) == BatchSplit((8, 4), (2, 4))
    for what, is_told in (("batches", False), ("ratios", True)):
        for sizes in ([6], [6, 4.0], [6, -1]):
            with pytest.raises(UsageError) as caught:
                shares_of(sizes, [], 2, what=what)  # type: ignore[arg-type]
            assert caught.value.message.startswith(what)
            assert ("3 and 2" in caught.value.remedy) == is_told
