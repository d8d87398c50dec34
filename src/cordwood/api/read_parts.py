"""Reading of boxes of many leaves of a checkpoint, for verbs that process all of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np

from cordwood.api.checkpoint import Checkpoint
from cordwood.index import Box, Leaf
from cordwood.loading.read_boxes import read_boxes
from cordwood.plan.load_boxes import BoxRequest

Array: TypeAlias = np.ndarray[Any, Any]


def read_parts(checkpoint: Checkpoint, parts: Sequence[tuple[Leaf, Box]]) -> list[Array]:
    """Return the elements of boxes of array leaves, in their order; digests are checked.

    Args:
        checkpoint: the open checkpoint.
        parts: leaves with their pieces, and a box of each; boxes of one leaf are adjacent.
    """
    reading = checkpoint._read_context()
    wants = []
    for _, group in groupby(parts, key=lambda part: id(part[0])):
        some = list(group)
        wants.append(BoxRequest(some[0][0], tuple([box for _, box in some])))
    return [array for arrays in read_boxes(reading, wants) for array in arrays]
