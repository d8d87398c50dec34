"""Files of arrays: of numpy, safetensors and equinox."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tests.foreign_files.case import Case

ARRAYS: dict[str, Any] = {
    "params/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "params/bias": np.arange(3, dtype=np.float16),
    "step": np.array(7),
    "none": np.zeros((0, 2), np.complex64),
    "mask": np.array([True, False]),
}


def native(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder("="))


def write_npz(path: Path, save: Any) -> Any:
    save(path, **ARRAYS)
    with np.load(path) as members:
        return dict(members)


def write_npz_of_positions(path: Path) -> Any:
    np.savez(path, np.ones(2), np.zeros(3, ">i4"))
    with np.load(path) as members:
        return {
            name: array.astype(array.dtype.newbyteorder("=")) for name, array in members.items()
        }


def write_npz_of_jax_paths(path: Path) -> Any:
    import jax

    tree = {"params": {"w": np.ones(2)}, "steps": [np.array(1), np.array(2)]}
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    named: dict[str, Any] = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    np.savez(path, **named)
    return named


def write_npz_with_text(path: Path) -> Any:
    names = np.array(["a", "bc"])
    np.savez(path, w=np.ones(2), names=names, objects=np.array([{}], object))
    return {"w": np.ones(2)}


def write_npz_by_jax(path: Path) -> Any:
    import jax.numpy as jnp

    jnp.savez(path, w=jnp.arange(3, dtype=jnp.bfloat16), b=jnp.ones(2))
    return {"w": np.arange(3).astype(ml_dtypes.bfloat16), "b": np.ones(2, np.float32)}


def write_npy(path: Path, array: np.ndarray) -> Any:
    np.save(path, array)
    return native(array)


def write_safetensors_by_numpy(path: Path) -> Any:
    import safetensors.numpy

    named = {name.replace("/", "."): array for name, array in ARRAYS.items()}
    named.pop("none")
    safetensors.numpy.save_file(named, path, metadata={"format": "np"})
    return safetensors.numpy.load_file(path)


def write_safetensors_by_flax(path: Path) -> Any:
    import jax.numpy as jnp
    import safetensors.flax

    safetensors.flax.save_file({"w": jnp.arange(4, dtype=jnp.bfloat16), "b": jnp.ones(2)}, path)
    return safetensors.flax.load_file(path)


def write_eqx(path: Path, *, line: bytes = b"") -> Any:
    import equinox
    import jax

    model = equinox.nn.MLP(2, 3, 4, 1, key=jax.random.key(0))
    with path.open("wb") as file:
        file.write(line)
        equinox.tree_serialise_leaves(file, model)
    leaves = [leaf for leaf in jax.tree.leaves(model) if equinox.is_array(leaf)]
    return {str(i): leaf for i, leaf in enumerate(leaves)}


def write_eqx_with_text(path: Path) -> Any:
    import equinox

    equinox.tree_serialise_leaves(path, [np.ones(2), np.array(["a", "bc"]), np.zeros(3)])
    return {"0": np.ones(2), "2": np.zeros(3)}


def write_hub_directory(path: Path) -> Any:
    """Write what `transformers.save_pretrained` leaves: shards, their index and a configuration."""
    import safetensors.numpy

    path.mkdir()
    shards = {
        "model-00001-of-00002.safetensors": {"embed.weight": np.ones((2, 3), np.float32)},
        "model-00002-of-00002.safetensors": {"lm_head.weight": np.zeros((3, 2), np.float32)},
    }
    weight_map: dict[str, str] = {}
    for name, tensors in shards.items():
        safetensors.numpy.save_file(tensors, path / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
    index = {"metadata": {"total_size": 48}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return {name: tensor for tensors in shards.values() for name, tensor in tensors.items()}


def write_hub_cache(path: Path) -> Any:
    """Write a snapshot as huggingface_hub keeps it: links to blobs."""
    import safetensors.numpy

    (path / "blobs").mkdir(parents=True)
    snapshot = path / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (path / "refs").mkdir()
    (path / "refs/main").write_text("0" * 40)
    safetensors.numpy.save_file({"w": np.ones(2)}, path / "blobs/abc")
    (snapshot / "model.safetensors").symlink_to("../../blobs/abc")
    return None


def write_cut_download(path: Path) -> Any:
    import safetensors.numpy

    data = safetensors.numpy.save({"w": np.ones(1000)})
    path.write_bytes(data[: len(data) // 2])


def write_shards_with_a_pointer(path: Path) -> Any:
    write_hub_directory(path)
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12\n"
    (path / "model-00002-of-00002.safetensors").write_text(pointer)


def saved(array: np.ndarray) -> bytes:
    data = io.BytesIO()
    np.save(data, array)
    return data.getvalue()


def write_cut_npz(path: Path) -> Any:
    np.savez(path, w=np.ones(1000))
    path.write_bytes(path.read_bytes()[:4000])


CASES: list[Case] = [
    Case("numpy", "np.savez", "x.npz", partial(write_npz, save=np.savez)),
    Case(
        "numpy",
        "np.savez_compressed",
        "deflated.npz",
        partial(write_npz, save=np.savez_compressed),
    ),
    Case("numpy", "np.savez without names", "positions.npz", write_npz_of_positions),
    Case(
        "numpy", "np.savez with names of jax.tree_util.keystr", "paths.npz", write_npz_of_jax_paths
    ),
    Case(
        "numpy",
        "np.savez with text and objects beside numbers",
        "text.npz",
        write_npz_with_text,
        unreadable=("names", "objects"),
    ),
    Case("jax", "jax.numpy.savez with bfloat16", "jax.npz", write_npz_by_jax),
    Case("numpy", "np.save", "x.npy", partial(write_npy, array=np.arange(6.0).reshape(2, 3))),
    Case(
        "numpy",
        "np.save, Fortran order, big-endian",
        "fortran.npy",
        partial(write_npy, array=np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3))),
    ),
    Case(
        "numpy",
        "np.save of times",
        "times.npy",
        partial(write_npy, array=np.array(["2024-02-29"], "M8[D]")),
    ),
    Case(
        "numpy",
        "a .npz that is cut short",
        "cut.npz",
        write_cut_npz,
        refused=("a zip archive that is cut short: download or copy it again",),
    ),
    Case(
        "numpy",
        "np.save of text",
        "text.npy",
        lambda path: np.save(path, np.array(["a", "bc"])),
        refused=("an array of text (dtype <U2) cannot be read", "numpy.load it, and save numbers"),
    ),
    Case(
        "numpy",
        "np.save of float8",
        "float8.npy",
        lambda path: np.save(path, np.ones(2, ml_dtypes.float8_e4m3fn)),
        refused=("does not say what the elements are", "save them in a format that does"),
    ),
    Case("safetensors", "safetensors.numpy", "numpy.safetensors", write_safetensors_by_numpy),
    Case("safetensors", "safetensors.flax", "flax.safetensors", write_safetensors_by_flax),
    Case(
        "safetensors",
        "a download that is cut short",
        "cut.safetensors",
        write_cut_download,
        refused=("it is cut short: download or copy it again",),
    ),
    Case("transformers", "shards and their index", "hub", write_hub_directory),
    Case(
        "transformers",
        "shards of which one is a Git LFS pointer",
        "pointers",
        write_shards_with_a_pointer,
        refused=("model-00002-of-00002.safetensors", "a Git LFS pointer", "run `git lfs pull`"),
    ),
    Case(
        "huggingface_hub",
        "the directory of a model in the cache",
        "models--org--name",
        write_hub_cache,
        refused=(
            "in the cache of huggingface_hub: load",
            f"models--org--name/snapshots/{'0' * 40}",
        ),
    ),
    Case("equinox", "tree_serialise_leaves", "model.eqx", write_eqx),
    Case(
        "equinox",
        "tree_serialise_leaves after a line of JSON",
        "json.eqx",
        partial(write_eqx, line=b'{"width": 4}\n'),
    ),
    Case(
        "equinox",
        "tree_serialise_leaves with an array of text",
        "text.eqx",
        write_eqx_with_text,
        unreadable=("1",),
    ),
]
