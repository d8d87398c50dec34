"""The table of dtypes: names, sizes, and their codes in safetensors.

Sizes are bytes per element, in memory and in files alike. Types under eight bits take one byte
per element and use its low bits. The table needs neither numpy nor ml_dtypes; only `to_numpy`
imports them.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, NamedTuple

from cordwood.did_you_mean import nearest_name
from cordwood.errors import UnsupportedFormatError

if TYPE_CHECKING:
    import numpy as np


class DType(NamedTuple):
    """One row of the table."""

    name: str
    itemsize: int
    safetensors: str | None = None  # its code in safetensors, if the bytes are the same there
    source: str = "numpy"  # the package that defines it


_ROWS = (
    DType("bool", 1, "BOOL"),
    DType("int8", 1, "I8"),
    DType("int16", 2, "I16"),
    DType("int32", 4, "I32"),
    DType("int64", 8, "I64"),
    DType("uint8", 1, "U8"),
    DType("uint16", 2, "U16"),
    DType("uint32", 4, "U32"),
    DType("uint64", 8, "U64"),
    DType("float16", 2, "F16"),
    DType("float32", 4, "F32"),
    DType("float64", 8, "F64"),
    DType("float128", 16),
    DType("complex64", 8, "C64"),
    DType("complex128", 16),
    DType("complex256", 32),
    DType("bfloat16", 2, "BF16", "ml_dtypes"),
    DType("int1", 1, None, "ml_dtypes"),
    DType("int2", 1, None, "ml_dtypes"),
    DType("int4", 1, None, "ml_dtypes"),
    DType("uint1", 1, None, "ml_dtypes"),
    DType("uint2", 1, None, "ml_dtypes"),
    DType("uint4", 1, None, "ml_dtypes"),
    DType("float4_e2m1fn", 1, None, "ml_dtypes"),
    DType("float6_e2m3fn", 1, None, "ml_dtypes"),
    DType("float6_e3m2fn", 1, None, "ml_dtypes"),
    DType("float8_e3m4", 1, None, "ml_dtypes"),
    DType("float8_e4m3", 1, None, "ml_dtypes"),
    DType("float8_e4m3b11fnuz", 1, None, "ml_dtypes"),
    DType("float8_e4m3fn", 1, "F8_E4M3", "ml_dtypes"),
    DType("float8_e4m3fnuz", 1, "F8_E4M3FNUZ", "ml_dtypes"),
    DType("float8_e5m2", 1, "F8_E5M2", "ml_dtypes"),
    DType("float8_e5m2fnuz", 1, "F8_E5M2FNUZ", "ml_dtypes"),
    DType("float8_e8m0fnu", 1, "F8_E8M0", "ml_dtypes"),
)
DTYPES = {row.name: row for row in _ROWS}

# numpy's name of a time type includes its unit: datetime64[ns], timedelta64[25s], datetime64.
_TIME = re.compile(
    r"(datetime64|timedelta64)(\[([1-9][0-9]{0,9})?(Y|M|W|D|h|m|s|ms|us|μs|ns|ps|fs|as)\])?"
)


def is_storable(name: str) -> bool:
    """Return True if `name` is in the table or is one of numpy's time types."""
    return name in DTYPES or _TIME.fullmatch(name) is not None


def is_floating(name: str) -> bool:
    """Return True for the name of a real floating-point dtype of any width."""
    return name.startswith(("float", "bfloat"))


# Short names in common use.
_SHORT = {
    "bf16": "bfloat16",
    "f16": "float16",
    "fp16": "float16",
    "half": "float16",
    "f32": "float32",
    "fp32": "float32",
    "f64": "float64",
    "fp64": "float64",
}

# Codes of numpy, which count bytes, and the names that are meant: they are suggested, not taken.
_NUMPY_CODES = {
    "f2": "f16",
    "f4": "f32",
    "f8": "f64",
    "i1": "int8",
    "i2": "int16",
    "i4": "int32",
    "i8": "int64",
    "u1": "uint8",
    "u2": "uint16",
    "u4": "uint32",
    "u8": "uint64",
    "c8": "complex64",
    "c16": "complex128",
}


def parse(dtype: object) -> str:
    """Return the table's name of a dtype: of a name, a short name, or a numpy or jax dtype.

    Raises:
        ValueError: the argument is no dtype; the message suggests the nearest name.
    """
    if isinstance(dtype, str):
        name = _SHORT.get(dtype, dtype)
        if is_storable(name):
            return name
        close = _NUMPY_CODES.get(name) or nearest_name(name, [*DTYPES, *_SHORT])
        hint = f"; did you mean {close!r}?" if close else ""
        raise ValueError(f"unknown dtype {dtype!r}{hint}")
    if dtype is None:  # which numpy takes for float64
        raise ValueError('None is no dtype: pass one, such as "bf16"')
    import numpy as np

    try:
        return name_of(np.dtype(dtype))  # type: ignore[call-overload]
    except TypeError as e:
        raise ValueError(f"{dtype!r} is no dtype that can be stored") from e


def itemsize(name: str) -> int:
    """Return the bytes per element.

    Raises:
        ValueError: `name` is not storable.
    """
    row = DTYPES.get(name)
    if row is not None:
        return row.itemsize
    if _TIME.fullmatch(name):
        return 8
    raise ValueError(f"unknown dtype {name!r}")


@functools.cache
def to_numpy(name: str) -> np.dtype:
    """Return the native-endian numpy dtype called `name`.

    Raises:
        ValueError: `name` is not storable.
        UnsupportedFormatError: the numpy of this platform, or ml_dtypes, lacks it (for example
            float128 outside x86 Linux).
    """
    import numpy as np

    row = DTYPES.get(name)
    if row is None and not _TIME.fullmatch(name):
        raise ValueError(f"unknown dtype {name!r}")
    if row is not None and row.source == "ml_dtypes":
        import ml_dtypes

        scalar = getattr(ml_dtypes, name, None)
        if scalar is None:
            raise UnsupportedFormatError(f"dtype {name!r} needs a newer ml_dtypes")
        dtype: np.dtype = np.dtype(scalar)
        return dtype
    try:
        return np.dtype(name)
    except TypeError as e:
        raise UnsupportedFormatError(f"dtype {name!r} does not exist on this platform") from e


@functools.cache
def name_of(dtype: np.dtype) -> str:
    """Return the table's name of a numpy dtype of any byte order.

    Raises:
        TypeError: it is a string, bytes, void, structured, object or zero-size dtype.
    """
    name = str(dtype.name)
    is_plain = not dtype.hasobject and dtype.names is None and dtype.itemsize > 0
    if not is_plain or not is_storable(name):
        raise TypeError(f"dtype {dtype} cannot be stored: only numbers, bools and times can")
    return name
