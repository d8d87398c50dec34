"""The encoding of states as JSON: what JSON holds, bytes, and containers with arrays."""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from cordwood import dtypes
from cordwood.encoding.plain_json import as_json


def encode_state(state: Any, where: str, *, whole: bool) -> dict[str, Any]:
    """Return a state as JSON.

    The arrays of a state are included if `whole`, and else replaced by a mark.
    """
    if isinstance(state, bytes):
        return {"bytes": base64.b64encode(state).decode()}
    try:
        return {"json": as_json(state, where)}
    except TypeError:
        try:
            encoded = encode_arrays(state, where)
        except RecursionError:
            raise TypeError(f"{where}: it holds itself, or is nested too deep") from None
        return {"arrays": encoded if whole else None}


def encode_arrays(value: Any, where: str) -> list[Any]:
    """Return a state that may hold arrays as JSON; two states are equal if these are.

    Raises TypeError, which begins with `where`, for values that cannot be stored.
    """
    if type(value) in (dict, OrderedDict):
        return ["dict", [[key, encode_arrays(v, f"{where}[{key!r}]")] for key, v in value.items()]]
    if type(value) in (list, tuple):
        inner = [encode_arrays(each, f"{where}[{i}]") for i, each in enumerate(value)]
        return [type(value).__name__, inner]
    if value is None or type(value) in (bool, int, float, str):
        return ["json", value]
    if type(value) is bytes:
        return ["bytes", base64.b64encode(value).decode()]
    type_text = f"a {type(value).__name__}"
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
        try:
            array = np.asarray(value)
        except TypeError as e:  # a typed key of jax, which says what to do
            raise TypeError(f"{where}: {e}") from e
        if array.dtype.kind not in "OUSMmT":
            kind = "scalar" if isinstance(value, np.generic) else "array"
            data = base64.b64encode(array.tobytes()).decode()
            return [kind, dtypes.name_of(array.dtype), list(array.shape), data]
        what = {"O": "objects", "M": "dates", "m": "durations"}.get(array.dtype.kind, "text")
        type_text = f"an array of {what} ({array.dtype.str})"
    raise TypeError(
        f"{where}: expected bytes, values that JSON holds, or dicts, lists and tuples of these and "
        f"of arrays of numbers, found {type_text}"
    )


def decode_state(state: Mapping[str, Any]) -> Any:
    """Return the state that `encode_state` encoded. Raises ValueError for what is no base64."""
    if "bytes" in state:
        return base64.b64decode(state["bytes"], validate=True)
    return state["json"] if "json" in state else _decode_arrays(state["arrays"])


def _decode_arrays(encoded: list[Any]) -> Any:
    kind, *content = encoded
    if kind == "dict":
        return {key: _decode_arrays(value) for key, value in content[0]}
    if kind in ("list", "tuple"):
        elements = [_decode_arrays(value) for value in content[0]]
        return elements if kind == "list" else tuple(elements)
    if kind == "json":
        return content[0]
    if kind == "bytes":
        return base64.b64decode(content[0])
    dtype, shape, data = content
    array = np.frombuffer(base64.b64decode(data), dtypes.to_numpy(dtype)).reshape(shape).copy()
    return array[()] if kind == "scalar" else array
