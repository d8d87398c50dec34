"""The leaf that an array written by cordwood holds."""

from __future__ import annotations

from typing import NamedTuple

from cordwood.encoding.leaf_table import LeafType
from cordwood.errors import FormatError
from cordwood.formats.zarr.dtype_names import stored_as


class LeafForm(NamedTuple):
    """Shape and dtype of the leaf, and the axes that the array has after those of the leaf."""

    shape: tuple[int, ...]
    dtype: str
    extra: tuple[int, ...]


def leaf_form(leaf_type: LeafType, shape: tuple[int, ...], dtype: str) -> LeafForm:
    """Return the form of the leaf that an array of this shape and dtype holds.

    Raises FormatError where it can hold none of that type.
    """
    kind, _, logical, _, _ = leaf_type
    form = LeafForm(shape, dtype, ())
    fits = True
    if logical:
        stored = stored_as(logical)
        axes = len(shape) - len(stored.extra)
        fits = stored.disguised and stored.dtype == dtype and axes >= 0
        fits = fits and shape[axes:] == stored.extra
        form = LeafForm(shape[: max(0, axes)], logical, stored.extra)
    if kind == "numpy_scalar":
        fits = fits and form.shape == ()
    elif kind == "prng_key":
        fits = fits and form.dtype == "uint32" and form.shape != ()
    if not fits or kind in ("str", "bytes"):
        raise FormatError(
            f"an array of {dtype}{list(shape)} cannot hold a leaf of type {kind} {logical}".rstrip()
        )
    return form
