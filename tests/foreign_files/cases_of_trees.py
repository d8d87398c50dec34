"""Trees as Flax, Haiku, Optax, Orbax, eFormer and others store them."""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tests.foreign_files.case import Case

PARAMS: dict[str, Any] = {
    "dense": {
        "kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
        "bias": np.arange(3).astype(ml_dtypes.bfloat16),
    }
}


def write_flax_bytes(path: Path) -> Any:
    import flax.serialization

    path.write_bytes(flax.serialization.to_bytes(PARAMS))
    return flax.serialization.msgpack_restore(path.read_bytes())


def write_flax_train_state(path: Path) -> Any:
    import flax.serialization
    import jax.numpy as jnp
    import optax
    from flax.training.train_state import TrainState

    params = {"w": jnp.ones(2)}
    state = TrainState.create(apply_fn=lambda: None, params=params, tx=optax.adam(1e-3))
    path.write_bytes(flax.serialization.to_bytes(state))
    return flax.serialization.msgpack_restore(path.read_bytes())


def write_flax_chunks(path: Path) -> Any:
    """Write an array in chunks, as Flax does with arrays of more than 1 GiB."""
    from unittest import mock

    import flax.serialization

    with mock.patch.object(flax.serialization, "MAX_CHUNK_SIZE", 8):
        path.write_bytes(flax.serialization.msgpack_serialize(PARAMS))
        return flax.serialization.msgpack_restore(path.read_bytes())


def write_flax_gzip(path: Path) -> Any:
    import flax.serialization

    path.write_bytes(gzip.compress(flax.serialization.to_bytes(PARAMS)))
    return PARAMS


def write_flax_zstd(path: Path) -> Any:
    import flax.serialization
    import zstandard

    path.write_bytes(zstandard.compress(flax.serialization.to_bytes(PARAMS)))
    return PARAMS


def write_flax_checkpoint(path: Path) -> Any:
    """Write a step as `flax.training.checkpoints` does without Orbax."""
    from flax import config
    from flax.training import checkpoints

    with (
        warnings.catch_warnings(action="ignore"),
        config.temp_flip_flag("use_orbax_checkpointing", False),
    ):
        checkpoints.save_checkpoint(path.parent, PARAMS, step=3)
        return checkpoints.restore_checkpoint(path.parent, target=None)


def write_optax_state(path: Path) -> Any:
    import flax.serialization
    import jax.numpy as jnp
    import optax

    state = optax.chain(optax.clip(1.0), optax.adam(1e-3)).init({"w": jnp.ones(2)})
    path.write_bytes(flax.serialization.to_bytes(state))
    return flax.serialization.msgpack_restore(path.read_bytes())


def write_haiku_params(path: Path) -> Any:
    import flax.serialization
    import haiku
    import jax

    def model(x: Any) -> Any:
        return haiku.nets.MLP([4, 2])(x)

    params = haiku.transform(model).init(jax.random.key(0), np.ones((1, 3)))
    path.write_bytes(flax.serialization.msgpack_serialize(params))
    return flax.serialization.msgpack_restore(path.read_bytes())


def write_records(path: Path) -> Any:
    """Write a stream as EasyLM's StreamingCheckpointer does."""
    import flax.serialization
    import flax.traverse_util
    import msgpack

    flat = flax.traverse_util.flatten_dict(PARAMS)
    packer = msgpack.Packer()
    records = [packer.pack((key, flax.serialization.to_bytes(v))) for key, v in flat.items()]
    path.write_bytes(b"".join(records))
    return PARAMS


def write_msgpack(path: Path) -> Any:
    """Write msgpack that is not Flax's: lists and numbers, as other programs write them."""
    import msgpack

    path.write_bytes(msgpack.packb({"step": 3, "losses": [0.5, 0.25]}))
    return {"step": 3, "losses": [0.5, 0.25]}


def write_orbax(path: Path, **options: Any) -> Any:
    import orbax.checkpoint as ocp

    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)) as checkpointer:
        checkpointer.save(path, args=ocp.args.PyTreeSave(PARAMS))
        return checkpointer.restore(path)


def write_orbax_v1(path: Path) -> Any:
    from orbax.checkpoint import v1

    v1.save(path, PARAMS)
    return PARAMS


def write_eformer(path: Path) -> Any:
    """Write eFormer's directory of zarr arrays."""
    import jax.numpy as jnp
    from eformer.serialization import tree_serialize_leaves

    tree_serialize_leaves(path, {"a": {"w": jnp.arange(6.0)}, "b": jnp.ones((2, 2))})
    return {"a": {"w": np.arange(6, dtype=np.float32)}, "b": np.ones((2, 2), np.float32)}


def write_jax_arrays(path: Path) -> Any:
    """Write a tree of zarr arrays by jax's own serialization."""
    import jax.numpy as jnp
    from jax.experimental.array_serialization.serialization import GlobalAsyncCheckpointManager

    manager = GlobalAsyncCheckpointManager()
    arrays = [jnp.arange(6.0).reshape(2, 3), jnp.zeros(3, jnp.int32)]
    manager.serialize_with_paths(arrays, [f"{path}/model/kernel", f"{path}/step"])
    manager.wait_until_finished()
    return {"model": {"kernel": arrays[0]}, "step": arrays[1]}


CASES: list[Case] = [
    Case("flax", "flax.serialization.to_bytes", "params.msgpack", write_flax_bytes),
    Case("flax", "to_bytes of a TrainState", "state.msgpack", write_flax_train_state),
    Case("flax", "to_bytes of arrays in chunks", "chunks.msgpack", write_flax_chunks),
    Case("flax", "to_bytes under gzip", "params.msgpack.gz", write_flax_gzip),
    Case("flax", "to_bytes under zstd", "params.msgpack.zst", write_flax_zstd),
    Case("flax", "flax.training.checkpoints", "checkpoint_3", write_flax_checkpoint),
    Case("optax", "to_bytes of a state", "opt_state.msgpack", write_optax_state),
    Case("haiku", "msgpack_serialize of params", "haiku.msgpack", write_haiku_params),
    Case("EasyLM", "a stream of msgpack records", "streaming_params", write_records),
    Case("msgpack", "numbers and lists", "numbers.msgpack", write_msgpack),
    Case("orbax", "PyTreeCheckpointHandler, OCDBT", "ocdbt", write_orbax),
    Case(
        "orbax",
        "PyTreeCheckpointHandler, zarr 3 in files",
        "files",
        lambda path: write_orbax(path, use_ocdbt=False, use_zarr3=True),
    ),
    Case("orbax", "orbax.checkpoint.v1", "v1", write_orbax_v1),
    Case("eformer", "tree_serialize_leaves", "eformer", write_eformer),
    Case("jax", "GlobalAsyncCheckpointManager", "jax", write_jax_arrays),
]
