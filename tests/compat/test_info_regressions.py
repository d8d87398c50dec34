"""B17 and B18: what the calls that only look at a tree say of it, and where the peers fail."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from eformer.pytree import _serialization as eformer

from cordwood import msgpack, register_serialization_state


class Held:
    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state


register_serialization_state(Held, lambda held: held.state, lambda held, state: Held(state))


def test_b17_info_of_scalars() -> None:
    tree = {"step": 3, "lr": 0.5, "name": "ab", "w": jnp.ones((2, 3)), "n": None, "c": 1j}
    with pytest.raises(AttributeError):
        eformer.get_serialization_info(tree)
    info = msgpack.get_serialization_info(tree)
    structure = info.pop("tree_structure")
    assert structure == str(jax.tree.structure(tree))
    assert info == {
        "num_leaves": 5,
        "total_elements": 10,
        "memory_bytes": 8 + 8 + 2 + 24 + 16,
        "is_serializable": True,
        "dtypes": ["float32"],
    }


def test_b18_validation_is_total_and_true() -> None:
    state = optax.adam(1e-3).init({"w": jnp.ones(2)})
    with pytest.raises(TypeError):
        eformer.validate_serializable(state)
    assert msgpack.validate_serializable(state) == (True, [])
    assert eformer.validate_serializable({1}) == (True, [])
    tree = {"ok": np.ones(1), "a": [{1}], "b": {"x": object(), "y": 2**70}, "k": Held({"z": {2}})}
    ok, problems = msgpack.validate_serializable(tree)
    assert not ok
    assert [problem.split(":")[0] for problem in problems] == ["a/0", "b/x", "b/y", "k/z"]


def test_b18_handlers_that_fail() -> None:
    class Broken:
        pass

    def fail(_: Any) -> Any:
        raise KeyError("nothing here")

    register_serialization_state(Broken, fail, lambda t, s: t)
    ok, problems = msgpack.validate_serializable({"a": Broken()})
    assert not ok
    assert "KeyError: 'nothing here'" in problems[0]
