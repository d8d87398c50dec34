"""Bulk work: verify by 1, 2, 4 and 8 processes, and the plan of 100 TB.

    python benchmarks/bulk.py            writes bulk.md
    python benchmarks/bulk.py --smoke    small sizes; prints its page

A server of S3 in memory runs in a process of its own. Each worker has a link of its own to it, as
machines have: a proxy that adds 50 ms to each request and passes a limited rate. The plan is made
in a new process.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import numpy as np  # noqa: E402

from benchmarks.object_store import BUCKET, ENVIRONMENT, running  # noqa: E402
from benchmarks.pages import hardware, page_head, versions_of  # noqa: E402

MIB = 1 << 20
WORKERS = (1, 2, 4, 8)
SAVE_ID = "0" * 16
STORE_TASK_BYTES = 8 * MIB  # on the store: 256 MiB would need 2 GiB for each round
_HOW = """\
Written by `python benchmarks/bulk.py`. Each figure is the median of {rounds} rounds, in which the
contenders take turns. On the store, each worker has a link of its own: 50 ms for each request, and
{rate:g} MB/s; tasks are of 8 MiB. On the disk, files are in the page cache, and tasks are of 256
MiB, as users have them."""


class Sizes(NamedTuple):
    """The sizes of a run."""

    store_mib: int
    disk_mib: int
    rate: float  # bytes per second of each link
    rounds: int
    tasks: int  # of the plan


FULL = Sizes(512, 1400, 12.5e6, 2, 400_000)
SMOKE = Sizes(16, 4, 64e6, 1, 400)


def tree_of(mib: int) -> dict[str, Any]:
    """Return arrays of 16 MiB at most."""
    size = min(16, mib) * MIB // 4
    return {str(n): np.full(size, n, np.float32) for n in range(mib * MIB // 4 // size)}


def use_link(links: Any) -> None:
    """Take one of the links for this worker process."""
    os.environ["AWS_ENDPOINT_URL"] = links.get()


@contextmanager
def workers(count: int, links: Sequence[str]) -> Iterator[Executor]:
    """Start processes, each with a link, and wait until all can work."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    for link in links[:count]:
        queue.put(link)
    prepare = partial(use_link, queue) if links else None
    with ProcessPoolExecutor(count, mp_context=context, initializer=prepare) as pool:
        list(pool.map(meet, [0.5] * count))
        yield pool


def meet(seconds: float) -> None:
    """Import what a task needs, and stay busy until all workers have started."""
    import cordwood.verifying.verify_tasks  # noqa: F401
    from cordwood.storage.object_stores import object_storage  # noqa: F401

    time.sleep(seconds)


def time_verify(path: str, executor: Executor | None) -> float:
    import cordwood

    before = time.perf_counter()
    cordwood.verify(path, executor=executor)
    return time.perf_counter() - before


def on_store(sizes: Sizes) -> dict[int, float]:
    """Return the seconds of verify by the number of workers."""
    import cordwood
    from cordwood.bulk.task_size import task_size

    os.environ.update(ENVIRONMENT)
    times: dict[int, list[float]] = {count: [] for count in WORKERS}
    path = f"s3://{BUCKET}/checkpoint"
    with task_size(STORE_TASK_BYTES), ExitStack() as stack:
        direct, _ = stack.enter_context(running("tests.storage.s3_server"))
        os.environ["AWS_ENDPOINT_URL"] = direct
        cordwood.save(path, tree_of(sizes.store_mib))
        link = ("benchmarks.slow_link", direct, "--rate", str(sizes.rate))
        links = [stack.enter_context(running(*link))[0] for _ in range(max(WORKERS))]
        for number in range(sizes.rounds):
            for count in WORKERS[:: 1 if number % 2 else -1]:
                with workers(count, links) as pool:
                    times[count].append(time_verify(path, pool))
    return {count: statistics.median(seconds) for count, seconds in times.items()}


