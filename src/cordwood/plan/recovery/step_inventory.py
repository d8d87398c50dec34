"""The files of a step that a root holds, as a value and as a message. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from cordwood.plan.recovery.position_runs import PositionRuns, runs_from_numbers, runs_to_numbers


class StepInventory(NamedTuple):
    """The files of one step that one root holds, or the mirror.

    Two inventories are of the same step if `step` and `index_digest` are equal.

    Attributes:
        step: its number.
        index_digest: the digest of the bytes of its index, in hexadecimal.
        saved_at: the time of its save, in seconds since 1970.
        file_count: the number of files that the index names.
        files: the positions, in the list of files of the index, of those that are whole here.
    """

    step: int
    index_digest: str
    saved_at: float
    file_count: int
    files: PositionRuns


def encode_inventory(steps: Sequence[StepInventory]) -> list[Any]:
    """Return the steps of a root as JSON values, of about 70 bytes for each step."""
    return [[*step[:4], *runs_to_numbers(step.files)] for step in steps]


def decode_inventory(values: Sequence[Sequence[Any]]) -> list[StepInventory]:
    """Return the steps that `encode_inventory` was given."""
    return [
        StepInventory(step, digest, saved_at, file_count, runs_from_numbers(numbers))
        for step, digest, saved_at, file_count, *numbers in values
    ]
