"""Recovery from peers on paper: who reads what from whom in a job of 1,024 processes.

    python benchmarks/peer_plans.py                   writes peer_plans.md
    python benchmarks/peer_plans.py --processes 128   prints its table

Nothing is stored. The inventories of all processes are made up, and the functions plan with them
that real processes plan with; then the needs of all readers are added up for each holder.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.pages import hardware, page_head  # noqa: E402
from cordwood.plan.recovery.complete_steps import survey_steps  # noqa: E402
from cordwood.plan.recovery.holder_order import (  # noqa: E402
    FileHolders,
    holders_of_files,
    order_holders,
)
from cordwood.plan.recovery.holder_shares import shares_of_holders  # noqa: E402
from cordwood.plan.recovery.position_runs import join_runs  # noqa: E402
from cordwood.plan.recovery.replica_placement import place_replicas  # noqa: E402
from cordwood.plan.recovery.step_inventory import (  # noqa: E402
    StepInventory,
    decode_inventory,
    encode_inventory,
)

PROCESSES = 1024
PER_HOST = 8
PACKS = 4
PACK_BYTES = 512 << 20
LOST = 8

SAME, FEWER, MESH = "same processes", "fewer processes", "another mesh"


class Recovery(NamedTuple):
    """The plan of a restore, and the bytes that holders serve by it."""

    lost: str
    readers: str
    missing_files: int
    message_bytes: int  # of the largest inventory
    plan_seconds: float  # process 0: which step, and the parts of the holders
    order_seconds: float  # each process: which holder of each file it asks first
    peak_bytes: int
    own_bytes: float  # read by each process from its own root
    served_bytes: float  # by holders to other processes
    most: float  # bytes that one holder serves
    least_possible: float  # the least possible maximum
    mean: float  # of the processes that hold something that is read by others


def inventories(processes: int, lost: Collection[int], *, replicas: int) -> list[StepInventory]:
    """Return what the root of each process holds of one step; nothing if the root is lost."""
    placement = place_replicas([process // PER_HOST for process in range(processes)], replicas)
    runs = [[(process * PACKS, (process + 1) * PACKS)] for process in range(processes)]
    for process, holders in enumerate(placement.holders):
        for holder in holders:
            runs[holder].append((process * PACKS, (process + 1) * PACKS))
    count = processes * PACKS
    return [
        StepInventory(1_000_000, "0" * 32, 1.8e9, count, () if i in lost else join_runs(each))
        for i, each in enumerate(runs)
    ]


def needs(
    readers: str, reader: int, reader_count: int, processes: int
) -> Iterator[tuple[int, float]]:
    """Yield the files that a reader needs, and how many bytes of each.

    The same processes need what they wrote; fewer processes cut each array along the same axis in
    fewer parts; another mesh cuts it along two axes.
    """
    if readers == SAME:
        rows, columns = processes, 1
    elif readers == FEWER:
        rows, columns = reader_count, 1
    else:
        columns = next(n for n in range(32, 0, -1) if reader_count % n == 0)
        rows = reader_count // columns
    row = reader // columns
    start, stop = row * processes / rows, (row + 1) * processes / rows
    for writer in range(int(start), min(processes, int(stop) + 1)):
        part = min(stop, writer + 1) - max(start, writer)
        if part > 1e-9:
            for pack in range(PACKS):
                yield writer * PACKS + pack, PACK_BYTES * part / columns


def recover(
    processes: int, lost: Collection[int], readers: str, *, name: str, replicas: int = 1
) -> Recovery:
    """Plan the restore of a step after some roots were lost.

    With the same processes the lost ones begin anew with empty roots; otherwise they are not there.
    """
    steps = inventories(processes, lost, replicas=replicas)
    roots = [i for i in range(processes) if readers == SAME or i not in lost]
    hosts = [i // PER_HOST for i in roots]
    messages = [json.dumps(encode_inventory([steps[i]] if steps[i].files else [])) for i in roots]

    start = time.perf_counter()
    files, missing = _plan(messages)
    planned = time.perf_counter()
    order_holders(files, 0, hosts)
    ordered = time.perf_counter()
    tracemalloc.start()  # not before: it makes everything slower
    order_holders(_plan(messages)[0], 0, hosts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    loads, demands, own = [0.0] * len(roots), dict[tuple[int, ...], float](), 0.0
    for reader in range(0 if missing else len(roots)):
        for size, order in _ordered(files, reader, hosts, readers, processes):
            nearest = _nearest(order, reader, hosts)
            if order[0] == reader:
                own += size
            else:
                loads[order[0]] += size
                demands[nearest] = demands.get(nearest, 0.0) + size
    return Recovery(
        name,
        readers,
        missing,
        max(map(len, messages)),
        planned - start,
        ordered - planned,
        peak,
        own,
        sum(loads),
        max(loads),
        _least_possible(demands),
        sum(loads) / max(1, len({holder for group in demands for holder in group})),
    )


def _plan(messages: Sequence[str]) -> tuple[FileHolders, int]:
    """Return the holders of each file of the newest step, and how many files are nowhere."""
    survey = survey_steps([decode_inventory(json.loads(each)) for each in messages])
    if not survey.complete:
        return FileHolders((), ()), sum([b - a for a, b in survey.incomplete[0].missing])
    step = survey.complete[0]
    return holders_of_files(step.files, [PACK_BYTES] * step.file_count), 0


def _ordered(
    files: FileHolders, reader: int, hosts: Sequence[int], readers: str, processes: int
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Yield the files that a reader needs: bytes, and holders in the planned order."""
    wants = dict(needs(readers, reader, len(hosts), processes))
    part = FileHolders(
        tuple([each if i in wants else () for i, each in enumerate(files.holders)]), files.shares
    )
    orders = order_holders(part, reader, hosts)
    for position, size in wants.items():
        yield size, orders[position]


