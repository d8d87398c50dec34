"""The dtypes of zarr: their codes, and the stored form of those that zarr lacks."""

from __future__ import annotations

import functools
from typing import NamedTuple

from cordwood import dtypes
from cordwood.formats.zarr.array_metadata import UnreadableElementsError

_NUMPY = {
    "b1": "bool",
    "i1": "int8",
    "i2": "int16",
    "i4": "int32",
    "i8": "int64",
    "u1": "uint8",
    "u2": "uint16",
    "u4": "uint32",
    "u8": "uint64",
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "c8": "complex64",
    "c16": "complex128",
}
# TensorStore's names for what numpy has no code for.
EXTENSIONS = (
    "bfloat16",
    "int2",
    "int4",
    "float4_e2m1fn",
    "float8_e3m4",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
_CODES = {
    **{name: ("|" if code.endswith("1") else "<") + code for code, name in _NUMPY.items()},
    **{name: name for name in EXTENSIONS},
}
_EXPECTED = ", ".join([*_NUMPY, *EXTENSIONS])


class StoredForm(NamedTuple):
    """The form in which zarr stores the elements of a dtype."""

    dtype: str  # a name of cordwood.dtypes that zarr has
    extra: tuple[int, ...]  # axes added after the leaf's own
    disguised: bool  # zarr lacks the leaf's dtype


@functools.cache
def stored_as(dtype: str) -> StoredForm:
    """Return the stored form of a dtype. Raises ValueError for one not in cordwood.dtypes."""
    if dtype in _CODES:
        return StoredForm(dtype, (), False)
    size = dtypes.itemsize(dtype)
    if size == 1:
        return StoredForm("uint8", (), True)
    if size == 8:  # times
        return StoredForm("int64", (), True)
    return StoredForm("uint8", (size,), True)


def zarr_dtype(dtype: str) -> str:
    """Return zarr's code of a `StoredForm.dtype`: '<f4' of float32."""
    return _CODES[dtype]


def parse_zarr_dtype(code: object) -> tuple[str, bool]:
    """Return the name of a dtype, and whether it is big-endian. Raises UnreadableElementsError."""
    if code in EXTENSIONS:
        return str(code), False
    if type(code) is str and code[:1] in ("<", ">", "|") and code[1:] in _NUMPY:
        name = _NUMPY[code[1:]]
        if code[0] != "|" or dtypes.itemsize(name) == 1:
            return name, code[0] == ">" and dtypes.itemsize(name) > 1
    raise UnreadableElementsError(
        f"dtype: {code!r:.80} is unknown; expected one of {_EXPECTED} (numpy's with '<', '>' or "
        "'|' before it)"
    )
