"""Partition rules give the same specs as eFormer's match_partition_rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from cordwood import match_partition_rules


class Moments(NamedTuple):
    mu: Any
    nu: Any


TREES: list[Any] = [
    {"a": {"w": np.ones((4, 4)), "b": np.ones(4)}, "l": [np.ones(2), (np.ones((2, 2)),)]},
    {"scalar": np.array(1.0), "int": 3, "one": np.ones((1,)), "none": None},
    Moments({"w": np.ones((2, 3))}, [np.ones((4, 2, 2))]),
    {"s": jax.ShapeDtypeStruct((8, 2), np.float32), "empty": {}},
    {"large": np.ones((128, 128)), "w": np.ones((128, 127))},
    np.ones(3),
    {},
    None,
]
RULES: list[list[tuple[str, P]]] = [
    [("w", P("x", "y")), (".*", P("x"))],
    [("l/1/0|mu", P("y")), ("a/b$", P()), ("", P("x", "y", "z"))],
    [("(^|/)w$", P(("x", "y")))],
]


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: str(jax.tree.structure(tree)))
@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("min_size", [0, 4, None])
def test_partition_rules_match_as_in_eformer(
    tree: Any, rules: list[tuple[str, P]], strict: bool, min_size: int | None
) -> None:
    from eformer.escale import match_partition_rules as reference

    expected = outcome(reference, rules, tree, min_size, strict)
    assert outcome(match_partition_rules, rules, tree, min_size, strict) == expected


def outcome(match: Callable[..., Any], *args: Any) -> Any:
    try:
        return match(*args)
    except ValueError as e:
        return str(e)


def test_the_first_rule_counts_and_scalars_need_none() -> None:
    rules = [("kernel", P("x")), ("dense", P("y", None))]
    kernel, bias = jax.ShapeDtypeStruct((4, 2), "float32"), jax.ShapeDtypeStruct((4,), "float32")
    tree = {"dense": {"kernel": kernel, "bias": bias}, "other": jax.ShapeDtypeStruct((), "int32")}
    specs = match_partition_rules(rules, tree)
    assert specs == {"dense": {"kernel": P("x"), "bias": P("y")}, "other": P()}
    assert match_partition_rules(rules, tree, min_size=5)["dense"]["bias"] == P()
    with pytest.raises(ValueError, match=r"^Partition rule not found for param: other$"):
        match_partition_rules(rules, {"other": bias})
