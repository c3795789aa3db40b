"""What `launch` is asked to do about losses, and what it and its scripts tell each other."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import Field

from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.record import Count, Record, WithinDay, launching_option

_VARIABLE = "GPUBALANCE_SPLIT"


class Launching(Record):
    """How often a script is started again after a loss, and when a process counts as lost.

    With fewer than `at_least` devices it is not. A process whose training takes no step for
    `deadline_s` is lost; null for however long.
    """

    restarts: Annotated[int, Field(ge=0, le=10_000)] = launching_option(
        "--restarts N",
        "After the loss of a process or a host, start the script again on the "
        "remaining devices, at most N times.",
        0,
    )
    at_least: Count = launching_option(
        "--at-least N", "Do not start again on fewer than N devices.", 1
    )
    deadline_s: WithinDay | None = launching_option(
        "--deadline S",
        "End everything if training finishes no step for longer than S seconds. "
        "Default: wait.",
    )


class TrainingProgress(Record):
    """How far a script's training is: in which step of which epoch, from 1 on; 0 before.

    `unsaved` steps have begun since the last backup, which `backs_up` says there are. The next step
    is `awaited` while nothing but the training goes on.
    """

    epoch: int = 0
    step: int = 0
    unsaved: int = 0
    backs_up: bool = False
    awaited: bool = False

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and step, to be compared."""
        return self.epoch, self.step

    @property
    def has_trained(self) -> bool:
        """Whether a step has come to its end."""
        return self.place > (1, 1)

    @property
    def place_text(self) -> str:
        """`in step 7 of epoch 2`."""
        return f"in step {self.step} of epoch {self.epoch}"

    @property
    def lost_text(self) -> str:
        """What is lost if the training ends here."""
        if not self.epoch:
            return "training had not begun"
        since = "the last backup" if self.backs_up else "the beginning"
        return (
            f"steps lost since {since}: {self.unsaved:,}; training was "
            f"{self.place_text}"
        )


class LaunchedSplit(Record):
    """The split that a script trains with in place of that of the plan of this time."""

    created: str
    split: BatchSplit

    @property
    def environment(self) -> dict[str, str]:
        """The variable that tells it to the script."""
        return {_VARIABLE: self.model_dump_json()}


def launched_split(created: str) -> BatchSplit | None:
    """The split that `launch` gives in place of that plan's; None for the plan's own."""
    text = os.environ.get(_VARIABLE)
    if not text:
        return None
    launched = LaunchedSplit.model_validate_json(text)
    if launched.created != created:
        return None
    return launched.split
