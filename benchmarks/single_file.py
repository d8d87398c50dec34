"""One file, one machine: cordwood beside its peers on the same trees in the same run.

    python benchmarks/single_file.py                        all trees; writes single_file.md
    python benchmarks/single_file.py --tree gpt2 --rounds 3 one; prints its tables

Each tree has a process of its own, so that nothing is left of the one before. Every round runs
every contender once, in an order of its own; a save goes to a path that never was, once the last
one's files are emptied and the disk is in sync; a load finds the page cache warm. The tables hold
medians.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks.directory_trees import smoke  # noqa: E402
from benchmarks.pages import hardware, versions_of  # noqa: E402
from benchmarks.report import Report, as_markdown  # noqa: E402
from benchmarks.trees import TREES  # noqa: E402

PACKAGES = ["cordwood", "flax", "safetensors", "jax", "numpy", "msgpack", "xxhash"]
MAKE_TREE = {**TREES, "smoke": smoke}


def measure(name: str, folder: Path, rounds: int) -> Report:
    """Run every contender on one tree."""
    import cordwood
    from benchmarks.aliasing import aliased_share
    from benchmarks.bare import page_aligned_copy
    from benchmarks.contenders import (
        Job,
        bytes_contenders,
        loads,
        prepare,
        saves,
        suffix_of,
        views,
        warm_up,
    )
    from benchmarks.rounds import median_seconds, time_saves, time_values

    warm_up(folder)
    job = Job(MAKE_TREE[name](), folder)
    prepare(job)
    ours = page_aligned_copy(job.ours)
    save_times = time_saves(saves(job, ours), folder, rounds, suffix_of=suffix_of)
    prepare(job)
    aliased = aliased_share(cordwood.load(job.ours, mmap=True), job.ours)
    memory, views_of_it = 2 * job.size_bytes, views(job)
    load_times = time_values(loads(job), rounds, memory_bytes=memory, without_memory=views_of_it)
    in_memory = bytes_contenders(job)
    bytes_times = time_values(in_memory, rounds, memory_bytes=memory, without_memory=views_of_it)
    return Report(
        tree=name,
        what=(MAKE_TREE[name].__doc__ or "").splitlines()[0],
        leaves=job.leaves,
        size_bytes=job.size_bytes,
        rounds=rounds,
        saves=median_seconds(save_times),
        loads=median_seconds(load_times),
        in_memory=median_seconds(bytes_times),
        aliased_share=aliased,
    )


def measure_in_child(name: str, options: argparse.Namespace) -> Report:
    command = [sys.executable, __file__, "--tree", name, "--rounds", str(options.rounds)]
    command += ["--folder", str(options.folder), "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    fields: dict[str, Any] = json.loads(done.stdout)
    return Report(**fields)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tree", choices=["all", *MAKE_TREE], default="all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure"
    )
    parser.add_argument("--json", action="store_true", help="print numbers and not tables")
    parser.add_argument("--output", type=Path, default=HERE / "single_file.md")
    options = parser.parse_args()

    if options.json:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="cordwood-bench-") as folder:
            report = measure(options.tree, Path(folder), options.rounds)
        print(json.dumps(report._asdict()))
        return
    names = list(TREES) if options.tree == "all" else [options.tree]
    versions = versions_of(PACKAGES)
    reports = []
    for name in names:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        reports.append(measure_in_child(name, options))
        text = as_markdown(reports, versions, hardware(options.folder))
        if options.tree == "all":  # after each, so that an interrupted run has printed something
            options.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
