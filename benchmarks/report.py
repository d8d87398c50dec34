"""The tables of benchmarks/single_file.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.claims import (
    ALIASED_SHARE_MIN,
    CLAIMS,
    MAPPED_SECONDS_MAX,
    Claim,
    ratio_of,
)
from benchmarks.contenders import MAPPED
from benchmarks.pages import page_head, table

__all__ = ["Report", "as_markdown", "ratio_lines"]


_HOW = """\
Written by `make bench`. Each figure is the median of interleaved rounds, with all contenders of a
tree in one process. Each save goes to a fresh path, after the files of the previous save are
emptied and the disk is in sync. Each load reads from a warm page cache. Before each load, and
before each conversion to or from bytes, twice the size of the tree in memory (at most 4 GiB) is
touched and freed, unless the contender returns views and needs almost no memory. This is necessary
because the host of a virtual machine takes back memory that has been free for a while, and the next
process to use it would wait for it. Trust the ratios within a table, not the absolute numbers."""


class Report(NamedTuple):
    """The measurements of one tree: medians in seconds, by contender."""

    tree: str
    what: str
    leaves: int
    size_bytes: int
    rounds: int
    saves: dict[str, float]
    loads: dict[str, float]
    in_memory: dict[str, float]
    aliased_share: float


def as_markdown(reports: Sequence[Report], versions: Mapping[str, str], machine: str) -> str:
    """Return all reports as one page."""
    lines = page_head("One file: cordwood beside its peers", _HOW, versions, machine)
    for report in reports:
        lines += [*_section(report), ""]
    return "\n".join(lines)


def _section(report: Report) -> list[str]:
    size = f"{report.leaves:,} leaves, {report.size_bytes / 1e9:.3f} GB, {report.rounds} rounds"
    lines = [f"## {report.tree}", "", f"{report.what} ({size})", ""]
    lines += table("save", report.saves, report.size_bytes)
    lines += ["", *table("load", report.loads, report.size_bytes)]
    lines += ["", *table("bytes in memory", report.in_memory, report.size_bytes)]
    lines += ["", f"A mapped load aliases {report.aliased_share:.2%} of its bytes."]
    claims = _claims(report)
    if claims:
        lines += ["", "| ratio | measured | at least | |", "|---|---:|---:|---|", *claims]
    return lines


def ratio_lines(claims: Sequence[Claim], tree: str, medians: Mapping[str, float]) -> list[str]:
    """Return a row for each claim about a tree: the measured ratio and the promised one."""
    lines = []
    for claim in claims:
        if tree in claim.trees and claim.other in medians:
            ratio = ratio_of(claim, medians)
            met = "met" if ratio >= claim.target else "**not met**"
            lines.append(
                f"| {claim.other} / {claim.ours} | {ratio:.2f} | {claim.target:g} | {met} |"
            )
    return lines


def _claims(report: Report) -> list[str]:
    medians = {**report.saves, **report.loads, **report.in_memory}
    lines = ratio_lines(CLAIMS, report.tree, medians)
    if report.tree == "gpt2":
        mapped = medians[MAPPED]
        met = "met" if mapped <= MAPPED_SECONDS_MAX else "**not met**"
        most = 1e3 * MAPPED_SECONDS_MAX
        lines.append(f"| {MAPPED}, ms (at most) | {1e3 * mapped:.1f} | {most:g} | {met} |")
        met = "met" if report.aliased_share >= ALIASED_SHARE_MIN else "**not met**"
        lines.append(
            f"| share of bytes aliased | {report.aliased_share:.4f} | {ALIASED_SHARE_MIN} | {met} |"
        )
    return lines