def _nearest(order: Sequence[int], reader: int, hosts: Sequence[int]) -> tuple[int, ...]:
    """Return the holders of a file that are as near to a reader as the first one."""
    near = [each for each in order if hosts[each] == hosts[reader]]
    return tuple(sorted(near or order))


def _least_possible(demands: dict[tuple[int, ...], float]) -> float:
    """Return the least maximum of what holders serve, if each read goes to a nearest holder."""
    groups = list(demands)
    shares = shares_of_holders([int(demands[group]) for group in groups], groups)
    loads: dict[int, float] = {}
    for group, parts in zip(groups, shares, strict=True):
        for holder, part in zip(group, parts, strict=True):
            loads[holder] = loads.get(holder, 0.0) + part * demands[group]
    return max(loads.values(), default=0.0)


def losses(processes: int) -> list[tuple[str, list[int]]]:
    """Return sets of lost roots of which replicas exist elsewhere, with a name each."""
    generator = random.Random(29)
    ring = [holders[0] for holders in place_replicas(_domains(processes), 1).holders]
    sets: list[tuple[str, list[int]]] = []
    for count in ("once", "twice", "thrice"):
        lost: list[int] = []
        while not lost or any(ring[each] in lost for each in lost):
            lost = sorted(generator.sample(range(processes), LOST))
        sets.append((f"any {LOST}, drawn {count}", lost))
    sets.append((f"a host of {LOST}", list(range(PER_HOST, 2 * PER_HOST))))
    neighbours = [3]
    while len(neighbours) < LOST:
        neighbours.append(ring[ring[neighbours[-1]]])
    sets.append((f"{LOST} that leave single holders between them", neighbours))
    return sets


