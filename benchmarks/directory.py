"""A directory, one machine: cordwood beside its peers on the same trees in the same run.

    python benchmarks/directory.py                        all trees; writes directory.md
    python benchmarks/directory.py --tree gpt2 --rounds 3 one; prints its tables
    python benchmarks/directory.py --tree smoke --rounds 1 a tree of 2 MB: does all of it work?

Each tree has a process of its own, with as many virtual devices as it is spread over. Every round
runs every contender once, in an order of its own, and there are three times as many of loads; a
save goes to a path that never was, once the last one's files are emptied and the disk is in sync;
before a load its files are read through and free memory is touched. The tables hold medians.
Memory is measured in a round of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
DEVICES = {"gpt2-8-devices": 8, "smoke": 8}  # others: 1
TREES = ("gpt2", "gpt2-8-devices", "tiny", "small", "one-leaf")
MORE_LOADS = 3  # a load takes a fifth of a second, so other work of the machine shows
PACKAGES = ["cordwood", "orbax-checkpoint", "eformer", "tensorstore", "jax", "numpy", "xxhash"]


def measure(name: str, folder: Path, rounds: int, leaf_gib: int) -> dict[str, Any]:
    """Run every contender on one tree; return the fields of a Report."""
    import jax

    from benchmarks.contender_names import BARE_READ, PACKS
    from benchmarks.directory_contenders import (
        HELD_BYTES,
        Job,
        async_saves,
        files_of,
        loads,
        prepare,
        same_files,
        saves,
        warm_up,
    )
    from benchmarks.directory_report import Report
    from benchmarks.directory_trees import CASES, smoke, spread
    from benchmarks.memory import extra_bytes
    from benchmarks.rounds import median_seconds, remove, time_calls, time_saves, time_values

    case = CASES[name]
    if len(jax.devices()) != case.devices:
        raise SystemExit(f"{name} needs {case.devices} devices, found {len(jax.devices())}")
    warm_up(spread(smoke()), folder / "warm-up")
    remove(folder / "warm-up")
    job = Job(case.make(leaf_gib), folder, case.without)
    prepare(job)
    bare = same_files(job)
    save_times = time_saves(saves(job, bare), folder, rounds, suffix_of=lambda _: "")
    bare.clear()
    calls, wholes = time_calls(async_saves(job), folder, rounds)
    save_memory = {}
    for each, save in saves(job, bare).items():
        path = folder / "memory"
        save_memory[each] = extra_bytes(partial(save, path))
        remove(path)
    job.tree = None

    def read_through(contender: str) -> None:
        """Warm the page cache for the next load, even if it cannot hold all files."""
        for file in files_of(job.path_of(PACKS if contender == BARE_READ else contender)):
            with file.open("rb", buffering=0) as stream:
                buffer = bytearray(1 << 20)
                while stream.readinto(buffer):
                    pass

    memory = 2 * job.size_bytes
    load_rounds = rounds if job.size_bytes > HELD_BYTES else MORE_LOADS * rounds
    load_times = time_values(loads(job), load_rounds, before=read_through, memory_bytes=memory)
    load_memory = {
        each: extra_bytes(partial(_ready, load)) - job.size_bytes
        for each, load in loads(job).items()
    }
    files = {each: len(files_of(job.path_of(each))) for each in save_memory}
    job.close()
    return Report(
        tree=name,
        what=case.what,
        devices=case.devices,
        leaves=job.leaves,
        size_bytes=job.size_bytes,
        rounds=rounds,
        saves=median_seconds(save_times),
        loads=median_seconds(load_times),
        calls=median_seconds(calls),
        wholes=median_seconds(wholes),
        save_memory=save_memory,
        load_memory={each: max(0, extra) for each, extra in load_memory.items()},
        files=files,
        not_run=f"{', '.join(sorted(case.without))}: {case.why}." if case.without else "",
    )._asdict()


def _ready(load: Callable[[], Any]) -> Any:
    import jax

    return jax.block_until_ready(load())


def measure_in_child(name: str, options: argparse.Namespace) -> dict[str, Any]:
    devices = DEVICES.get(name, 1)
    flags = f"--xla_force_host_platform_device_count={devices}"
    command = [sys.executable, __file__, "--tree", name, "--rounds", str(options.rounds)]
    command += ["--folder", str(options.folder), "--leaf-gib", str(options.leaf_gib), "--json"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    fields: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return fields


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tree", choices=["all", *TREES, "smoke"], default="all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--leaf-gib", type=int, default=4, help="of the tree one-leaf")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure"
    )
    parser.add_argument("--json", action="store_true", help="print numbers and not tables")
    parser.add_argument("--output", type=Path, default=HERE / "directory.md")
    options = parser.parse_args()

    if options.json:  # a child: its environment has been prepared
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="cordwood-bench-") as folder:
            fields = measure(options.tree, Path(folder), options.rounds, options.leaf_gib)
        print(json.dumps(fields))
        return
    names = list(TREES) if options.tree == "all" else [options.tree]
    from benchmarks.directory_report import Report, as_markdown, unmet
    from benchmarks.pages import hardware, versions_of

    versions = versions_of(PACKAGES)
    reports: list[Report] = []
    for name in names:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        reports.append(Report(**measure_in_child(name, options)))
        text = as_markdown(reports, versions, hardware(options.folder))
        if options.tree == "all":  # after each, so that an interrupted run has printed something
            options.output.write_text(text)
    print(text)
    for line in unmet(reports):
        print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
