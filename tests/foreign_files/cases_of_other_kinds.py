"""Files of kinds that cordwood does not read, as their tools write them."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sqlite3
import tarfile
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.foreign_files.case import Case

KERNEL = np.arange(6, dtype=np.float32).reshape(2, 3)
TREE: dict[str, Any] = {"dense": {"kernel": KERNEL}, "step": np.int32(7)}


def write_pickle(path: Path, protocol: int) -> None:
    path.write_bytes(pickle.dumps(TREE, protocol=protocol))


def write_haiku_pickle(path: Path) -> None:
    """Write params as the examples of Haiku save them."""
    import haiku
    import jax

    def model(x: Any) -> Any:
        return haiku.nets.MLP([4, 2])(x)

    params = haiku.transform(model).init(jax.random.key(0), np.ones((1, 3)))
    path.write_bytes(pickle.dumps(params))


def write_flax_pickle(path: Path) -> None:
    from flax.core import freeze

    path.write_bytes(pickle.dumps(freeze(TREE)))


def write_optax_pickle(path: Path) -> None:
    import optax

    path.write_bytes(pickle.dumps(optax.adam(1e-3).init(TREE["dense"])))


def write_numpy_pickle(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.array([{"a": 1}, None], object), allow_pickle=True)


def write_gguf(path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", KERNEL)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_hdf5(path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file["dense/kernel"] = KERNEL


def write_tar(path: Path, mode: Any = "w") -> None:
    data = io.BytesIO()
    np.save(data, KERNEL)
    with tarfile.open(path, mode) as archive:
        info = tarfile.TarInfo("kernel.npy")
        info.size = data.tell()
        data.seek(0)
        archive.addfile(info, data)


def write_zip_of_safetensors(path: Path) -> None:
    import safetensors.numpy

    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.safetensors", safetensors.numpy.save(TREE["dense"]))


def write_sqlite(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("create table steps (step integer)")
    connection.commit()
    connection.close()


def write_git_lfs_pointer(path: Path) -> None:
    path.write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1234\n"
    )


def write_html(path: Path) -> None:
    path.write_text("<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>")


def write_xml(path: Path) -> None:
    code = "<Code>AccessDenied</Code>"
    path.write_text(f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{code}</Error>')


def write_shards_index(path: Path) -> None:
    index = {
        "metadata": {"total_size": 24},
        "weight_map": {"w": "model-00001-of-00002.safetensors"},
    }
    path.write_text(json.dumps(index, indent=2))


NEVER = "a Python pickle, which cordwood never loads: load it with the program that wrote it"

CASES = [
    *[
        Case(
            "pickle",
            f"a pickle of protocol {protocol}",
            f"params-{protocol}.pkl",
            partial(write_pickle, protocol=protocol),
            refused=(NEVER, "save the arrays with cordwood.save"),
        )
        for protocol in range(6)
    ],
    Case("haiku", "pickled params", "params.pkl", write_haiku_pickle, refused=(NEVER,)),
    Case("flax", "a pickled FrozenDict", "params.pickle", write_flax_pickle, refused=(NEVER,)),
    Case("optax", "a pickled state", "opt_state.pkl", write_optax_pickle, refused=(NEVER,)),
    Case(
        "numpy",
        "np.save of objects (a pickle in .npy)",
        "objects.npy",
        write_numpy_pickle,
        refused=("an array of Python objects is pickled, which cordwood never loads",),
    ),
    Case(
        "gguf",
        "a GGUF file",
        "model.gguf",
        write_gguf,
        refused=("a GGUF file of llama.cpp: read it with gguf.GGUFReader",),
    ),
    Case(
        "h5py",
        "an HDF5 file",
        "model.h5",
        write_hdf5,
        refused=("an HDF5 file", "read it with h5py, and save the arrays with cordwood.save"),
    ),
    Case(
        "tar",
        "a tar archive",
        "model.tar",
        write_tar,
        refused=("a tar archive: unpack it, and load what was in it",),
    ),
    Case(
        "tar",
        "a tar archive under gzip",
        "model.tar.gz",
        lambda path: write_tar(path, "w:gz"),
        refused=("a gzip stream that contains a tar archive: unpack it",),
    ),
    Case(
        "tar",
        "a tar archive under bzip2",
        "model.tar.bz2",
        lambda path: write_tar(path, "w:bz2"),
        refused=("a bzip2 stream: decompress it first",),
    ),
    Case(
        "tar",
        "a tar archive under xz",
        "model.tar.xz",
        lambda path: write_tar(path, "w:xz"),
        refused=("an xz stream: decompress it first",),
    ),
    Case(
        "gzip",
        "a pickle under gzip",
        "params.pkl.gz",
        lambda path: path.write_bytes(gzip.compress(pickle.dumps(TREE))),
        refused=(f"a gzip stream that contains {NEVER}",),
    ),
    Case(
        "zip",
        "a zip archive of a safetensors file",
        "model.zip",
        write_zip_of_safetensors,
        refused=("a zip archive without .npy members: unpack it, and load what was in it",),
    ),
    Case(
        "sqlite",
        "a database",
        "run.db",
        write_sqlite,
        refused=("a SQLite database: read it with sqlite3",),
    ),
    Case(
        "git-lfs",
        "a pointer in place of the file",
        "model.safetensors",
        write_git_lfs_pointer,
        refused=("a Git LFS pointer, not the file itself: run `git lfs pull`",),
    ),
    Case(
        "HTTP server",
        "an HTML page in place of the file",
        "model.safetensors",
        write_html,
        refused=("an HTML page", "not the file itself: download it again"),
    ),
    Case(
        "object store",
        "an XML error in place of the file",
        "model.safetensors",
        write_xml,
        refused=("the error of a server, in XML, not the file itself: download it again",),
    ),
    Case(
        "transformers",
        "model.safetensors.index.json alone",
        "model.safetensors.index.json",
        write_shards_index,
        refused=("the index of a checkpoint in several files: load its directory",),
    ),
    Case(
        "json",
        "a JSON text",
        "params.json",
        lambda path: path.write_text(json.dumps({"w": [1.0, 2.0]})),
        refused=("a JSON text, which has no arrays: read it with json.load",),
    ),
]
