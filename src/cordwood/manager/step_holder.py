"""A place beside the root of a run that holds copies of its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cordwood.errors import CordwoodError, StepError
from cordwood.manager.step import Step
from cordwood.manager.steps import Steps


class StepHolder(NamedTuple):
    """A place that holds copies of the steps of a run: the mirror.

    Attributes:
        name: its name in messages.
        steps: its steps.
        on_unreadable: called with the error if it cannot be read, in a restore that needs it not.
    """

    name: str
    steps: Steps
    on_unreadable: Callable[[Exception], None]

    def newest(self) -> list[Step]:
        """Return its steps from the newest down to the newest whole one.

        Raises OSError, CordwoodError.
        """
        steps = self.steps.down_to(lambda each: each.whole)
        if steps and steps[-1].whole and not steps[-1].is_read:
            raise StepError(f"{steps[-1].path}: {steps[-1].problem}")
        return steps

    def find(self, number: int) -> Step | None:
        """Return the whole step of a number; None if it has none, or cannot be read."""
        try:
            step = self.steps.at(number)
        except (OSError, CordwoodError) as e:
            self.on_unreadable(e)
            return None
        return step if step is not None and step.whole and step.is_read else None
