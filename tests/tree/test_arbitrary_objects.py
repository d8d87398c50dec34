"""Checks and totals of a tree accept any object, and name the paths of problems."""

from __future__ import annotations

import array
import ctypes
import datetime
import decimal
import enum
import functools
import io
import itertools
import threading
import types
import weakref
from collections import Counter, UserDict, deque
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cordwood import msgpack, register_serialization_state
from tests.children import run_python

ANY_ERROR: Any = Exception  # some objects raise their own


def fail(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise RuntimeError("do not look at me")


class Fields(tuple):
    """No named tuple, though it looks like one."""

    _fields: ClassVar[Any] = ("a", "b", "c")


class NoFields(tuple):
    __slots__ = ()
    _fields: Any = property(fail)


class Shaped:
    def __init__(self, shape: Any, dtype: Any = "float32", nbytes: Any = None) -> None:
        self.shape, self.dtype, self.nbytes = shape, dtype, nbytes


class Colour(enum.Enum):
    RED = 1


def odd(bases: tuple[type, ...] = (), **members: Any) -> Callable[..., Any]:
    made: Callable[..., Any] = type("Odd", bases, members)
    return made


NoRepr = odd(__repr__=fail)


def node(children: Any, aux: Any = None) -> Any:
    """Return an object of a class that is registered with jax and flattens into `children`."""
    kind = type("Node", (), {})
    flatten = children if callable(children) else lambda _: (children, aux)
    jax.tree_util.register_pytree_node(kind, flatten, lambda *_: kind())
    return kind()


def handled(state: Any) -> Any:
    """Return an object of a class whose handler returns `state`."""
    kind = type("Handled", (), {})
    to_state = state if callable(state) else lambda _: state
    register_serialization_state(kind, to_state, lambda target, _: target)
    return kind()


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    tree: Any = 1
    for _ in range(depth):
        tree = wrap(tree)
    return tree


def holding_itself(times: int) -> Any:
    tree: list[Any] = []
    tree += [tree] * times
    return tree


def dict_holding_itself() -> Any:
    tree: dict[str, Any] = {"x": 1}
    tree["self"] = ([tree],)
    return tree


def holding_itself_as_a_value() -> dict[str, Any]:
    tree: dict[str, Any] = {}
    tree["self"] = tree
    return tree


def generator() -> Iterator[int]:
    yield 1


def deleted() -> jax.Array:
    made = jnp.ones(3)
    made.delete()
    return made


REFUSED: dict[str, Any] = {
    "equal raises": odd(__eq__=fail, __hash__=object.__hash__)(),
    "hash raises": odd(__hash__=fail)(),
    "repr raises": NoRepr(),
    "array raises": odd(__array__=fail)(),
    "attributes raise": odd(__getattr__=fail)(),
    "every attribute raises": odd(__getattribute__=fail)(),
    "class raises": odd(__class__=property(fail))(),
    "shape raises": odd(shape=property(fail), dtype=property(fail), nbytes=property(fail))(),
    "shape of text": Shaped("abc"),
    "shape of None": Shaped((None, 2)),
    "shape of a number": Shaped(7),
    "dtype without repr": Shaped((2,), NoRepr()),
    "class of a failing metaclass": type("Meta", (type,), {"__repr__": fail})("Odd", (), {}),
    "fields that are not there": Fields((1, 2)),
    "fields that raise": NoFields((1,)),
    "str that fails": odd((str,), encode=fail)("x"),
    "int that fails": odd((int,), __index__=fail, bit_length=fail)(5),
    "dict that fails": odd((dict,), items=fail, __iter__=fail)(a=1),
    "list that fails": odd((list,), __len__=fail, __iter__=fail)([1]),
    "array that fails": np.zeros(2).view(odd((np.ndarray,), shape=property(fail))),
    "key without str": {odd(__str__=fail)(): 1},
    "key without repr": {NoRepr(): 1},
    "key of 5000 digits": {10**5000: 1},
    "keys that collide": {True: 1, "True": 2},
    "int of 5000 digits": -(10**5000),
    "lone surrogate": "\ud800",
    "key with a lone surrogate": {"\ud800": 1},
    "set": {1},
    "frozenset": frozenset([1]),
    "enum": Colour.RED,
    "generator": generator(),
    "iterator": itertools.count(),
    "lambda": lambda: 1,
    "partial": functools.partial(max, 1),
    "method": [].append,
    "module": np,
    "class": object,
    "type": type,
    "ellipsis": ...,
    "NotImplemented": NotImplemented,
    "slice": slice(1),
    "range": range(3),
    "lock": threading.Lock(),
    "thread-local": threading.local(),
    "weakref": weakref.ref(generator),
    "weak proxy": weakref.proxy(odd(__slots__=("__weakref__",))),
    "file": io.BytesIO(b"x"),
    "error": ValueError("x"),
    "C array": (ctypes.c_int * 3)(),
    "array of the array module": array.array("d", [1.0]),
    "decimal": decimal.Decimal(1),
    "date": datetime.date(2020, 1, 1),
    "deque": deque([1]),
    "Counter": Counter("ab"),
    "UserDict": UserDict(a=1),
    "mapping proxy": types.MappingProxyType({"a": 1}),
    "namespace": types.SimpleNamespace(a=1),
    "str array": np.array(["ab"]),
    "object array": np.array([object(), None]),
    "void": np.zeros(2, "V3"),
    "void scalar": np.zeros(1, "V3")[0],
    "structure": np.zeros(2, [("a", "i4"), ("b", "f4")]),
    "masked array": np.ma.masked_array([1, 2], [True, False]),
    "array of variable strings": np.array(["a"], np.dtypes.StringDType()),
    "float0": np.zeros(2, jax.dtypes.float0),
    "dtype": np.dtype("f4"),
    "ufunc": np.add,
    "random generator": np.random.default_rng(0),
    "typed PRNG key": jax.random.key(0),
    "deleted array": deleted(),
    "ShapeDtypeStruct": jax.ShapeDtypeStruct((2,), "float32"),
    "treedef": jax.tree.structure([1]),
    "jitted function": jax.jit(lambda x: x),
    "device": jax.devices()[0],
    "mesh": jax.make_mesh((8,), ("x",)),
    "sharding": jax.sharding.PartitionSpec("x"),
    "node that fails": node(fail),
    "node of no sequence": node(5),
    "handler that fails": handled(fail),
    "handler that returns a tuple": handled((1, 2)),
    "handler whose error cannot be printed": handled(
        lambda _: (_ for _ in ()).throw(odd((Exception,), __str__=fail)())
    ),
    "handler of other keys": handled({1: 2}),
    "handler whose dict holds itself": handled(holding_itself_as_a_value()),
}
STORED: dict[str, Any] = {
    "None": None,
    "NaN": float("nan"),
    "empty": {},
    "empty key": {"": 1},
    "None as a key": {None: 1},
    "NaN as a key": {float("nan"): 1},
    "tuple as a key": {(1, (2,)): 1},
    "object as a key": {object(): 1},
    "keys that cannot be compared": {1: 1, "a": 2},
    "a node with aux that cannot be printed": node((1,), NoRepr()),
    "view of bytes": memoryview(b"abc"),
    "big array of one number": np.broadcast_to(np.zeros(()), (2**30,)),
    "zero-dimensional": np.array(5),
    "time": np.datetime64("NaT", "s"),
    "int4": jnp.zeros(2, "int4"),
    "depth 990": nested(990, lambda tree: [tree]),
}
TOO_DEEP: dict[str, Any] = {
    "1001 lists": nested(1001, lambda tree: [tree]),
    "100,000 tuples": nested(100_000, lambda tree: (tree,)),
    "100,000 dicts": nested(100_000, lambda tree: {"a": tree}),
    "holds itself": holding_itself(1),
    "holds itself three times": holding_itself(3),
    "dict that holds itself": dict_holding_itself(),
    "node that is its own child": node(lambda self: ((self,), None)),
    "node that is its own children": node(lambda self: ((self,) * 3, None)),
}


def looked_at(tree: Any) -> tuple[bool, list[str]]:
    """Return the verdict on a tree, after checks of its types and consistency."""
    ok, problems = msgpack.validate_serializable(tree)
    assert ok is (not problems)
    assert all(type(problem) is str for problem in problems)
    info = msgpack.get_serialization_info(tree)
    assert info.keys() == msgpack.get_serialization_info({}).keys()
    assert info["is_serializable"] is ok
    assert all(type(info[name]) is int for name in ("num_leaves", "total_elements", "memory_bytes"))
    assert type(info["tree_structure"]) is str
    assert all(type(dtype) is str for dtype in info["dtypes"])
    return ok, problems


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stored_is_named(name: str) -> None:
    leaf = REFUSED[name]
    ok, problems = looked_at(leaf)
    assert not ok
    assert problems[0].startswith("the tree itself: " if "key" not in name.split()[0] else "")
    tree = {"before": {1}, "a": [1, leaf, {"b": leaf}], "after": np.ones(2)}
    ok, problems = looked_at(tree)
    assert not ok
    for place in ("before: ", "a/1", "a/2/b"):
        assert any(problem.startswith(place) for problem in problems), (place, problems)
    assert not any(problem.startswith(("a/0", "after")) for problem in problems)
    with pytest.raises(ANY_ERROR):
        msgpack.to_bytes({"a": [1, leaf]})


@pytest.mark.parametrize("name", STORED)
def test_what_can_be_stored_is_known(name: str) -> None:
    for tree in (STORED[name], {"a": [1, STORED[name]]}):
        assert looked_at(tree) == (True, [])
        if not isinstance(STORED[name], np.ndarray) or STORED[name].nbytes < 1 << 20:
            assert msgpack.to_bytes(tree)


@pytest.mark.parametrize("name", TOO_DEEP)
def test_trees_without_an_end_have_one_problem(name: str) -> None:
    ok, (problem,) = looked_at({"a": [TOO_DEEP[name]]})
    assert not ok
    assert problem.startswith("the tree nests deeper than 1000 containers (at a/0/")
    with pytest.raises(ValueError, match="nests deeper than 1000 containers"):
        msgpack.to_bytes(TOO_DEEP[name])


def test_all_problems_at_once() -> None:
    tree = {"a": REFUSED["handler that fails"], "b": {1: 1, "1": 2}, "c": [NoRepr(), {2}]}
    ok, problems = looked_at(tree)
    assert not ok
    assert sorted(problem.split(":")[0] for problem in problems) == ["a", "b", "c/0", "c/1"]
    assert any(problem.endswith("RuntimeError: do not look at me") for problem in problems)


def test_errors_of_handlers_and_keys_carry_the_place() -> None:
    for tree in (REFUSED["handler that fails"], {1: 1, "1": 2}):
        with pytest.raises((RuntimeError, ValueError)) as caught:
            msgpack.to_bytes({"a": [tree]})
        assert caught.value.__notes__ == ["It happened at a/0."]


def test_the_info_of_a_tree_imports_no_jax() -> None:
    run_python(
        """
        import sys
        import numpy as np
        from cordwood.msgpack import get_serialization_info

        tree = {"w": np.ones((2, 3)), 5: [1, None], frozenset(): "ab"}
        info = get_serialization_info(tree)
        assert info["num_leaves"] == 3, info
        assert info["total_elements"] == 8, info
        assert info["memory_bytes"] == 48 + 8 + 2, info
        del tree[frozenset()]
        assert get_serialization_info(tree)["tree_structure"] == "w, (5)/0", info
        cycle = []
        cycle += [cycle, cycle]
        assert get_serialization_info(cycle)["num_leaves"] == 0
        assert "jax" not in sys.modules
        """
    )
