"""The fill value of an array: what its metadata says, as the bytes of one stored element.

https://zarr-specs.readthedocs.io/en/latest/v3/data-types/index.html and, for version 2,
https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html#fill-value-encoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cordwood import dtypes
from cordwood.errors import FormatError

if TYPE_CHECKING:
    import numpy as np

_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def fill_element(value: object, dtype: str, *, big_endian: bool) -> bytes | None:
    """Return the bytes of an element that is not stored; None if every element is stored.

    Args:
        value: the `fill_value` of the metadata.
        dtype: a name of cordwood.dtypes.
        big_endian: the order of the bytes of stored elements.

    Raises FormatError for a value that is none of the dtype.
    """
    if value is None:
        return None
    import numpy as np

    numpy_dtype = dtypes.to_numpy(dtype)
    try:
        if dtype.startswith("complex"):
            real, imaginary = value if type(value) is list else (value, 0.0)
            part = np.dtype("f4" if dtype == "complex64" else "f8")
            pair = np.concatenate([_element(real, part), _element(imaginary, part)])
            element = pair.view(numpy_dtype)
        else:
            element = _element(value, numpy_dtype)
    except (TypeError, ValueError, OverflowError) as e:
        raise FormatError(f"fill_value: {value!r:.80} is no value of {dtype}") from e
    return (element.byteswap() if big_endian else element).tobytes()


def _element(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return an array of one element. Raises TypeError, ValueError or OverflowError."""
    import numpy as np

    if dtype.kind == "b":
        if value not in (False, True):
            raise ValueError(value)
        return np.array([bool(value)])
    if dtype.kind in "iu":
        if type(value) is bool or int(value) != value:
            raise ValueError(value)
        return np.array([int(value)], dtype)
    if type(value) is str and value.startswith("0x"):  # the bits of a float
        bits = bytes.fromhex(value[2:])
        if len(bits) != dtype.itemsize:
            raise ValueError(value)
        return np.frombuffer(bits[::-1], dtype)
    if type(value) is str:
        if value not in _FLOATS:
            raise ValueError(value)
        value = _FLOATS[value]
    if type(value) not in (int, float):
        raise TypeError(value)
    with np.errstate(over="ignore"):
        return np.array([value], np.float64).astype(dtype)
