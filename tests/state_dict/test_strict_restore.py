"""Strict restores: one message lists every difference."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cordwood.errors import MismatchError
from cordwood.state_dict import (
    from_state_dict,
    register_serialization_state,
    to_state_dict,
)


class Pair(NamedTuple):
    first: Any
    second: Any


def differences(target: Any, state: Any) -> list[str]:
    with pytest.raises(MismatchError) as caught:
        from_state_dict(target, state, strict=True)
    header, *lines = str(caught.value).splitlines()
    count = "1 entry" if len(lines) == 1 else f"{len(lines)} entries"
    verb = "does" if len(lines) == 1 else "do"
    assert header == f"{count} of the state dict {verb} not fit `target`:"
    assert all(line.startswith("  ") for line in lines)
    return [line[2:] for line in lines]


F32 = np.zeros((4, 8), np.float32)
ONE = np.float32(1)
INT8 = jax.ShapeDtypeStruct((2,), jnp.int8)


@pytest.mark.parametrize(
    ("target", "state", "line"),
    [
        (F32, np.zeros((4, 9), np.float32), "a: expected float32[4,8], found float32[4,9]"),
        (
            F32,
            jnp.zeros((4, 8), jnp.bfloat16),
            "a: expected float32[4,8], found bfloat16[4,8] (.astype('float32') converts)",
        ),
        (F32, 1.0, "a: expected float32[4,8], found a float"),
        (F32, {"0": 1}, "a: expected float32[4,8], found a dict of 1 entry"),
        (F32, None, "a: expected float32[4,8], found None"),
        (ONE, F32[0, :1], "a: expected a numpy float32 scalar, found float32[1]"),
        (ONE, np.int8(1), "a: expected a numpy float32 scalar, found a numpy int8 scalar"),
        (1, True, "a: expected an int, found a bool"),
        (1.0, 1, "a: expected a float, found an int"),
        (0, np.zeros((), np.int32), "a: expected an int, found int32[]"),
        ("x", b"x", "a: expected a str, found a bytes"),
        (None, 0, "a: expected None, found an int"),
        ([1, 2], F32, "a: expected a list of 2 entries, found float32[4,8]"),
        ((1,), [1], "a: expected a tuple of 1 entry, found a list of 1 entry"),
        ({"k": 1}, None, "a: expected a dict of 1 entry, found None"),
        (OrderedDict(k=1), 3, "a: expected an OrderedDict of 1 entry, found an int"),
        (Pair(1, 2), 3, "a: expected a named tuple of 2 entries, found an int"),
        ({"k": 1}, {"k": 1, "l": 2}, "a/l: not in the target"),
        ({"k": 1}, {"k": 1, 2: 2}, "a/(2): not in the target; its key is of type int, not str"),
        ({"k": 1, "l": 2}, {"k": 1}, "a/l: not in the state dict"),
        ([1, [2]], {"0": 1}, "a/1: not in the state dict"),
        ([1], {"0": 1, "1": 2}, "a/'1': not in the target"),
        ({3: 1}, {}, "a/(3): not in the state dict"),
        ({"x/y": 1}, {"x/y": "z"}, "a/x%2Fy: expected an int, found a str"),
        (INT8, np.zeros(3, np.int8), "a: expected int8[2], found int8[3]"),
        (jax.random.key(0), np.zeros(2, np.uint32), "a: expected key<fry>[], found uint32[2]"),
    ],
)  # fmt: skip
def test_each_difference_has_its_line(target: Any, state: Any, line: str) -> None:
    assert differences({"a": target}, {"a": state}) == [line]


@pytest.mark.parametrize(
    ("target", "state"),
    [
        (F32, jnp.ones((4, 8))),
        (jnp.ones((4, 8)), F32),
        (jax.ShapeDtypeStruct((4, 8), jnp.float32), F32),
        (np.zeros(3, ">f4"), np.zeros(3, "<f4")),
        (np.int8(1), np.int8(5)),
        (1, 2),
        (b"", memoryview(b"x")),
        (None, None),
        ("a", "b"),
        ([], {}),
    ],
)
def test_state_that_fits_is_restored_as_without_strict(target: Any, state: Any) -> None:
    lenient = from_state_dict({"a": target}, {"a": state})
    strict = from_state_dict({"a": target}, {"a": state}, strict=True)
    assert type(strict["a"]) is type(lenient["a"])
    if type(target) is not list:
        assert strict["a"] is state


def test_every_difference_at_once() -> None:
    target = {
        "params": {"dense": {"kernel": F32, "bias": np.zeros(8)}, "old": [1, 2]},
        "step": 0,
        "pair": Pair(np.zeros(1), None),
    }
    state = {
        "step": 1.5,
        "params": {"dense": {"bais": np.zeros(8), "kernel": F32[:2]}, "old": F32},
        "pair": {"first": np.zeros(1), "second": None},
        "rng": 3,
    }
    assert differences(target, state) == [
        "rng: not in the target",
        "params/dense/bais: not in the target",
        "params/dense/kernel: expected float32[4,8], found float32[2,8]",
        "params/dense/bias: not in the state dict; did you mean bais?",
        "params/old: expected a list of 2 entries, found float32[4,8]",
        "step: expected an int, found a float",
    ]


def test_a_difference_at_the_root_is_named() -> None:
    assert differences([1], 5) == ["(root): expected a list of 1 entry, found an int"]
    assert differences(F32, F32[0]) == ["(root): expected float32[4,8], found float32[8]"]


def test_the_default_is_lenient() -> None:
    restored = from_state_dict({"a": F32, "b": 1}, {"a": "text", "b": {"x": 1}, "c": 3})
    assert restored == {"a": "text", "b": {"x": 1}}


def test_static_fields_of_a_struct_are_no_leaves() -> None:
    class Fields:
        w: Any
        name: str = flax.struct.field(pytree_node=False, default="")

    Struct: Any = flax.struct.dataclass(Fields)
    target = [Struct(w=F32, name="n")]
    state = to_state_dict(target)
    assert from_state_dict(target, state, strict=True)[0].name == "n"
    state["0"]["name"] = "m"
    state["0"]["w"] = F32[0]
    assert differences(target, state) == [
        "0/name: not in the target",
        "0/w: expected float32[4,8], found float32[8]",
    ]


def test_types_with_a_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cordwood.state_dict.handlers._handlers", {})

    class Own:
        def __init__(self, value: Any) -> None:
            self.value = value

    register_serialization_state(
        Own, lambda o: {"value": to_state_dict(o.value)}, lambda o, s: Own(s["value"])
    )
    target = {"o": Own([F32])}
    restored = from_state_dict(target, {"o": {"value": {"0": F32}}}, strict=True)
    assert restored["o"].value["0"] is F32
    assert differences(target, {"o": {"value": {"0": F32[0], "1": 2}}}) == [
        "o/value/'1': not in the target",
        "o/value/'0': expected float32[4,8], found float32[8]",
    ]
    assert differences(target, {"o": 3}) == ["o: expected a dict of 1 entry, found an int"]
