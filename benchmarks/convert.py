"""Converting checkpoints, beside a plain durable copy of the same bytes in the same run.

    python benchmarks/convert.py                          GPT-2 with Adam; writes convert.md
    python benchmarks/convert.py --tree smoke --rounds 1  a tree of 2 MB; prints the page

Every round runs every conversion of raw formats and the bare copy once, in a different order.
Conversions of compressed sources follow in separate rounds, a third as many. Each conversion writes
to a new path, after the files of the others are emptied and the disk is in sync. Its source is in
the page cache. Memory is measured in a separate round. For compressed sources only memory has a
target: the time of decompression has nothing to do with the copy.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

if TYPE_CHECKING:
    from benchmarks.one_tree import MakeTree

PACKAGES = ["cordwood", "orbax-checkpoint", "jax", "numpy"]
BARE = "bare copy"
SHARE_MIN = 0.6
PEAK_MIB_MAX = 256
# Source and target formats. The Orbax source is zarr 3 in files, raw.
PAIRS = (
    ("safetensors", "packs"),
    ("packs", "safetensors"),
    ("packs", "zarr"),
    ("zarr", "packs"),
    ("safetensors", "msgpack"),
    ("msgpack", "packs"),
    ("orbax", "packs"),
    ("msgpack.zst", "packs"),
    ("msgpack.gz", "packs"),
)
_COMPRESSED = ("msgpack.zst", "msgpack.gz")
_RAW_ROUNDS = 3  # rounds of raw formats for each round of the others
_SUFFIX = {name: f".{name}" for name in ("safetensors", "msgpack", *_COMPRESSED)}
_HOW = """\
Written by `python benchmarks/convert.py`. Each figure is the median of interleaved rounds. The
compressed sources are measured in separate rounds, after the others. The bare copy reads the
`.safetensors` file in several threads, 4 MiB at a time, and writes it with O_DIRECT and fsync. It
neither checks nor makes digests. Trust the ratios, not the absolute numbers."""


def prepare(tree: Any, folder: Path) -> dict[str, Path]:
    """Save the tree in each source format; return the paths."""
    import jax
    import orbax.checkpoint as ocp

    import cordwood

    places = {name: folder / f"source-{name}{_SUFFIX.get(name, '')}" for name in _sources()}
    host = jax.device_get(tree)
    cordwood.save(places["safetensors"], tree)
    for name in ("msgpack", *_COMPRESSED):
        cordwood.save(places[name], host)
    cordwood.save(places["packs"], tree)
    cordwood.save(places["zarr"], tree, format="zarr")
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=True, use_compression=False)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(places["orbax"].resolve(), args=ocp.args.PyTreeSave(tree))
    os.sync()
    return places


def _sources() -> list[str]:
    return sorted({source for source, _ in PAIRS})


def contenders(places: Mapping[str, Path]) -> dict[str, Callable[[Path], Any]]:
    """Return the timed calls by name. Each gets the path that it writes to."""
    import cordwood
    from benchmarks.bare import copy_direct

    calls: dict[str, Callable[[Path], Any]] = {BARE: partial(copy_direct, places["safetensors"])}
    for source, target in PAIRS:
        options: dict[str, Any] = {"overwrite": True}
        if target == "zarr":
            options["format"] = "zarr"
        if target == "msgpack":
            options["lossy"] = True
        calls[f"{source} to {target}"] = partial(cordwood.convert, places[source], **options)
    return calls


def _is_compressed(name: str) -> bool:
    return name.partition(" ")[0] in _COMPRESSED


def suffix_of(name: str) -> str:
    """Return the suffix of the path that a contender writes to."""
    return _SUFFIX.get(name.rpartition(" ")[2], "")


def as_markdown(
    seconds: Mapping[str, float],
    memory: Mapping[str, int],
    size_bytes: int,
    rounds: int,
    machine: str,
) -> str:
    """Return the page, with one row for each conversion."""
    from benchmarks.pages import page_head, versions_of

    title = "Converting: cordwood beside a bare copy of the bytes"
    lines = page_head(title, _HOW, versions_of(PACKAGES), machine)
    lines += [
        f"{size_bytes / 1e9:.2f} GB, {rounds} rounds; {_RAW_ROUNDS * rounds} for raw formats.",
        "",
        f"Target: at least {SHARE_MIN} of the bare copy's speed between raw formats, and at most",
        f"{PEAK_MIB_MAX} MiB of memory for all formats.",
        "",
        "| conversion | seconds | GB/s | relative to the bare copy | peak memory, MiB |",
        "|---|---|---|---|---|",
    ]
    for name, took in seconds.items():
        share = seconds[BARE] / took
        lines.append(
            f"| {name} | {took:.2f} | {size_bytes / took / 1e9:.2f} | {share:.2f} | "
            f"{memory[name] / (1 << 20):.0f} |"
        )
    slow = [
        name
        for name in seconds
        if seconds[BARE] / seconds[name] < SHARE_MIN and not _is_compressed(name)
    ]
    unmet = [name for name in seconds if name in slow or memory[name] > PEAK_MIB_MAX << 20]
    lines += ["", f"Not met by: {', '.join(unmet)}." if unmet else "All are met.", ""]
    return "\n".join(lines)


def measured_page(make_tree: MakeTree, folder: Path, rounds: int) -> str:
    import jax

    from benchmarks.bare import read_through
    from benchmarks.memory import extra_bytes
    from benchmarks.pages import hardware
    from benchmarks.rounds import median_seconds, remove, time_saves
    from benchmarks.verify import files_of

    tree = make_tree()
    size_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
    places = prepare(tree, folder)
    del tree
    for place in places.values():  # saving bypasses the page cache
        read_through(files_of(place))
    calls = contenders(places)
    raw = {name: call for name, call in calls.items() if not _is_compressed(name)}
    times = time_saves(raw, folder, _RAW_ROUNDS * rounds, suffix_of=suffix_of)
    rest = {name: call for name, call in calls.items() if name not in raw}
    times |= time_saves(rest, folder, rounds, suffix_of=suffix_of)
    memory = {}
    for name, call in calls.items():
        path = folder / f"memory{suffix_of(name)}"
        memory[name] = extra_bytes(partial(call, path))
        remove(path)
    return as_markdown(median_seconds(times), memory, size_bytes, rounds, hardware(folder))


def main() -> None:
    from benchmarks.one_tree import write_page

    write_page(measured_page, description=__doc__ or "", output=HERE / "convert.md")


if __name__ == "__main__":
    main()
