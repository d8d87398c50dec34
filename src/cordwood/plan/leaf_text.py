"""Short text for the type of a leaf. Pure."""

from __future__ import annotations

from cordwood.index import ARRAY_KINDS, Leaf, LeafSpec


def leaf_text(value: Leaf | LeafSpec) -> str:
    """Return dtype and shape of an array, or the kind of any other leaf.

    >>> leaf_text(LeafSpec(("w",), "numpy", (4, 8), "float32"))
    'float32[4,8]'
    """
    if value.kind == "prng_key":
        return f"key<{value.prng_impl}>[{_shape(value.shape[:-1])}]"
    if value.kind in ARRAY_KINDS:
        return f"{value.dtype}[{_shape(value.shape)}]"
    return value.kind


def _shape(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))