def _domains(processes: int) -> list[int]:
    return [process // PER_HOST for process in range(processes)]


def measure(processes: int) -> list[Recovery]:
    """Plan the restores after each loss, and on each kind of readers."""
    results = [recover(processes, (), each, name="nothing") for each in (SAME, MESH)]
    for name, lost in losses(processes):
        results += [recover(processes, lost, readers, name=name) for readers in (SAME, FEWER, MESH)]
    both = [0, place_replicas(_domains(processes), 1).holders[0][0]]
    results.append(recover(processes, both, MESH, name="both holders of a file"))
    return results


_HOW = """\
Written by `python benchmarks/peer_plans.py`. Nothing is stored. {processes:,} processes,
{per_host} on each host, have written {packs} packs of {pack_mib} MiB each; `replicas=1`, and a host
is a failure domain. The functions that real processes call plan the restore from the inventories of
all roots.

- *Plan*: on process 0, reading all inventories and choosing the step, and the part of each holder;
  *order*: on each process, which holder of each of the {files:,} files it asks first. Peak memory
  of both.
- *Served*: what holders send to other processes, of their own host or of others, by the needs of
  all readers; the plan does not know the needs. The same processes need what they wrote, fewer
  processes cut each array in fewer parts, another mesh cuts it along two axes.
- *Least possible*: the least maximum that any plan could have that knew all needs and let every
  read go to one of the nearest holders. *Most* is that of this plan, in parts of it.
- *Mean*: of the processes that hold something that others read from the nearest place. Where few
  holders are left of what many read, even the least possible maximum is above it."""


_COLUMNS = (
    *("lost roots", "readers", "plan, s", "order, s", "peak, MB", "served, GiB", "own, GiB"),
    *("most, of the least possible", "most, of the mean"),
)


def as_markdown(results: Sequence[Recovery], processes: int, machine: str) -> str:
    """Return the page."""
    how = _HOW.format(
        processes=processes,
        per_host=PER_HOST,
        packs=PACKS,
        pack_mib=PACK_BYTES >> 20,
        files=processes * PACKS,
    )
    lines = page_head("Recovery from peers on paper", how, {}, machine)
    lines = [line for line in lines if line != "- "]
    lines += [f"| {' | '.join(_COLUMNS)} |", f"|---|---{'|---:' * (len(_COLUMNS) - 2)}|"]
    for each in results:
        if each.missing_files:
            tail = f"{each.missing_files} files are nowhere: an older step, or the mirror"
            cells = [tail, "", "", ""]
        else:
            cells = [
                f"{each.served_bytes / 2**30:,.0f}",
                f"{each.own_bytes / 2**30:,.0f}",
                _ratio(each.most, each.least_possible),
                _ratio(each.most, each.mean),
            ]
        lines.append(
            f"| {each.lost} | {each.readers} | {each.plan_seconds:.2f} | {each.order_seconds:.3f} "
            f"| {each.peak_bytes / 1e6:.1f} | {' | '.join(cells)} |"
        )
    lines += [
        "",
        f"The largest inventory of a step: {max(r.message_bytes for r in results)} bytes.",
    ]
    lines += ["", "## Goals", "", "| goal | largest | met |", "|---|---:|---|"]
    for goal, value, limit, unit in goals(results):
        met = "met" if value <= limit else "**not met**"
        lines.append(f"| {goal}: at most {limit:g}{unit} | {value:.2f}{unit} | {met} |")
    return "\n".join(lines) + "\n"


def goals(results: Sequence[Recovery]) -> list[tuple[str, float, float, str]]:
    """Return the goals: text, largest value, limit, unit."""
    whole = [each for each in results if not each.missing_files and each.served_bytes]
    after = [each for each in whole if each.lost != "nothing"]
    return [
        ("plan and order", max(r.plan_seconds + r.order_seconds for r in results), 5, " s"),
        ("peak memory of the plan", max(r.peak_bytes / 1e6 for r in results), 200, " MB"),
        (
            f"most, of the least possible, after a loss of {LOST}",
            max(r.most / r.least_possible for r in after),
            1.1,
            "",
        ),
        (
            "most, of the least possible, without a loss",
            max(r.most / r.least_possible for r in whole if r not in after),
            1.1,
            "",
        ),
    ]


def _ratio(value: float, reference: float) -> str:
    return f"{value / reference:.2f}" if reference else ""


def main() -> None:
    """Plan, print the page, and write it if all processes took part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--output", type=Path, default=HERE / "peer_plans.md")
    options = parser.parse_args()
    machine = hardware(Path(tempfile.gettempdir()))
    text = as_markdown(measure(options.processes), options.processes, machine)
    print(text)
    if options.processes == PROCESSES:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