def on_disk(sizes: Sizes, folder: Path) -> dict[str, float]:
    """Return the seconds of verify by threads and by two processes."""
    import cordwood

    path = str(folder / "checkpoint")
    cordwood.save(path, tree_of(sizes.disk_mib))
    time_verify(path, None)  # into the page cache
    times: dict[str, list[float]] = {"threads, as without an executor": [], "2 processes": []}
    with workers(2, ()) as pool:
        for number in range(2 * sizes.rounds):
            for name, executor in [*zip(times, (None, pool), strict=True)][:: number % 2 * 2 - 1]:
                times[name].append(time_verify(path, executor))
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def write_index(folder: Path, tasks: int) -> None:
    """Write the index of a checkpoint of so many tasks, without its data files.

    Arrays of float32[102400, 262144] are sharded over 100 processes; each shard is a file of its
    own, of 1 GiB, which four tasks read.
    """
    from cordwood.formats.packs.cordwood_json import encode_index
    from cordwood.formats.packs.encode_item import encode_item
    from cordwood.formats.packs.file_names import pack_name
    from cordwood.formats.packs.packed_tree import pack_tree
    from cordwood.formats.packs.written_packs import written_pack
    from cordwood.index import LEAF, HeaderDigest, LeafSpec, Node
    from cordwood.plan.cells import FileSizes
    from cordwood.plan.packs import packs_of_all
    from cordwood.sharding.boxes import ShardGrid
    from cordwood.tree.flatten import DescribedTree

    processes, rows, columns = 100, 1024, 1 << 18
    shape = (processes * rows, columns)
    holders = tuple([(process,) for process in range(processes)])
    grid = ShardGrid(shape, (tuple(range(0, shape[0], rows)), (0,)), holders)
    names = tuple([f"layer_{number}" for number in range(tasks // 4 // processes)])
    structure = (Node("dict", len(names), names), *[LEAF] * len(names))
    specs = tuple([LeafSpec((name,), "jax", shape, "float32") for name in names])
    described = DescribedTree(structure, specs, (grid,) * len(names), (), ())
    tree = pack_tree(described, process_count=processes, sizes=FileSizes(1 << 30, 10**6, None))
    header_bytes = 32768
    written = [
        [
            written_pack(
                pack_name(SAVE_ID, process, number),
                pack.data_bytes + header_bytes,
                HeaderDigest(header_bytes, os.urandom(16)),
                None,
            )
            for number, pack in enumerate(packs)
        ]
        for process, packs in enumerate(packs_of_all(tree.assignment))
    ]
    folder.mkdir()
    item = encode_item(tree, written, save_id=SAVE_ID)
    (folder / "cordwood.json").write_bytes(encode_index({"": item}))


def plan(folder: Path) -> dict[str, float]:
    """Plan the verification of a checkpoint; return counts, seconds and MiB."""
    from cordwood.bulk.bulk_task import task_key
    from cordwood.bulk.task_size import TASK_BYTES
    from cordwood.formats.load_format import data_file_lister_of
    from cordwood.formats.table import PACKS
    from cordwood.plan.parts_of_work import WorkPart, tasks_of_part
    from cordwood.plan.source_ranges import group_ranges
    from cordwood.storage.locations import LocalPath
    from cordwood.verifying.verify_tasks import BlockChoice, CheckRanges

    location, choice = LocalPath(str(folder)), BlockChoice()
    index_bytes = (folder / "cordwood.json").stat().st_size
    before = time.perf_counter()
    files = data_file_lister_of(PACKS).data_files(location)
    parsed = time.perf_counter()
    planned = [
        CheckRanges(location, ranges, choice)
        for ranges in group_ranges(files.sources, limit_bytes=TASK_BYTES)
    ]
    part = tasks_of_part([task.size_bytes for task in planned], WorkPart(3, 16))
    divided = time.perf_counter()
    keys = {task_key(task) for task in planned}
    end = time.perf_counter()
    assert len(keys) == len(planned)
    return {
        "tasks": len(planned),
        "TB": sum([source.size_bytes for source in files.sources]) / 1e12,
        "files": len(files.sources),
        "index, MB": index_bytes / 1e6,
        "of part 3/16": len(part),
        "s to read the index": parsed - before,
        "s to divide": divided - parsed,
        "s for keys": end - divided,
        "s in all": end - before,
        "MiB at most": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def page(sizes: Sizes, folder: Path) -> str:
    write_index(folder / "index", sizes.tasks)
    command = [sys.executable, __file__, "--plan", str(folder / "index")]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    planned = json.loads(out)
    disk = on_disk(sizes, folder)
    store = on_store(sizes)
    how = _HOW.format(rounds=sizes.rounds, rate=sizes.rate / 1e6)
    lines = page_head(
        "Bulk work: tasks by executors", how, versions_of(["cordwood", "numpy"]), hardware(folder)
    )
    size = sizes.store_mib * MIB
    lines += [
        f"## A store, {sizes.store_mib} MiB",
        "",
        "| workers | seconds | MB/s | of linear |",
        "|---:|---:|---:|---:|",
    ]
    for count, seconds in store.items():
        linear = store[1] / count / seconds
        lines.append(f"| {count} | {seconds:.2f} | {size / seconds / 1e6:.1f} | {linear:.2f} |")
    lines += ["", f"## A local disk, {sizes.disk_mib} MiB", "", "| verify by | s | GB/s |"]
    lines.append("|---|---:|---:|")
    for name, seconds in disk.items():
        lines.append(f"| {name} | {seconds:.2f} | {sizes.disk_mib * MIB / seconds / 1e9:.2f} |")
    lines += ["", "## The plan of 100 TB", "", f"| {' | '.join(planned)} |"]
    lines += ["|---:" * len(planned) + "|"]
    lines.append(f"| {' | '.join(f'{value:,.6g}' for value in planned.values())} |")
    lines += [
        "",
        "The plan is that of `verify`, in a new process, from the index of a checkpoint whose",
        "data files are not there: arrays of 107 GB over 100 processes, in files of 1 GiB. Keys",
        "are needed for a journal only. The memory is all of the process.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page, or print that of a small run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--plan", type=Path)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.plan:
        print(json.dumps(plan(options.plan)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        text = page(SMOKE if options.smoke else FULL, Path(folder))
    if not options.smoke:
        (HERE / "bulk.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
