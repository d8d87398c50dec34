"""Conversions and loads with a recipe, beside plain ones of the same bytes in the same run.

    python benchmarks/recipes.py                       1 GiB in 16 layers; writes recipes.md
    python benchmarks/recipes.py --mib 16 --rounds 1   prints the page

Every round runs each conversion once, in a different order, from the page cache to a new path; then
each load. `numpy` makes the transposed matrices, of arrays that are in memory already. Peaks
of memory are bounded by tests.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

PACKAGES = ["cordwood", "numpy"]
LAYERS = 16
HEAD = 128
RATIO_MAX = 1.3
PLAIN = "plain"
NUMPY = "numpy, transposed"
# The rule of each contender: the axes of what it makes of `(n h) d`, the matrix of a layer.
AXES = {
    "renamed": "(n h) d",
    "stacked, axis 0": "i (n h) d",
    "stacked, axis 1": "(n h) i d",
    "transposed": "d (n h)",
    "transposed, stacked in axis 0": "i d (n h)",
    "transposed, stacked in axis 1": "d i (n h)",
    "heads, stacked in axis 1": "d i n h",
}
WITH_TARGET = ("renamed", "stacked, axis 0", "stacked, axis 1")
_HOW = """\
Written by `python benchmarks/recipes.py`. Each figure is the median of interleaved rounds. The
source is a `.safetensors` file without digests in the page cache, as from the hub; conversions
write packs. Trust the ratios, not the absolute numbers."""


def options_of(name: str) -> dict[str, Any]:
    """Return the options of a call: the recipe, or none."""
    from cordwood.recipes import Recipe, Rule

    if name == PLAIN:
        return {}
    axes = AXES[name]
    path = "w" if "i" in axes.split() else "w_{i}"
    return {"recipe": Recipe([Rule("layers.{i}.w", "(n h) d", path, axes)], sizes={"h": HEAD})}


def transposed_by_numpy(arrays: list[Any]) -> list[Any]:
    import numpy as np

    return [np.ascontiguousarray(array.T) for array in arrays]


def table(seconds: Mapping[str, float], size_bytes: int) -> list[str]:
    lines = [
        "| recipe | seconds | GB/s | relative to plain |",
        "|---|---|---|---|",
    ]
    for name, took in seconds.items():
        ratio = took / seconds[PLAIN]
        lines.append(f"| {name} | {took:.2f} | {size_bytes / took / 1e9:.2f} | {ratio:.2f} |")
    return [*lines, ""]


def measured_page(folder: Path, mib: int, rounds: int) -> str:
    import numpy as np
    from safetensors.numpy import save_file

    import cordwood
    from benchmarks.bare import read_through
    from benchmarks.pages import hardware, page_head, versions_of
    from benchmarks.rounds import median_seconds, time_saves, time_values

    columns = 4096 if mib >= 1024 else 256
    shape = ((mib << 20) // LAYERS // columns // 2, columns)
    draw = np.random.default_rng(0)
    arrays = {f"layers.{i}.w": draw.integers(0, 99, shape, np.uint16) for i in range(LAYERS)}
    source = folder / "source.safetensors"
    save_file(arrays, source)
    os.sync()
    read_through([source])
    size_bytes = mib << 20
    converts: dict[str, Callable[[Path], Any]] = {}
    loads: dict[str, Callable[[], Any]] = {}
    for name in (PLAIN, *AXES):
        converts[name] = partial(cordwood.convert, source, **options_of(name))
        loads[name] = partial(cordwood.load, source, to="numpy", **options_of(name))
    loads[NUMPY] = partial(transposed_by_numpy, list(arrays.values()))
    converted = median_seconds(time_saves(converts, folder, rounds, suffix_of="".format))
    loaded = median_seconds(time_values(loads, rounds, memory_bytes=size_bytes))
    lines = page_head(
        "Recipes: rearranged weights beside plain ones",
        _HOW,
        versions_of(PACKAGES),
        hardware(folder),
    )
    lines += [
        f"{size_bytes / 1e9:.2f} GB in {LAYERS} matrices of 16-bit elements, {rounds} rounds.",
        "",
        "## Conversions",
        "",
        f"Target: at most {RATIO_MAX} of a plain conversion for renames and stacks.",
        "",
        *table(converted, size_bytes),
    ]
    slow = [n for n in WITH_TARGET if converted[n] > RATIO_MAX * converted[PLAIN]]
    lines += [f"Not met by: {', '.join(slow)}." if slow else "All are met.", ""]
    return "\n".join([*lines, "## Loads", "", *table(loaded, size_bytes)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="cordwood-bench-") as folder:
        page = measured_page(Path(folder), options.mib, options.rounds)
    if options.mib == 1024:
        (HERE / "recipes.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
