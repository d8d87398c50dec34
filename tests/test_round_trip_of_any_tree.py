"""Any tree that a format can hold comes back from it exactly."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cordwood
from cordwood.keypath import KeyPath, format_path, parse_path
from cordwood.testing import assert_trees_equal
from cordwood.testing import strategies as some

CARRIERS: list[tuple[str, some.Carrier]] = [
    (".safetensors", "safetensors"),
    (".msgpack", "msgpack"),
    (".msgpack.gz", "msgpack"),
    (".msgpack.zst", "msgpack"),
    ("", "safetensors"),  # a directory of packs
]
PLAIN_LEAF_KINDS = [kind for kind in some.LEAF_KINDS if kind != "jax"]
TREES = {carrier: some.trees(carrier) for _, carrier in CARRIERS}
each_suffix = pytest.mark.parametrize(("suffix", "carrier"), CARRIERS)


def stored(tree: Any, suffix: str, **options: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"tree{suffix}"
        cordwood.save(path, tree)
        cordwood.verify(path)
        return cordwood.load(path, **options)


@each_suffix
@given(data=st.data())
@settings(max_examples=150)
def test_any_tree_comes_back_with_like(
    suffix: str, carrier: some.Carrier, data: st.DataObject
) -> None:
    tree = data.draw(TREES[carrier])
    if tree is None:  # a `like` of None is no `like`
        return
    assert_trees_equal(stored(tree, suffix, like=tree), tree)


@each_suffix
@given(data=st.data())
@settings(max_examples=50)
def test_any_tree_comes_back_mapped(
    suffix: str, carrier: some.Carrier, data: st.DataObject
) -> None:
    tree = {"root": data.draw(TREES[carrier])}
    assert_trees_equal(stored(tree, suffix, like=tree, mmap=True, verify=True), tree)


@pytest.mark.parametrize("suffix", [".safetensors", ""])
@given(
    tree=some.trees(
        leaf=some.leaves(kinds=PLAIN_LEAF_KINDS) | some.jax_arrays(committed=False),
        containers=("dict", "list", "tuple", "none"),
    )
)
@settings(max_examples=150)
def test_plain_containers_without_like(suffix: str, tree: Any) -> None:
    assert_trees_equal(stored(tree, suffix), tree)


@pytest.mark.parametrize("suffix", [".msgpack", ".msgpack.gz", ".msgpack.zst"])
@given(
    tree=some.trees(
        "msgpack",
        leaf=some.leaves(
            "msgpack", kinds=[kind for kind in PLAIN_LEAF_KINDS if kind != "prng_key"]
        ),
        keys=some.dict_keys("msgpack").filter(lambda key: isinstance(key, str)),
        containers=("dict", "none"),
    )
)
@settings(max_examples=100)
def test_string_dicts_without_like(suffix: str, tree: Any) -> None:
    assert_trees_equal(stored(tree, suffix), tree)


@pytest.mark.parametrize("name", some.DTYPE_NAMES)
@given(data=st.data())
@settings(max_examples=10)
def test_arrays_and_scalars_of_every_dtype_come_back(name: str, data: st.DataObject) -> None:
    tree = {
        "array": data.draw(some.numpy_arrays(names=[name])),
        "scalar": data.draw(some.numpy_scalars(names=[name])),
    }
    for suffix in (".safetensors", ".msgpack"):
        assert_trees_equal(stored(tree, suffix), tree)


@pytest.mark.parametrize("name", some.JAX_DTYPE_NAMES)
@given(data=st.data())
@settings(max_examples=5)
def test_every_dtype_of_jax(name: str, data: st.DataObject) -> None:
    tree = {"array": data.draw(some.jax_arrays(names=[name]))}
    for suffix in (".safetensors", ".msgpack"):
        assert_trees_equal(stored(tree, suffix, like=tree), tree)


@given(some.key_paths())
def test_a_printed_key_path_is_parsed_back(path: KeyPath) -> None:
    assert parse_path(format_path(path)) == path
