"""The strategies generate every kind of value that they promise."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from cordwood import dtypes
from cordwood.keypath import DictKey, KeyPath, format_path, is_dict_key
from cordwood.testing import strategies as some
from cordwood.testing.strategies import elements
from cordwood.tree.flatten import flatten
from cordwood.tree.leaves import describe_leaf


@pytest.mark.parametrize("name", some.DTYPE_NAMES)
def test_elements_are_random_by_seed_and_without_padding(name: str) -> None:
    zeros = elements(name, (2, 3), 0)
    assert dtypes.name_of(zeros.dtype) == name
    assert not any(zeros.tobytes())
    one, same, other = (elements(name, (50,), seed) for seed in (1, 1, 2))
    assert one.shape == (50,)
    assert one.astype(one.dtype).tobytes() == one.tobytes() or "128" in name or "256" in name
    if name not in ("float128", "complex256"):  # their padding is anything
        assert one.tobytes() == same.tobytes()
        assert one.tobytes() != other.tobytes()
    assert elements(name, (), 3).shape == ()
    assert elements(name, (0, 3), 3).shape == (0, 3)


@pytest.mark.parametrize("name", ["int4", "uint2", "float6_e2m3fn"])
def test_narrow_elements_have_no_stray_bits(name: str) -> None:
    raw = elements(name, (1000,), 5).view(np.uint8)
    assert len(set(raw.tolist())) == {"int4": 16, "uint2": 4, "float6_e2m3fn": 64}[name]


@pytest.mark.parametrize(
    "condition",
    [
        lambda a: a.dtype.byteorder == ">",
        lambda a: not a.flags.writeable,
        lambda a: a.flags.f_contiguous and not a.flags.c_contiguous,
        lambda a: a.ndim and a.strides[0] < 0,
        lambda a: a.ndim and a.shape[0] > 1 and a.strides[0] == 0,
        lambda a: a.shape == (),
        lambda a: a.shape == (0, 3),
        lambda a: a.dtype.kind == "M",
    ],
    ids=["big-endian", "read-only", "fortran", "reversed", "broadcast", "0-d", "empty", "time"],
)
def test_numpy_arrays_come_in_every_form(condition: Any) -> None:
    find(some.numpy_arrays(), condition, settings=settings(max_examples=5000, database=None))


@pytest.mark.parametrize(
    "condition",
    [
        lambda a: a.weak_type,
        lambda a: a.committed,
        lambda a: not a.committed and a.dtype == "int1",
        lambda a: a.dtype == "bfloat16",
    ],
    ids=["weak", "committed", "int1", "bfloat16"],
)
def test_jax_arrays_come_in_every_form(condition: Any) -> None:
    find(some.jax_arrays(), condition, settings=settings(max_examples=5000, database=None))


def test_every_kind_of_leaf_and_container_occurs() -> None:
    seen: Counter[str] = Counter()

    @given(some.trees())
    @settings(max_examples=400, database=None, derandomize=True)
    def look(tree: Any) -> None:
        flat = flatten(tree)
        seen.update(node.kind for node in flat.structure)
        seen.update(node.type_name for node in flat.structure)
        for path, leaf in zip(flat.paths, flat.leaves, strict=True):
            seen.update([describe_leaf(path, leaf).kind])

    look()
    kinds = {"dict", "list", "tuple", "none", "namedtuple", "OrderedDict", "defaultdict"}
    assert kinds | set(some.LEAF_KINDS) <= set(seen)


@given(data=st.data())
def test_containers_are_those_asked_for(data: st.DataObject) -> None:
    only_dicts: list[some.ContainerName] = ["dict"]
    tree = data.draw(some.trees(leaf=st.integers(), keys=st.just("k"), containers=only_dicts))
    flat = flatten(tree)
    assert {node.kind for node in flat.structure} <= {"dict", "leaf"}
    assert {key for path in flat.paths for key in path} <= {"k"}


@given(some.trees("msgpack"))
def test_trees_for_msgpack_have_what_msgpack_stores(tree: Any) -> None:
    flat = flatten(tree)
    for path, leaf in zip(flat.paths, flat.leaves, strict=True):
        format_path(path).encode()
        if isinstance(leaf, str):
            leaf.encode()
        if type(leaf) is int:
            assert -(2**63) <= leaf < 2**64
        if isinstance(leaf, jax.Array):
            assert not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # type: ignore[attr-defined]
    for node in flat.structure:
        names = [str(key.value) if isinstance(key, DictKey) else key for key in node.keys]
        assert len(set(names)) == len(names)


@given(some.dict_keys())
def test_drawn_keys_are_keys_of_dicts(key: Any) -> None:
    assert type(key) is str or is_dict_key(key)


def test_key_paths_hold_every_kind_of_key() -> None:
    for kind in (str, int, DictKey):

        def has_one(path: KeyPath, kind: type = kind) -> bool:
            return any(type(key) is kind for key in path)

        assert len(find(some.key_paths(), has_one)) == 1
