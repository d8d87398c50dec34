"""The speed of verify beside a threaded read: python benchmarks/verify.py [--rounds 5].

For each checkpoint of one tree, verify and a threaded read of the same files into small buffers run
in turn: from the page cache, and after the files were dropped from it. verify parses and hashes the
data. The bare read does neither. A third contender reads like the bare read and computes xxHash3.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

if TYPE_CHECKING:
    from benchmarks.one_tree import MakeTree

PACKAGES = ["cordwood", "jax", "numpy", "xxhash"]
SHARE_MIN = 0.8
CACHES = ("warm", "cold")
_COLUMNS = ["format", "page cache", "bare read, s", "read and hash, s", "verify, s", "GB/s"]
_COLUMNS += ["relative to the bare read", "verified"]
_HOW = """\
Written by `python benchmarks/verify.py`. Each figure is the median of interleaved rounds. The bare
read reads the files of the same checkpoint in several threads, 4 MiB at a time, each into one
buffer, and does not look at the data. "read and hash" does the same and also computes xxHash3-128
of each MiB, without comparing it. Cold: the files are dropped from the page cache before each
read. Trust the ratios, not the absolute numbers."""


class Measured(NamedTuple):
    """The figures of one checkpoint: seconds by state of the page cache, and verified bytes."""

    bare: Mapping[str, float]
    hashed: Mapping[str, float]
    verify: Mapping[str, float]
    verified_bytes: int
    size_bytes: int  # on disk

    def share(self, cache: str) -> float:
        """Return the speed of verify divided by that of the bare read."""
        return self.bare[cache] / self.verify[cache]


def prepare(tree: Any, folder: Path) -> dict[str, Path]:
    """Save the tree in each format; return the paths."""
    import jax

    import cordwood

    places = {
        "packs": folder / "packs",
        "zarr": folder / "zarr",
        ".safetensors": folder / "tree.safetensors",
        ".msgpack": folder / "tree.msgpack",
    }
    for name, path in places.items():
        options: dict[str, Any] = {"format": "zarr"} if name == "zarr" else {}
        cordwood.save(path, jax.device_get(tree) if name == ".msgpack" else tree, **options)
    os.sync()
    return places


def files_of(path: Path) -> list[Path]:
    """Return the files of a checkpoint."""
    if path.is_file():
        return [path]
    return sorted(each for each in path.rglob("*") if each.is_file())


def contenders(places: Mapping[str, Path]) -> dict[str, Callable[[], Any]]:
    """Return the timed calls: for each checkpoint two reads, and verify."""
    import cordwood
    from benchmarks.bare import read_through

    calls: dict[str, Callable[[], Any]] = {}
    for name, path in places.items():
        calls[f"bare {name}"] = partial(read_through, files_of(path))
        calls[f"hashed {name}"] = partial(read_through, files_of(path), take_digests)
        calls[f"verify {name}"] = partial(cordwood.verify, path)
    return calls


def take_digests(data: memoryview) -> None:
    """Compute xxHash3 of each MiB, as cordwood's checkpoints do."""
    import xxhash

    for at in range(0, len(data), 1 << 20):
        xxhash.xxh3_128_digest(data[at : at + (1 << 20)])


def drop(paths: Sequence[Path]) -> None:
    """Drop files from the page cache."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def measure(places: Mapping[str, Path], rounds: int) -> dict[str, Measured]:
    """Return the medians of interleaved rounds for each checkpoint."""
    import cordwood
    from benchmarks.bare import read_through
    from benchmarks.rounds import median_seconds, time_values

    def ready(cache: str, contender: str) -> None:
        files = files_of(places[contender.partition(" ")[2]])
        if cache == "cold":
            drop(files)
        else:
            read_through(files)

    calls = contenders(places)
    medians = {
        cache: median_seconds(time_values(calls, rounds, before=partial(ready, cache)))
        for cache in CACHES
    }
    return {
        name: Measured(
            {cache: medians[cache][f"bare {name}"] for cache in CACHES},
            {cache: medians[cache][f"hashed {name}"] for cache in CACHES},
            {cache: medians[cache][f"verify {name}"] for cache in CACHES},
            cordwood.verify(path).verified_bytes,
            sum(each.stat().st_size for each in files_of(path)),
        )
        for name, path in places.items()
    }


def as_markdown(measured: Mapping[str, Measured], rounds: int, machine: str) -> str:
    """Return the page, with one row for each format and state of the page cache."""
    from benchmarks.pages import page_head, versions_of

    title = "Verifying: cordwood beside a plain threaded read"
    lines = page_head(title, _HOW, versions_of(PACKAGES), machine)
    lines += [
        f"{max(each.size_bytes for each in measured.values()) / 1e9:.2f} GB, {rounds} rounds.",
        "",
        f"Target: at least {SHARE_MIN} of the bare read's speed.",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        f"|{'---|' * len(_COLUMNS)}",
    ]
    unmet = []
    for name, each in measured.items():
        for cache in CACHES:
            took = each.verify[cache]
            cells = [name, cache, f"{each.bare[cache]:.3f}", f"{each.hashed[cache]:.3f}"]
            cells += [f"{took:.3f}", f"{each.size_bytes / took / 1e9:.2f}"]
            cells += [f"{each.share(cache):.2f}", f"{each.verified_bytes / each.size_bytes:.0%}"]
            lines.append(f"| {' | '.join(cells)} |")
            if each.share(cache) < SHARE_MIN:
                unmet.append(f"{name} ({cache})")
    lines += [
        "",
        "A bare `.msgpack` has no place for digests, so only its headers are read.",
        "",
        f"Not met by: {', '.join(unmet)}." if unmet else "All are met.",
        "",
    ]
    return "\n".join(lines)


def measured_page(make_tree: MakeTree, folder: Path, rounds: int) -> str:
    from benchmarks.pages import hardware

    places = prepare(make_tree(), folder)
    return as_markdown(measure(places, rounds), rounds, hardware(folder))


def main() -> None:
    from benchmarks.one_tree import write_page

    write_page(measured_page, description=__doc__ or "", output=HERE / "verify.md")


if __name__ == "__main__":
    main()
