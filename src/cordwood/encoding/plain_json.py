"""Values that JSON gives back as they are, such as the extras of a step."""

from __future__ import annotations

import json
import math
from typing import Any

_MAX_DEPTH = 200  # how deep an error searches for a value that is not JSON


def as_json(value: Any, where: str) -> Any:
    """Return a copy of a value that JSON gives back unchanged.

    Args:
        value: the value.
        where: its name, for the error.

    Raises TypeError for other values; it names the first one that JSON cannot hold.
    """
    try:
        copy = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as e:
        raise TypeError(f"{where}: expected values that JSON holds: {_not_json(value) or e}") from e
    if copy != value:
        raise TypeError(
            f"{where}: expected values that JSON gives back as they are: {_not_json(value)}"
        )
    return copy


_ADVICE = "dicts with keys that are str, lists, str, int, finite float, bool and None"


def _not_json(value: Any, path: str = "", depth: int = 0) -> str:
    """Return the place of the first value that JSON does not keep, and advice; "" for none."""
    at = path or "it"
    if type(value) in (dict, list) and depth < _MAX_DEPTH:
        is_dict = type(value) is dict
        for key, each in value.items() if is_dict else enumerate(value):
            if is_dict and type(key) is not str:
                return f"{at} has the key {key!r:.80}, a {type(key).__name__}; JSON holds {_ADVICE}"
            problem = _not_json(each, f"{path}[{key!r}]", depth + 1)
            if problem:
                return problem
        return ""
    if value is None or type(value) in (str, int, bool):
        return ""
    if type(value) is float and math.isfinite(value):
        return ""
    hint = f"JSON holds {_ADVICE}"
    if hasattr(value, "tolist"):
        hint = "call .tolist() on it, or save it in the tree or in items="
    elif type(value) is tuple:
        hint = "make it a list"
    problem = f"{value!r:.80}" if type(value) in (float, tuple) else f"a {type(value).__name__}"
    return f"{at} is {problem}; {hint}"
