"""Scale on paper: the cost of planning the save and the load of a very large training state.

    python benchmarks/scale.py              all sizes; writes scale.md
    python benchmarks/scale.py --most 16    up to 16 processes; prints its tables

The state is that of a 405-billion-parameter model with Adam, its devices are stand-ins, its mesh
and shardings are jax's own. Everything is planned as the processes of a real run would do it, by
the same functions; times are of one process on this machine.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks.pages import hardware  # noqa: E402
from benchmarks.scale_plans import Load, Save, plan_load, plan_save  # noqa: E402
from benchmarks.scale_report import as_markdown, unmet  # noqa: E402

MOST = 1024
SIZES = (1, 4, 16, 64, 256, MOST)
SHRINK = 4  # a load goes to that many times fewer processes than had saved


def measure(most: int) -> tuple[list[Save], list[Load]]:
    """Plan the save for each number of processes, and loads of the saved state."""
    saves: list[Save] = []
    loads: list[Load] = []
    for processes in [size for size in SIZES if size <= most]:
        print(f"planning {processes} processes ...", file=sys.stderr, flush=True)
        save, index = plan_save(processes)
        saves.append(save)
        fewer = max(1, processes // SHRINK)
        if processes >= SHRINK:  # one process cannot plan what four thousand cells a leaf take
            loads.append(plan_load(index, saved=processes, loading=fewer, tensor=8))
        if processes == most and processes >= SHRINK:
            loads.append(plan_load(index, saved=processes, loading=fewer, tensor=4))
            loads.append(plan_load(index, saved=processes, loading=processes, tensor=8))
        del index
        gc.collect()
    return saves, loads


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--most", type=int, default=MOST, choices=SIZES)
    parser.add_argument("--output", type=Path, default=HERE / "scale.md")
    options = parser.parse_args()

    saves, loads = measure(options.most)
    text = as_markdown(saves, loads, hardware(Path(tempfile.gettempdir())))
    print(text)
    if options.most == MOST:
        options.output.write_text(text)
    for line in unmet(saves, loads):
        print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
