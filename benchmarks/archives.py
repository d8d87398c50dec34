"""Archives: the size of real weights and of a real training state, by the ways to compress them.

    python benchmarks/archives.py                writes archives.md
    python benchmarks/archives.py --steps 2      a shorter training, no weights; prints its page

The weights are those of all-MiniLM-L6-v2. The training state is that of the demo's transformer
after some hundred steps of AdamW on text. Each archive is verified, and its arrays are read again
by zarr-python or TensorStore.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import numpy as np  # noqa: E402

PACKAGES = ["cordwood", "numpy", "numcodecs", "zarr", "tensorstore"]
STEPS = 300
MOST = {"bfloat16": 0.69, "float32": 0.85}  # of the raw size
_HOW = """\
Written by `python benchmarks/archives.py`. Sizes are shares of the raw size of the arrays, with all
files. Each archive was verified by `cordwood.verify`, and its arrays were read bit for bit by other
libraries: those in float32 by zarr-python, and those in bfloat16, which zarr-python does not have,
by TensorStore. gzip has level 6, and blosc its defaults in numcodecs (lz4, level 5, bytes
shuffled), over each array in pieces of 32 MiB. *Entropy* is the least size of any code that takes
each byte of the elements by itself (of order 0, in pieces of 1 MiB of one byte each), without files
and tables: what an archive approaches. Targets of the archive: at most 0.69 in bfloat16,
and 0.85 in float32."""
_PIECE = 1 << 20
_COLUMNS = [
    "tree",
    "MB",
    "archive",
    "entropy",
    "zarr, zstd",
    "zarr, blosc",
    "gzip",
    "blosc's defaults",
]
_COLUMNS += ["archive, MB/s"]


def weights(path: Path | None) -> Mapping[str, Any]:
    """Return the weights of all-MiniLM-L6-v2 in float32, by name."""
    import safetensors.numpy

    from benchmarks.trees import minilm_path

    tensors = safetensors.numpy.load_file(path or minilm_path())
    return {name: each for name, each in tensors.items() if each.dtype == np.float32}


def training_state(steps: int) -> Mapping[str, Any]:
    """Return parameters and moments of AdamW after a training, by name."""
    import jax
    from jax.sharding import Mesh

    from demo.transformer import new_run, step_on, text_as_codes

    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
    run, codes = new_run(mesh), text_as_codes()
    train_step = step_on(mesh, run)
    for _ in range(steps):
        run, _ = train_step(run, codes)
    paths, _ = jax.tree_util.tree_flatten_with_path(jax.device_get(run))
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
        for path, leaf in paths
        if getattr(leaf, "dtype", None) == np.float32
    }


def in_bfloat16(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree in bfloat16."""
    import ml_dtypes

    return {name: array.astype(ml_dtypes.bfloat16) for name, array in tree.items()}


def share_of(tree: Mapping[str, Any], encode: Callable[[Any], bytes]) -> float:
    """Return the size of the encoded arrays, as a share of the raw one."""
    step = 32 << 20
    size = 0
    for array in tree.values():
        data = np.ascontiguousarray(array).reshape(-1)
        data = data.view(np.uint16) if data.dtype.itemsize == 2 else data
        count = step // data.dtype.itemsize
        size += sum([len(encode(data[i : i + count])) for i in range(0, len(data), count)])
    return size / size_of(tree)


def entropy(array: Any) -> float:
    """Return the size in bytes of an array if each byte of its elements has a code of its own."""
    planes = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, array.itemsize).T
    bits = 0.0
    for plane in planes:
        for start in range(0, plane.size, _PIECE):
            counts = np.bincount(plane[start : start + _PIECE])
            counts = counts[counts > 0]
            bits -= float((counts * np.log2(counts / counts.sum())).sum())
    return bits / 8


def size_of(tree: Mapping[str, Any]) -> int:
    """Return the raw size of a tree in bytes."""
    return sum([array.nbytes for array in tree.values()])


def archive(tree: Mapping[str, Any], folder: Path, compression: Any) -> tuple[float, float]:
    """Convert a tree to zarr; return its share of the raw size, and the rate in MB/s."""
    import cordwood

    source, target = folder / "tree.safetensors", folder / f"{compression}"
    cordwood.save(source, tree)
    begun = time.perf_counter()
    cordwood.convert(source, target, format="zarr", compression=compression)
    seconds = time.perf_counter() - begun
    cordwood.verify(target)
    loaded = cordwood.load(target)
    for name, array in tree.items():
        assert np.array_equal(loaded[name].view(np.uint8), array.view(np.uint8)), name
    raw = {np.ascontiguousarray(array).tobytes() for array in tree.values()}
    for place in target.rglob(".zarray"):
        assert read_elsewhere(place.parent).tobytes() in raw, place
    size = sum([file.stat().st_size for file in target.rglob("*") if file.is_file()])
    return size / size_of(tree), size_of(tree) / seconds / 1e6


def read_elsewhere(place: Path) -> Any:
    """Return a zarr array as another library reads it."""
    if json.loads((place / ".zarray").read_text())["dtype"] != "bfloat16":
        import zarr

        return np.asarray(zarr.open_array(place, mode="r", zarr_format=2)[...])
    import tensorstore

    store = {"driver": "file", "path": str(place)}
    opened = tensorstore.open({"driver": "zarr", "kvstore": store}, read=True).result()
    return opened.read().result()


def rows(trees: Mapping[str, Mapping[str, Any]], folder: Path) -> Iterator[str]:
    """Yield a row for each tree."""
    import numcodecs

    for number, (name, tree) in enumerate(trees.items()):
        place = folder / str(number)
        place.mkdir()
        smallest, rate = archive(tree, place, "archive")
        least = sum(map(entropy, tree.values())) / size_of(tree)
        shares = [smallest, least, *[archive(tree, place, each)[0] for each in ("zstd", "blosc")]]
        shares += [share_of(tree, lambda data: gzip.compress(data.tobytes(), 6))]
        shares += [share_of(tree, numcodecs.Blosc().encode)]
        cells = [name, f"{size_of(tree) / 1e6:.0f}", *[f"{share:.3f}" for share in shares]]
        yield f"| {' | '.join([*cells, f'{rate:.0f}'])} |"


def page(steps: int, path: Path | None, folder: Path, *, has_weights: bool = True) -> str:
    """Return the page."""
    from benchmarks.pages import hardware, page_head, versions_of

    state = training_state(steps)
    trees: dict[str, Mapping[str, Any]] = {}
    if has_weights:
        model = weights(path)
        trees = {"MiniLM, bfloat16": in_bfloat16(model), "MiniLM, float32": model}
    trees["a training state, bfloat16"] = in_bfloat16(state)
    trees["a training state, float32"] = state
    lines = page_head("Archives", _HOW, versions_of(PACKAGES), hardware(folder))
    lines += [f"| {' | '.join(_COLUMNS)} |", f"|---|{'---:|' * (len(_COLUMNS) - 1)}"]
    return "\n".join([*lines, *rows(trees, folder), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=0, help="print a page of a shorter training")
    parser.add_argument("--weights", type=Path, help="model.safetensors of all-MiniLM-L6-v2")
    parser.add_argument("--folder", type=Path, default=HERE.parent / "build")
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    steps, is_short = arguments.steps or STEPS, arguments.steps > 0
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        text = page(steps, arguments.weights, Path(folder), has_weights=not is_short)
    if is_short:
        print(text)
    else:
        (HERE / "archives.md").write_text(text)


if __name__ == "__main__":
    main()
