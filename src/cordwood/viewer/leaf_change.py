"""The change of one leaf, as matrices and facts are made of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from cordwood.keypath import KeyPath

_EQUAL_STATES = ("equal", "identical", "renamed")


class LeafChange(NamedTuple):
    """The difference of one leaf between two checkpoints.

    Attributes:
        key_path: the leaf.
        state: the state of its row: "changed", "equal", "identical", "added" ...
        change_l2: the L2 norm of b - a; None if the values were not compared.
        before_l2: the L2 norm of a; None if its values were not read.
        after_l2: the L2 norm of b; None as well.
        broken: True if the leaf changed, and b has NaNs, or infinite elements where a has none.
        is_weight: False for random state and counters: they belong to no group.
    """

    key_path: KeyPath
    state: str
    change_l2: float | None = None
    before_l2: float | None = None
    after_l2: float | None = None
    broken: bool = False
    is_weight: bool = True


def relative_l2(changes: Iterable[LeafChange]) -> float | None:
    """Return the norm of the changes relative to the norm of the leaves before.

    Leaves that are equal by digest have no norm, since they were not read: they do not count
    unless all are equal. None if another leaf was not compared.
    """
    changes = list(changes)
    different = [change for change in changes if change.state not in _EQUAL_STATES]
    if not different:
        return 0.0 if changes else None
    if any(change.change_l2 is None or change.before_l2 is None for change in different):
        return None
    change_l2 = math.hypot(*[change.change_l2 or 0.0 for change in different])
    before_l2 = math.hypot(*[change.before_l2 or 0.0 for change in changes])
    if not before_l2:
        return math.inf if change_l2 else 0.0
    return change_l2 / before_l2
