"""The time of new processes to restore 0.27 GB: from own roots, peers, one root, and a store.

    python benchmarks/recover.py                       writes recover.md
    python benchmarks/recover.py --mib 4 --rounds 1    a smaller tree; prints its page

Real processes of one job on loopback. The store is S3 in memory behind a proxy that adds 50 ms to
each request and passes at most 1 GB/s.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks.object_store import BUCKET, ENVIRONMENT, running  # noqa: E402
from benchmarks.pages import hardware, page_head, versions_of  # noqa: E402
from tests.processes.group import Group  # noqa: E402

MIB, ROUNDS, PROCESSES = 256, 5, 4
ONE, OWN, PEERS, STORE = (
    "one root on a local disk, which all share",
    "a root for each process",
    "the same, one root lost: from a replica",
    "a store, 50 ms a request and 1 GB/s",
)


class Way(NamedTuple):
    """A way to restore."""

    roots: Sequence[str]
    options: dict[str, Any]
    environment: dict[str, str]


def measure(
    folder: Path, processes: int, mib: int, rounds: int, store: str
) -> dict[str, list[float]]:
    """Return the seconds of each way and round, of the process that took the longest."""
    own = [str(folder / f"root-{i}") for i in range(processes)]
    ways = {
        ONE: Way([str(folder / "one")] * processes, {}, {}),
        OWN: Way(own, {"shared": False}, {}),
        PEERS: Way([*own[:-1], str(folder / "lost")], {"shared": False}, {}),
        STORE: Way(
            [f"s3://{BUCKET}/run"] * processes, {}, {**ENVIRONMENT, "AWS_ENDPOINT_URL": store}
        ),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for name, way in ways.items():
        if name == PEERS:
            continue
        options = {**way.options, **({"replicas": 1} if name == OWN else {})}
        with Group(processes, devices_each=1) as group:
            problems = group.run(
                "recoveries.save",
                roots=list(way.roots),
                mib=mib,
                options=options,
                environment=way.environment,
            )
        assert not any(problems), problems
    for number in range(rounds):
        for name in [*ways][:: 1 if number % 2 else -1]:
            way = ways[name]
            shutil.rmtree(folder / "lost", ignore_errors=True)
            with Group(processes, devices_each=1) as group:
                times = group.run(
                    "recoveries.restore",
                    roots=list(way.roots),
                    mib=mib,
                    options=way.options,
                    environment=way.environment,
                )
            seconds[name].append(max(times))
    return seconds


_HOW = """\
Written by `python benchmarks/recover.py`. {processes} processes of one job on one machine,
{size:.2f} GB in all; from the start of the manager in new processes to the restored state, of the
slowest process. Medians of {rounds} interleaved rounds; the page cache is warm. With one root lost,
its part of the bytes comes from another process by HTTP over loopback. Every byte is checked
against its digest. The store is S3 in memory behind a proxy."""


def as_markdown(seconds: dict[str, list[float]], processes: int, mib: int, machine: str) -> str:
    """Return the page."""
    rounds = len(seconds[STORE])
    how = _HOW.format(processes=processes, size=(mib << 20) / 1e9, rounds=rounds)
    lines = page_head("Restoring from peers", how, versions_of(["cordwood", "jax"]), machine)
    lines += ["| from | seconds | of the time from the store |", "|---|---:|---:|"]
    base = statistics.median(seconds[STORE])
    for name, values in seconds.items():
        middle = statistics.median(values)
        lines.append(f"| {name} | {middle:.3f} | {middle / base:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print the page, and write it for the whole size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=MIB)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        running("tests.storage.s3_server") as (direct, _),
        running("benchmarks.slow_link", direct) as (store, _),
    ):
        seconds = measure(Path(folder), options.processes, options.mib, options.rounds, store)
    text = as_markdown(seconds, options.processes, options.mib, hardware(options.folder))
    print(text)
    if options.mib == MIB:
        (HERE / "recover.md").write_text(text)


if __name__ == "__main__":
    main()
