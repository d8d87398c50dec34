"""A Flax NNX model with dropout: parameters, the states of its random keys, and an optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(3, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.dropout(self.norm(self.linear(x)))


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    model(jnp.ones((2, 3)))
    _, state = nnx.split((model, optimizer))
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(directory / "state", state)
    checkpointer.wait_until_finished()

    def make() -> Any:
        new = Net(nnx.Rngs(1))
        return new, nnx.Optimizer(new, optax.adam(1e-2), wrt=nnx.Param)

    abstract = nnx.eval_shape(make)
    graphdef, abstract_state = nnx.split(abstract)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    target = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), abstract_state
    )
    restored, _ = nnx.merge(graphdef, checkpointer.restore(directory / "state", target))
    outputs = [model(jnp.ones((2, 3))), restored(jnp.ones((2, 3)))]

    pure = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    with ocp.CheckpointManager(directory / "pure") as manager:
        manager.save(5, args=ocp.args.StandardSave(pure))
        manager.wait_until_finished()
        plain = manager.restore(5, args=ocp.args.StandardRestore(pure))
    return {"outputs": outputs, "pure": plain}
