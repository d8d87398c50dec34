"""The time that replicas add to a training step, beside a manager without them.

    python benchmarks/manager_replicas.py                      writes its section of manager.md
    python benchmarks/manager_replicas.py --mib 4 --rounds 1   a smaller state; prints the section

Real processes of one job on loopback, each with a root of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks.pages import replace_section  # noqa: E402
from benchmarks.rounds import remove  # noqa: E402

if TYPE_CHECKING:
    from tests.processes.timed_loops import Loop, LoopTimes

__all__ = ["MIB", "ROUNDS", "TITLE", "measure_replicas", "replica_section"]

TITLE = "Replicas on other processes"
MIB, ROUNDS, STEPS, PROCESSES = 256, 5, 40, 2
ADDED_MOST = 0.05  # of a step, where the loop leaves the processor free
WITHOUT, NO_REPLICAS, REPLICAS = "no saving", "shared=False", "shared=False, replicas=1"
OPTIONS: Mapping[str, dict[str, Any] | None] = {
    WITHOUT: None,
    NO_REPLICAS: {},
    REPLICAS: {"replicas": 1},
}
DEVICE, BUSY = "the host waits for a device", "the loop uses all cores"

_HOW = """\
{processes} processes of one job on one machine, {size:.2f} GB in all, each with a root of its own
on the same disk. {steps} steps, of which one in {every} is saved, with each manager and without
one, in an order that rotates; medians of {rounds} rounds, of the slowest process. With `replicas=1`
each process also fetches in the background what the other has saved, by HTTP over loopback, checks
every digest, and writes it to its root, durably. In the first table a step is {wait:g} s in which
the host only waits, as it does for an accelerator. In the second one both cores are in use all the
time, so whatever is done beside the loop takes time from it: with fewer saves in a minute that is
less. "done" is when all saves are committed, and all replicas held."""


def loops(mib: int, steps: int) -> dict[str, Loop]:
    """Return the loops, by name."""
    from tests.processes.timed_loops import Loop

    loop = Loop(mib, steps, 5, 20, 8, 1, 0.1)
    return {DEVICE: loop, BUSY: loop._replace(size=512, products=40, device_seconds=0.0)}


def measure_replicas(
    folder: Path, mib: int, rounds: int, steps: int = STEPS
) -> dict[str, dict[str, list[LoopTimes]]]:
    """Return the times of each loop, contender and round, of the slowest process."""
    from tests.processes.group import Group

    roots = [folder / f"root-{process}" for process in range(PROCESSES)]
    measured: dict[str, dict[str, list[LoopTimes]]] = {}
    with Group(PROCESSES, devices_each=1) as group:

        def run(loop: Loop, name: str) -> LoopTimes:
            options = OPTIONS[name]
            results = group.run(
                "timed_loops.run", roots=list(map(str, roots)), loop=list(loop), options=options
            )
            for root in roots:
                if root.exists():
                    remove(root)
            slowest: LoopTimes = max(results)
            return slowest

        for title, loop in loops(mib, steps).items():
            for name in OPTIONS if rounds > 1 else ():  # imports, threads and files are warm then
                run(loop._replace(steps=loop.first + 1), name)
            times: dict[str, list[LoopTimes]] = {name: [] for name in OPTIONS}
            for number in range(rounds):
                names = [*OPTIONS]
                for name in [*names[number % 3 :], *names[: number % 3]]:
                    times[name].append(run(loop, name))
                    text = f"{title}: {name}: {times[name][-1].steps:.2f} s"
                    print(text, file=sys.stderr, flush=True)
            measured[title] = times
    return measured


def replica_section(
    measured: Mapping[str, Mapping[str, Sequence[LoopTimes]]], mib: int, steps: int
) -> list[str]:
    """Return the section of the page."""
    loop = loops(mib, steps)[DEVICE]
    how = _HOW.format(
        processes=PROCESSES,
        size=(mib << 20) / 1e9,
        steps=loop.steps,
        every=loop.every,
        rounds=len(measured[DEVICE][WITHOUT]),
        wait=loop.device_seconds,
    )
    lines = [f"## {TITLE}", "", *how.splitlines(), ""]
    ratios = {}
    for title, times in measured.items():
        step = {
            name: statistics.median([each.steps for each in rounds]) / loop.steps
            for name, rounds in times.items()
        }
        whole = {
            name: statistics.median([each.whole for each in rounds])
            for name, rounds in times.items()
        }
        ratios[title] = step[REPLICAS] / step[NO_REPLICAS] - 1
        lines += [f"| {title} | a step, ms | beside {WITHOUT} | beside {NO_REPLICAS} | done, s |"]
        lines += ["|---|---:|---:|---:|---:|"]
        for name in OPTIONS:
            cells = [f"{1e3 * step[name]:.1f}"]
            for base in (WITHOUT, NO_REPLICAS):
                is_later = [*OPTIONS].index(name) > [*OPTIONS].index(base)
                cells.append(f"{step[name] / step[base] - 1:+.1%}" if is_later else "")
            lines.append(f"| {name} | {' | '.join(cells)} | {whole[name]:.2f} |")
        lines.append("")
    met = "met" if ratios[DEVICE] < ADDED_MOST else "**not met**"
    lines += ["| added to a step by replicas=1 | measured | less than | |", "|---|---:|---:|---|"]
    lines += [f"| {DEVICE} | {ratios[DEVICE]:+.1%} | {ADDED_MOST:.0%} | {met} |"]
    lines += [f"| {BUSY} | {ratios[BUSY]:+.1%} | | |"]
    return lines


def main() -> None:
    """Measure, print the section, and write it for the whole size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=MIB)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="cordwood-bench-") as folder:
        measured = measure_replicas(Path(folder), options.mib, options.rounds, options.steps)
    lines = replica_section(measured, options.mib, options.steps)
    print("\n".join(lines))
    if options.mib == MIB:
        replace_section(HERE / "manager.md", TITLE, lines)


if __name__ == "__main__":
    main()
