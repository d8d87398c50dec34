"""The order in which arrays lie in a file that has no gaps between them. Pure."""

from __future__ import annotations

TENSOR_ALIGNMENT = 64  # what jax.device_put asks of memory that it is to alias


def data_order(length: int, itemsize: int) -> tuple[bool, int]:
    """The sort key of an array of `length` bytes; ties keep the order they come in.

    Those whose size allows it begin at a multiple of 64, and every other one at a multiple of
    its item size.

    >>> sorted([(4, 4), (128, 2), (3, 1), (8, 8)], key=lambda array: data_order(*array))
    [(128, 2), (8, 8), (4, 4), (3, 1)]
    """
    aligned = length % TENSOR_ALIGNMENT == 0
    return (not aligned, 0 if aligned else -itemsize)
