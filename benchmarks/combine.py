"""Combine: the mean of five checkpoints, beside reading and copying as many bytes.

    python benchmarks/combine.py              writes combine.md
    python benchmarks/combine.py --mib 4      smaller checkpoints; prints its page

Normal weights in float32 and in bfloat16, five checkpoints of 1.49 GB each, in the page cache. In
turns, the five are loaded one after another, their mean is loaded, and it is written.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import numpy as np  # noqa: E402

PACKAGES = ["cordwood", "numpy", "ml_dtypes"]
MIB = 1 << 20
COUNT = 5
SIZE_MIB = 1421  # 1.49 GB
LAYERS = 12
ROUNDS = 3
DTYPES = ("float32", "bfloat16")
LEAST = 0.5  # of the rate of reading
_HOW = f"""\
Written by `python benchmarks/combine.py`. {COUNT} checkpoints of normal weights, in packs that are
in the page cache. *Read*: `load` of each, one after another. *Mean, loaded*: the result of
`open_combined(...).load()`. *Mean, written*: `combine`, durable when it returns. *No arithmetic*:
four of the checkpoints are verified, which reads them into memory that is used again, and the fifth
is written by `convert`: as many bytes are read, checked and written as by `combine`. Rates are
those of the bytes of all {COUNT} checkpoints. Medians of {ROUNDS} interleaved rounds. Target: the
mean is at {LEAST:g} of the rate of reading or more."""
_COLUMNS = ["dtype", "GB each", "read, GB/s", "mean, loaded, GB/s", "of reading"]
_COLUMNS += ["mean, written, GB/s", "of reading", "no arithmetic, GB/s", "of reading"]


def save_weights(folder: Path, dtype: str, mib: int) -> list[Path]:
    """Save the checkpoints; return their paths."""
    import ml_dtypes

    import cordwood

    kind = np.dtype(np.float32) if dtype == "float32" else np.dtype(ml_dtypes.bfloat16)
    rng = np.random.default_rng(0)
    shape = (1024, mib * MIB // kind.itemsize // LAYERS // 1024)
    layer = rng.standard_normal(shape, np.float32)
    paths = [folder / f"{dtype}-{number}" for number in range(COUNT)]
    for number, path in enumerate(paths):
        tree = {f"layer_{n}": np.roll(layer, n + number, 1).astype(kind) for n in range(LAYERS)}
        cordwood.save(path, tree, page_cache=True)
    return paths


def rates(folder: Path, dtype: str, mib: int, rounds: int) -> list[float]:
    """Return the rates of reading, of the mean, loaded and written, and of no arithmetic."""
    import cordwood

    paths = save_weights(folder, dtype, mib)
    weights = {str(path): 1 / COUNT for path in paths}
    target = folder / "mean"

    def read() -> None:
        for path in paths:
            cordwood.load(path, to="numpy")

    def load_mean() -> None:
        with cordwood.open_combined(weights) as combination:
            combination.load(to="numpy")

    def write_mean() -> None:
        cordwood.combine(target, weights, overwrite=True)

    def write_one() -> None:
        for path in paths[1:]:
            cordwood.verify(path)
        cordwood.convert(paths[0], target, overwrite=True)

    calls: tuple[Callable[[], Any], ...] = (read, load_mean, write_mean, write_one)
    seconds: list[list[float]] = [[] for _ in calls]
    for number in range(rounds + 1):
        for call, times in zip(calls, seconds, strict=True):
            begun = time.perf_counter()
            call()
            if number:  # the first round fills the page cache
                times.append(time.perf_counter() - begun)
    size_bytes = sum([file.stat().st_size for path in paths for file in path.iterdir()])
    for path in (*paths, target):
        shutil.rmtree(path)
    return [size_bytes / statistics.median(times) / 1e9 for times in seconds]


def page(mib: int, rounds: int, folder: Path) -> str:
    """Return the page."""
    from benchmarks.pages import hardware, page_head, versions_of

    lines = page_head("Combine", _HOW, versions_of(PACKAGES), hardware(folder))
    lines += [f"| {' | '.join(_COLUMNS)} |", f"|---|{'---:|' * (len(_COLUMNS) - 1)}"]
    for dtype in DTYPES:
        read, *others = rates(folder, dtype, mib, rounds)
        cells = [f"{mib * MIB / 1e9:.2f}", f"{read:.2f}"]
        for rate in others:
            cells += [f"{rate:.2f}", f"{rate / read:.2f}"]
        lines.append(f"| {dtype} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=0, help="print a page of smaller checkpoints")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, default=HERE.parent / "build")
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        text = page(arguments.mib or SIZE_MIB, arguments.rounds, Path(folder))
    if arguments.mib:
        print(text)
    else:
        (HERE / "combine.md").write_text(text)


if __name__ == "__main__":
    main()
