"""Values that msgpack cannot store: an error with advice for each kind.

Flax and eFormer raise TypeError, ValueError, OverflowError or RuntimeError, depending on the kind
of leaf. Code that catches those also catches the errors here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np

from cordwood.errors import UnsupportedLeafError
from cordwood.keypath import KeyPath
from cordwood.tree.leaves import describe_leaf, is_jax_array, name_of_path


class UnsupportedArrayError(UnsupportedLeafError, ValueError, RuntimeError):
    """An array whose dtype, size or position in the tree cannot be stored."""


class UnsupportedIntegerError(UnsupportedLeafError, OverflowError):
    """An integer that does not fit 64 bits."""


class UnsupportedTextError(UnsupportedLeafError, ValueError):
    """A string that cannot be encoded as UTF-8."""


def unsupported_value_error(path: KeyPath, value: Any) -> UnsupportedLeafError:
    """Return the error for a value that cannot be stored."""
    at = name_of_path(path)
    kind = type(value)
    is_jax = is_jax_array(value)
    is_array = is_jax or isinstance(value, (np.ndarray, np.generic))
    dtypes_of_jax = sys.modules["jax"].dtypes if is_jax else None
    if dtypes_of_jax and dtypes_of_jax.issubdtype(value.dtype, dtypes_of_jax.prng_key):
        return UnsupportedArrayError(
            f"{at}: a typed PRNG key ({value.dtype}) has no form in msgpack; store "
            "jax.random.key_data of it (and jax.random.wrap_key_data what you load), or save as "
            ".safetensors"
        )
    if isinstance(value, np.generic):
        return UnsupportedArrayError(
            f"{at}: a numpy scalar of dtype {value.dtype} cannot be stored; convert it with .item()"
        )
    if isinstance(value, np.ndarray) and value.dtype.itemsize == 0 and value.dtype.names:
        return UnsupportedArrayError(
            f"{at}: an array of dtype float0 (the gradient of an integer) has no elements to "
            "store; leave it out"
        )
    if isinstance(value, np.ma.MaskedArray):
        return UnsupportedArrayError(
            f"{at}: a masked array cannot be stored; store its .data and .mask"
        )
    if isinstance(value, np.ndarray):
        value = value.view(np.ndarray)
    if isinstance(value, msgpack.ExtType):
        return UnsupportedLeafError(
            f"{at}: extension {value.code} would read as an array, scalar or tuple; use another "
            "code"
        )
    if isinstance(value, (tuple, Mapping)) and not is_array:
        other = ", or convert it with dict()" if isinstance(value, dict) else ""
        return UnsupportedLeafError(
            f"{at}: a {kind.__qualname__} cannot be stored as it is, only dict and list; use "
            f"to_bytes, or to_state_dict first{other}"
        )
    try:
        describe_leaf(path, value)
    except UnsupportedLeafError as e:
        return UnsupportedArrayError(str(e)) if is_array else e
    return UnsupportedLeafError(
        f"{at}: a value of type {kind.__module__}.{kind.__qualname__} cannot be stored in msgpack"
    )
