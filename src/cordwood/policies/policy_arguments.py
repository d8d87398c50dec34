"""The arguments of policies, which are checked when a policy is made."""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import dataclass
from typing import (
    SupportsFloat,
)

from cordwood.formats.step_names import step_number

# Arguments of policies of both kinds


@dataclass(frozen=True, slots=True)
class Count:
    """The argument of a policy that counts: more than 0."""

    count: int

    def __post_init__(self) -> None:
        where = f"{type(self).__name__}: count: expected"
        try:
            number = operator.index(self.count)
        except TypeError:
            raise TypeError(f"{where} an integer, found {self.count!r:.80}") from None
        if not number > 0:
            raise ValueError(f"{where} more than 0, found {self.count!r:.80}")
        object.__setattr__(self, "count", number)


@dataclass(frozen=True, slots=True)
class Seconds:
    """The argument of a policy of a time: more than 0."""

    seconds: float

    def __post_init__(self) -> None:
        where = f"{type(self).__name__}: seconds: expected"
        if not isinstance(self.seconds, SupportsFloat) or isinstance(self.seconds, bool):
            raise TypeError(f"{where} a number, found {self.seconds!r:.80}")
        if not float(self.seconds) > 0:
            raise ValueError(f"{where} more than 0, found {self.seconds!r}")


@dataclass(frozen=True, slots=True, init=False, repr=False)
class StepNumbers:
    """The argument of a policy of certain steps."""

    steps: frozenset[int]

    def __init__(self, steps: Collection[int]) -> None:
        try:
            numbers = frozenset([step_number(step) for step in steps])
        except TypeError as e:
            raise TypeError(
                f"{type(self).__name__}: expected several steps, as [5, 7], found {steps!r:.80}"
            ) from e
        object.__setattr__(self, "steps", numbers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({sorted(self.steps)})"
