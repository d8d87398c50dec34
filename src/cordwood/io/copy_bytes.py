"""Copies of byte ranges of arrays, as they are stored."""

from __future__ import annotations

import math
import sys
from typing import TypeGuard

import numpy as np

from cordwood.io.lazy_array import LazyArray

SMALL_COPY_BYTES = 16 << 10  # below this, memoryview assignment is quicker than numpy's
_LITTLE_ENDIAN = ("|", "<", "=") if sys.byteorder == "little" else ("|", "<")


def copy_bytes(array: np.ndarray | LazyArray, start: int, target: memoryview) -> None:
    """Fill `target` with the bytes of `array`, in C order and little-endian, from `start` on.

    Raises ValueError if the array has fewer bytes.
    """
    if isinstance(array, LazyArray):
        array.copy_bytes(start, target)
        return
    if type(array) is not np.ndarray:  # a subclass may reshape in its own way
        array = np.asarray(array)
    size = len(target)
    if start + size > array.nbytes:
        raise ValueError(f"expected bytes {start} to {start + size}, found {array.nbytes} in all")
    if not array.flags.c_contiguous or not is_little_endian(array):
        _copy_elements(array, start, np.frombuffer(target, np.uint8))
        return
    source = array.reshape(-1).view(np.uint8)
    if size < SMALL_COPY_BYTES:
        target[:] = source.data if size == len(source) else source.data[start : start + size]
    else:  # releases the GIL
        np.copyto(np.frombuffer(target, np.uint8), source[start : start + size])


def is_little_endian(array: np.ndarray | LazyArray) -> TypeGuard[np.ndarray]:
    """Return True for a plain array whose bytes are little-endian, as files hold them."""
    return type(array) is np.ndarray and array.dtype.byteorder in _LITTLE_ENDIAN


def _copy_elements(array: np.ndarray, start: int, target: np.ndarray) -> None:
    """Do the work of `copy_bytes` for any strides and byte order, without a copy of the array."""
    size = array.itemsize
    dtype = array.dtype.newbyteorder("<")
    at, total = 0, len(target)
    while at < total:
        element, inside = divmod(start + at, size)
        whole = (total - at) // size if not inside else 0
        if whole:
            count = whole * size
            _copy_range(array, element, element + whole, target[at : at + count].view(dtype))
        else:  # the target begins or ends within an element
            one = np.empty(1, dtype)
            _copy_range(array, element, element + 1, one)
            count = min(size - inside, total - at)
            target[at : at + count] = one.view(np.uint8)[inside : inside + count]
        at += count


def _copy_range(array: np.ndarray, start: int, stop: int, target: np.ndarray) -> None:
    """Copy elements [start, stop) in C order to the 1-d `target`, in boxes as large as possible."""
    if array.ndim <= 1:
        np.copyto(target, array.reshape(-1)[start:stop] if array.ndim == 0 else array[start:stop])
        return
    row = math.prod(array.shape[1:])
    at = start
    while at < stop:
        index, inside = divmod(at, row)
        rows = (stop - at) // row if not inside else 0
        if rows:
            count = rows * row
            box = target[at - start : at - start + count].reshape(rows, *array.shape[1:])
            np.copyto(box, array[index : index + rows])
        else:
            count = min(row - inside, stop - at)
            part = target[at - start : at - start + count]
            _copy_range(array[index], inside, inside + count, part)
        at += count
