"""assert_trees_equal reports every difference in what a checkpoint must keep."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cordwood.testing import assert_trees_equal
from cordwood.testing.strategies import Pair

KEY = jax.random.key(0)
LINE = jax.sharding.NamedSharding(jax.make_mesh((8,), ("x",)), jax.sharding.PartitionSpec("x"))

DIFFERENT = [
    (1, True, "the root: expected a value of type bool, found int"),
    ([1], (1,), "the root: expected a value of type tuple, found list"),
    ({"a": {"b": 1}}, {"a": {"b": 2}}, "a/b: expected 2, found 1"),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "the root: expected the keys 'b', 'a', found 'a', 'b'"),
    ({1: "x"}, {True: "x"}, "the root: expected the keys True, found 1"),
    ({0.0: "x"}, {-0.0: "x"}, "expected the keys -0.0, found 0.0"),
    ({(1,): 1}, {(1,): 2}, "((1,)): expected 2"),
    ([1, 2], [1], "the root: expected 1 items, found 2"),
    (Pair(1, 2), (1, 2), "expected a value of type tuple, found Pair"),
    (Pair(1, 2), Pair(1, 3), "second: expected 3"),
    (OrderedDict(a=1), {"a": 1}, "type dict, found OrderedDict"),
    (defaultdict(list), defaultdict(dict), "expected <class 'dict'>"),
    (None, 0, "type int, found NoneType"),
    (0.0, -0.0, "expected -0.0, found 0.0"),
    (complex(0, 0.0), complex(0, -0.0), "found 0j"),
    ("a", "b", "expected 'b', found 'a'"),
    (np.zeros(2), [0.0, 0.0], "type list, found ndarray"),
    (np.zeros(2), np.zeros(2, np.float32), "dtype float32, found float64"),
    (np.zeros(2), np.zeros((2, 1)), "shape (2, 1), found (2,)"),
    (np.zeros(()), np.float64(0), "type float64, found ndarray"),
    (np.array([1.0, 0.0]), np.array([1.0, -0.0]), "(bytes 0000000000000080) as element 1"),
    (np.longdouble(1), np.longdouble(2), "as element 0"),
    (np.zeros(2, np.float32), jnp.zeros(2), "type ArrayImpl, found ndarray"),
    (jnp.zeros(2), jnp.zeros(2, jnp.int32), "dtype int32, found float32"),
    (jnp.zeros(2), jnp.asarray(np.ones(2, np.float32)), "as element 0 in C order"),
    (jnp.asarray(1.0), jnp.asarray(np.float32(1)), "a strong type, found a weak type"),
    (jax.device_put(jnp.ones(8), LINE), jnp.ones(8), "uncommitted, found committed"),
    (
        jax.device_put(jnp.ones(8), LINE),
        jax.device_put(jnp.ones(8), jax.devices()[0]),
        "SingleDeviceSharding",
    ),
    (KEY, jax.random.key(1), "as element 1"),
    (KEY, jax.random.key(0, impl="rbg"), "expected dtype key<rbg>, found key<fry>"),
    (jax.tree_util.Partial(max, 1), jax.tree_util.Partial(min, 1), "expected PyTreeDef"),
    (jax.tree_util.Partial(max, 1), jax.tree_util.Partial(max, 2), "expected 2, found 1"),
]


@pytest.mark.parametrize(("got", "want", "message"), DIFFERENT, ids=range(len(DIFFERENT)))
def test_each_difference_fails_with_its_message(got: Any, want: Any, message: str) -> None:
    with pytest.raises(AssertionError) as raised:
        assert_trees_equal(got, want)
    assert message in str(raised.value)


@pytest.mark.parametrize("pair", DIFFERENT, ids=range(len(DIFFERENT)))
def test_everything_equals_itself(pair: tuple[Any, Any, str]) -> None:
    for tree in pair[:2]:
        assert_trees_equal(tree, tree)
        assert_trees_equal({"a": [tree]}, {"a": [tree]})


def test_nans_are_equal_by_their_bits() -> None:
    assert_trees_equal({"a": float("nan")}, {"a": float("nan")})
    quiet = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    assert_trees_equal(quiet, quiet.copy())
    with pytest.raises(AssertionError, match="bytes 0100c07f"):
        assert_trees_equal(quiet[:1], quiet[1:])


def test_layout_and_byte_order_do_not_matter() -> None:
    array = np.arange(6.0).reshape(2, 3)
    for other in (np.asfortranarray(array), array.astype(">f8"), np.repeat(array, 2, 1)[:, ::2]):
        assert_trees_equal(array, other)
        assert_trees_equal(other, array)


def test_placement_is_ignored_on_request() -> None:
    placed = jax.device_put(jnp.ones(8), LINE)
    assert_trees_equal(placed, jnp.ones(8), placement=False)


def test_deep_trees_need_no_recursion() -> None:
    one: Any = 1
    other: Any = 1
    for _ in range(5000):
        one, other = [one], [other]
    assert_trees_equal(one, other)
