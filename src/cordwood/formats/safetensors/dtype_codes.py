"""The dtypes of safetensors: their codes, and the stored form of those that it lacks."""

from __future__ import annotations

from typing import NamedTuple

from cordwood import dtypes
from cordwood.index import Encoding


class Code(NamedTuple):
    """The meaning of a dtype code."""

    dtype: str  # a name of cordwood.dtypes
    bits: int  # per element, as stored
    encoding: Encoding = "raw"


CODES: dict[str, Code] = {
    row.safetensors: Code(row.name, 8 * row.itemsize)
    for row in dtypes.DTYPES.values()
    if row.safetensors is not None
}
# Packed types: cordwood reads but never writes them. It writes these dtypes as U8, one byte per
# element.
CODES["F4"] = Code("float4_e2m1fn", 4, "packed4")
CODES["F6_E2M3"] = Code("float6_e2m3fn", 6, "packed6")
CODES["F6_E3M2"] = Code("float6_e3m2fn", 6, "packed6")


class StoredDtype(NamedTuple):
    """The form in which cordwood writes a dtype."""

    code: str
    itemsize: int  # of the dtype
    is_substitute: bool  # True if stored as U8, because the format lacks the dtype
    extra_shape: tuple[int, ...]  # axes that U8 adds at the end of the shape


def stored_dtype(dtype: str) -> StoredDtype:
    """Return the form in which `dtype` is written. Raises ValueError if it is not storable."""
    itemsize = dtypes.itemsize(dtype)
    row = dtypes.DTYPES.get(dtype)
    if row is not None and row.safetensors is not None:
        return StoredDtype(row.safetensors, itemsize, False, ())
    return StoredDtype("U8", itemsize, True, () if itemsize == 1 else (itemsize,))
