"""A module of Flax NNX: its state is split off, saved and merged again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
from flax import nnx


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    _, state = nnx.split(model)
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(directory / "state", state)
    checkpointer.wait_until_finished()

    abstract = nnx.eval_shape(lambda: nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    graph, abstract_state = nnx.split(abstract)
    restored = checkpointer.restore(directory / "state", abstract_state)
    merged = nnx.merge(graph, restored)
    inputs = jax.numpy.ones((1, 3))

    checkpointer.save(directory / "pure", nnx.to_pure_dict(state))
    checkpointer.wait_until_finished()
    pure = checkpointer.restore(directory / "pure", nnx.to_pure_dict(abstract_state))
    return {
        "kernel": restored["kernel"][...],
        "same output": bool((merged(inputs) == model(inputs)).all()),
        "pure": pure,
        "free": checkpointer.restore(directory / "pure"),
    }
