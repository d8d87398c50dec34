"""Mistakes of targets: classes of errors that a script would catch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from tests.compat.orbax.observe import error_of


def run(ocp: Any, directory: Path) -> dict[str, Any]:
    tree = {"w": jnp.ones((2, 3)), "b": jnp.ones(2)}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(directory / "tree", tree)
    with ocp.StandardCheckpointer() as checkpointer:

        def restore(**target: Any) -> Any:
            return checkpointer.restore(directory / "tree", target)

        shape = jax.ShapeDtypeStruct
        b = shape((2,), jnp.float32)
        return {
            "other shape": error_of(lambda: restore(w=shape((3, 3), jnp.float32), b=b)),
            "fewer leaves": error_of(lambda: restore(b=b)),
            "more leaves": error_of(
                lambda: restore(w=shape((2, 3), jnp.float32), b=b, c=shape((2,), jnp.float32))
            ),
            "no checkpoint": error_of(lambda: checkpointer.restore(directory / "nothing", tree)),
            "other dtype": checkpointer.restore(
                directory / "tree", {"w": shape((2, 3), jnp.bfloat16), "b": b}
            ),
        }
