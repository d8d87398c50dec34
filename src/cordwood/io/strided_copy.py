"""Strided copies from bytes that were read to the boxes that need parts of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cordwood.plan.load_plan import Scatter, strided_copies

# One type of each size, so that numpy moves whole elements, several at a time.
_CARRIERS: dict[int, np.dtype] = {
    1: np.dtype("u1"),
    2: np.dtype("u2"),
    4: np.dtype("u4"),
    8: np.dtype("u8"),
    16: np.dtype("c16"),
    32: np.dtype("V32"),
}


def strided_copy(
    spread: Scatter, data: memoryview, start: int, buffers: Sequence[memoryview]
) -> None:
    """Copy `data`, the stored array's bytes from `start` on, to where its parts go.

    Lets other threads run while it copies much.
    """
    for item, shape, position, steps, buffer, target, target_steps in strided_copies(
        spread, start, start + len(data)
    ):
        carrier = _CARRIERS[item]
        source = np.ndarray(shape, carrier, data, position, steps)
        np.copyto(np.ndarray(shape, carrier, buffers[buffer], target, target_steps), source)
