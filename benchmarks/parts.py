"""The cost of reading a part of a leaf: the bytes that are read, the ranges, and the time.

    python benchmarks/parts.py              writes parts.md
    python benchmarks/parts.py --mib 64     a smaller leaf; prints its table

It reads an eighth of every row of one leaf: the part that one of eight devices needs of a matrix
that is cut along its other axis. It compares the planner's choice with the two alternatives: one
range per row, and one range for all rows. The page cache is warm.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import numpy as np  # noqa: E402

from benchmarks.pages import hardware  # noqa: E402
from cordwood.index import Box, Digests, Leaf, Piece, Pieces, Span  # noqa: E402
from cordwood.io import execute_load, read_units  # noqa: E402
from cordwood.io.open_files import LocalFile  # noqa: E402
from cordwood.plan import move_templates  # noqa: E402
from cordwood.plan.load_boxes import plan_boxes  # noqa: E402
from cordwood.plan.move_templates import RANGE_PRICE_BYTES, RUN_BYTES  # noqa: E402
from tests.block_digests import digests_of  # noqa: E402

MIB = 1 << 20
SHARE = 8
ROUNDS = 5
ROWS_KIB = (16, 64, 256, 1024, 4096, 16384)
# The price of a range, and the shortest run that may be one of several, in bytes.
WAYS = {
    "a range per row": (1, 1),
    "one range": (1 << 50, 1 << 50),
    "chosen": (RANGE_PRICE_BYTES, RUN_BYTES),
}


class Counted(LocalFile):
    """A file that counts the bytes that are read from it."""

    read_bytes = 0

    def read_into(self, offset: int, views: Sequence[memoryview]) -> None:
        self.read_bytes += sum(map(len, views))
        super().read_into(offset, views)


class Cost(NamedTuple):
    """The cost of one way to read a part."""

    ranges: int
    read_bytes: int
    seconds: float


def measure(
    file: Counted, row_bytes: int, digests: Digests | None, *, leading: bool = False
) -> dict[str, Cost]:
    """Measure each way to read an eighth of every row of a file, as one float32 matrix.

    With `leading`, measure reading the third eighth of the rows completely instead.
    """
    shape = (file.size_bytes // row_bytes, row_bytes // 4)
    span = Span(0, shape[0] * shape[1])
    leaf = Leaf(("w",), "numpy", shape, "float32", Pieces((Piece(span, 0, 0, file.size_bytes),)))
    box = Box((0, 0), (shape[0], shape[1] // SHARE))
    if leading:
        box = Box((shape[0] * 2 // SHARE, 0), (shape[0] * 3 // SHARE, shape[1]))
    costs: dict[str, Cost] = {}
    for _ in range(ROUNDS):
        for name, (price, run) in WAYS.items():
            file.read_bytes = 0
            with (
                patch.object(move_templates, "RANGE_PRICE_BYTES", price),
                patch.object(move_templates, "RUN_BYTES", run),
                patch.object(read_units, "_GAP_BYTES", min(price, 64 << 10)),
            ):
                start = time.perf_counter()
                blocks = digests.block_bytes if digests is not None else 0
                plan = plan_boxes([leaf], {0: [box]}, block_bytes=[blocks])
                execute_load.execute_load(plan, [file], digests=[digests], verify=True)
                seconds = time.perf_counter() - start
            if name in costs:
                seconds = min(seconds, costs[name].seconds)
            costs[name] = Cost(len(plan.moves), file.read_bytes, seconds)
    return costs


def table(file: Counted, digests: Digests | None) -> list[str]:
    columns = ["row, KiB", "needed, MiB", "chosen: ranges", "MiB", "ms"]
    columns += ["a range per row: MiB", "ms", "one range: MiB", "ms"]
    lines = [f"| {' | '.join(columns)} |", "|---:" * len(columns) + "|"]
    for kib in ROWS_KIB:
        costs = measure(file, kib << 10, digests)
        cells = [f"{kib:,}", f"{file.size_bytes // SHARE / MIB:.0f}"]
        for name in ("chosen", "a range per row", "one range"):
            cost = costs[name]
            cells += [f"{cost.ranges:,}"] if name == "chosen" else []
            cells += [f"{cost.read_bytes / MIB:.0f}", f"{cost.seconds * 1e3:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def leading_table(file: Counted, digests: Digests) -> list[str]:
    columns = ["row, KiB", "needed, MiB", "ranges", "MiB read", "with digests: ranges", "MiB read"]
    lines = [f"| {' | '.join(columns)} |", "|---:" * len(columns) + "|"]
    for kib in ROWS_KIB:
        plain, checked = [
            measure(file, kib << 10, each, leading=True)["chosen"] for each in (None, digests)
        ]
        cells = [f"{kib:,}", f"{file.size_bytes // SHARE / MIB:.0f}"]
        cells += [f"{n:,}" for n in (plain.ranges, plain.read_bytes // MIB)]
        cells += [f"{n:,}" for n in (checked.ranges, checked.read_bytes // MIB)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def report(size_bytes: int, folder: Path) -> str:
    path = folder / "matrix"
    data = np.random.default_rng(0).integers(0, 256, size_bytes, np.uint8)
    data.tofile(path)
    digests = digests_of(data.data, start=0)
    del data
    with Counted(path) as file:
        plain, checked = table(file, None), table(file, digests)
        leading = leading_table(file, digests)
    return "\n".join(
        [
            "# Reading parts of a leaf",
            "",
            "Written by `python benchmarks/parts.py`. It reads an eighth of every row of a leaf of",
            f"{size_bytes // MIB} MiB. Best of {ROUNDS}, from a warm page cache. On slower storage",
            "the number of bytes that are read matters more.",
            "",
            f"- {hardware(folder)}",
            "",
            "## Without digests",
            "",
            *plain,
            "",
            "## With a digest for every MiB",
            "",
            "If any byte of a block is needed, the whole block is read.",
            "",
            *checked,
            "",
            "## Cut along the leading axis",
            "",
            "An eighth of the rows, each completely: the part that one of eight processes reads if",
            "a leaf is cut along its leading axis.",
            "",
            *leading,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=512)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = report(options.mib * MIB, Path(folder))
    print(text)
    if options.mib == parser.get_default("mib"):
        (HERE / "parts.md").write_text(text)


if __name__ == "__main__":
    main()
