"""The tables of benchmarks/directory.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.contender_names import PACKS
from benchmarks.directory_claims import (
    ASYNC_CLAIMS,
    LOAD_CLAIMS,
    MEMORY_BYTES,
    MEMORY_SHARE,
    SAVE_CLAIMS,
)
from benchmarks.pages import page_head, table
from benchmarks.report import ratio_lines

__all__ = ["Report", "as_markdown", "unmet"]


_HOW = """\
Written by `make bench`. Each figure is the median of interleaved rounds. All contenders of a tree
run in one process, in a different order in each round. Loads of less than 2 GiB get three times as
many rounds. Each save goes to a fresh path, after the files of the previous save are emptied and
the disk is in sync. Before each load, its files are read through once. Then memory is touched and
freed: twice the size of the tree (at most 4 GiB), and 256 MiB in small pages. This is necessary
because the host of a virtual machine takes back memory that has been free for a while, and the next
process to use it would wait for it. cordwood's saves and the bare loop are on the disk when they
return, and cordwood's loads are verified. The files of Orbax and eFormer can still be lost at that
time, and are not checked when they are read. The bare loop moves the bytes of cordwood's packs, in
as many files (for a tree above 2 GiB, the first 64 MiB of each, repeatedly). Its reads go to memory
that the kernel provides and clears for each file. cordwood's smaller blocks may instead be memory
that the process already has. Trust the ratios within a table, not the absolute numbers."""


class Report(NamedTuple):
    """The measurements of one case: medians in seconds, memory in bytes, by contender."""

    tree: str
    what: str
    devices: int
    leaves: int
    size_bytes: int
    rounds: int
    saves: dict[str, float]
    loads: dict[str, float]
    calls: dict[str, float]  # time until an asynchronous save returns
    wholes: dict[str, float]  # time until it is done
    save_memory: dict[str, int]  # beyond what was held before
    load_memory: dict[str, int]  # beyond that and the loaded tree
    files: dict[str, int]
    not_run: str  # which contenders, and why


def as_markdown(reports: Sequence[Report], versions: Mapping[str, str], machine: str) -> str:
    """Return all reports as one page."""
    lines = page_head("Directories: cordwood beside its peers", _HOW, versions, machine)
    for report in reports:
        lines += [*_section(report), ""]
    return "\n".join(lines)


def unmet(reports: Sequence[Report]) -> list[str]:
    """Return the claims that a run did not meet."""
    return [
        f"{report.tree}: {line}"
        for report in reports
        for line in _claims(report)
        if "**not met**" in line
    ]


def _section(report: Report) -> list[str]:
    devices = "1 device" if report.devices == 1 else f"{report.devices} devices"
    size = f"{report.leaves:,} leaves, {report.size_bytes / 1e9:.3f} GB, {devices}"
    lines = [f"## {report.tree}", "", f"{report.what} ({size}, {report.rounds} rounds)", ""]
    if report.not_run:
        lines += [f"Not run: {report.not_run}", ""]
    lines += table("save", report.saves, report.size_bytes)
    lines += ["", *table("load", report.loads, report.size_bytes)]
    lines += ["", "| asynchronous save | call, ms | until done, ms |", "|---|---:|---:|"]
    for name, seconds in sorted(report.calls.items(), key=lambda item: item[1]):
        lines.append(f"| {name} | {1e3 * seconds:,.1f} | {1e3 * report.wholes[name]:,.1f} |")
    lines += ["", "| | extra memory, save, MiB | load, MiB | files |", "|---|---:|---:|---:|"]
    for name in report.save_memory:
        save, load = report.save_memory[name], report.load_memory.get(name)
        loaded = "" if load is None else _mib(load)
        lines.append(f"| {name} | {_mib(save)} | {loaded} | {report.files.get(name, '')} |")
    claims = _claims(report)
    if claims:
        lines += ["", "| ratio | measured | at least | |", "|---|---:|---:|---|", *claims]
    return lines


def _claims(report: Report) -> list[str]:
    lines = []
    for what, claims, medians in (
        ("save", SAVE_CLAIMS, report.saves),
        ("load", LOAD_CLAIMS, report.loads),
        ("blocking", ASYNC_CLAIMS, report.calls),
    ):
        lines += [f"| {what}: {line[2:]}" for line in ratio_lines(claims, report.tree, medians)]
    most = MEMORY_BYTES + MEMORY_SHARE * report.size_bytes
    for what, memory in (("save", report.save_memory), ("load", report.load_memory)):
        used = memory[PACKS]
        met = "met" if used <= most else "**not met**"
        lines.append(
            f"| {what}: extra memory of {PACKS}, MiB (at most) | {_mib(used)} | {_mib(most)} "
            f"| {met} |"
        )
    return lines


def _mib(size_bytes: float) -> str:
    return f"{size_bytes / (1 << 20):,.0f}"
