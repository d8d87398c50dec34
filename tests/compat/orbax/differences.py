"""Observations of scripts that differ with cordwood; docs/how-to/orbax.md explains each."""

from __future__ import annotations

from typing import Any, NamedTuple


class Difference(NamedTuple):
    """The observations with Orbax and with cordwood, and the row of the page that explains them."""

    values: tuple[Any, Any]
    row: str


_NEWEST = "the newest step, if it is not among the best (`best_fn`)"
_NAMES = "`step_prefix`, `step_format_fixed_length`"

# By script, and by the keys of the observation.
DIFFERENCES: dict[str, dict[str, Difference]] = {
    "best_fn": {
        "/highest/latest": Difference(("int 3", "int 4"), _NEWEST),
        "/highest/on disk": Difference((["int 3"], ["int 3", "int 4"]), _NEWEST),
        "/highest/steps": Difference((["int 3"], ["int 3", "int 4"]), _NEWEST),
        "/lowest/latest": Difference(("int 3", "int 4"), _NEWEST),
        "/lowest/on disk": Difference((["int 1", "int 3"], ["int 1", "int 3", "int 4"]), _NEWEST),
        "/lowest/steps": Difference((["int 1", "int 3"], ["int 1", "int 3", "int 4"]), _NEWEST),
    },
    "own_handler": {
        "/file": Difference(("bool True", "bool False"), "files of a handler of your own"),
    },
    "step_names": {
        "/error": Difference(("str ", "str TypeError"), _NAMES),
    },
    "v1_save_load": {
        "/absent": Difference(("str ValueError", "str FileNotFoundError"), "`v1.load` of nothing"),
    },
}


def differing(a: Any, b: Any, key: str = "") -> dict[str, tuple[Any, Any]]:
    """Return the two values of each part of two observations that differs, by its keys."""
    if isinstance(a, dict) and isinstance(b, dict):
        names = sorted({*a, *b})
        parts = [(f"{key}/{name}", a.get(name), b.get(name)) for name in names]
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        parts = [(f"{key}/{index}", x, y) for index, (x, y) in enumerate(zip(a, b, strict=True))]
    else:
        return {} if a == b else {key: (a, b)}
    differences: dict[str, tuple[Any, Any]] = {}
    for part, x, y in parts:
        differences.update(differing(x, y, part))
    return differences
