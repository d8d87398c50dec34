"""The dtypes that a .npy header names."""

from __future__ import annotations

import re

from cordwood import dtypes
from cordwood.errors import FormatError, UnsupportedFormatError
from cordwood.message_text import counted

_CODE = re.compile(r"([<>|])([A-Za-z])([0-9]{0,9})(\[[^\]]{1,20}\])?")
_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_TIMES = {"M": "datetime64", "m": "timedelta64"}


def parse_dtype(descr: str) -> tuple[str, bool]:
    """Return the name of a dtype, and whether its elements are big-endian."""
    match = _CODE.fullmatch(descr)
    if match is None:
        raise FormatError(f"the dtype {descr!r:.80} is not a dtype of numpy")
    order, kind, size, unit = match.groups()
    if kind == "O":
        raise UnsupportedFormatError(
            "an array of Python objects is pickled, which cordwood never loads; if you trust "
            "where it is from, numpy.load(..., allow_pickle=True) it and save its contents as "
            "arrays of numbers"
        )
    if kind in "SUTa":
        raise UnsupportedFormatError(
            f"an array of text (dtype {descr}) cannot be read; numpy.load it, and save numbers"
        )
    swapped = order == ">"
    if kind == "V" and size == "2":
        return "bfloat16", swapped  # numpy writes so the only two-byte type that it does not have
    if kind == "V":
        types = f"types of {counted(int(size or 0), 'byte')}"
        if size == "1":
            types = "float8 types, int4 and other one-byte types"
        unsigned = {"4": "uint32", "8": "uint64"}.get(size, "uint8")
        raise UnsupportedFormatError(
            f"dtype {descr} does not say what the elements are: numpy writes it for {types} that "
            "numpy does not have; save them in a format that does, or .view() them as "
            f"{unsigned} before saving"
        )
    name = ""
    if kind in _TIMES and size == "8":
        name = _TIMES[kind] + (unit or "")
    elif kind in _KINDS and size and not unit:
        name = "bool" if (kind, size) == ("b", "1") else f"{_KINDS[kind]}{8 * int(size)}"
    if not dtypes.is_storable(name) or name in ("int1", "uint1"):
        raise FormatError(f"the dtype {descr!r:.80} is unknown here")
    return name, swapped and dtypes.itemsize(name) > 1


def unread_item_bytes(descr: str) -> int | None:
    """Return the size of an element of text or of void; None where it is unknown."""
    match = _CODE.fullmatch(descr)
    if match is None or match[2] not in "SUaV" or not match[3]:
        return None
    return int(match[3]) * (4 if match[2] == "U" else 1)
