"""The pages that the benchmarks write: their heads and tables, and the tables read again."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent


def page_head(title: str, how: str, versions: Mapping[str, str], machine: str) -> list[str]:
    """Return the first lines of a page of tables. `how` describes the method."""
    pinned = ", ".join(f"{name} {version}" for name, version in versions.items())
    return [f"# {title}", "", *how.splitlines(), "", f"- {pinned}", f"- {machine}", ""]


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Return the installed versions of packages."""
    return {package: importlib.metadata.version(package) for package in packages}


def hardware(folder: Path, device: str = "CPU") -> str:
    """Return a description of the machine, with the device that jax ran on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    system = f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}"
    python = f"Python {platform.python_version()}"
    cores = f"{os.cpu_count()} cores ({platform.machine()})"
    return (
        f"{python}, {system}, {cores}, {memory:.0f} GiB of memory, {file_system(folder)}, {device}"
    )


def file_system(folder: Path) -> str:
    """Return the type of the file system of the folder."""
    best = ("", "an unknown file system")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        if folder.resolve().is_relative_to(mount) and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]


def table(title: str, medians: Mapping[str, float], size_bytes: int) -> list[str]:
    """Return a table of medians in seconds, the fastest first."""
    lines = [f"| {title} | ms | GB/s | x the fastest |", "|---|---:|---:|---:|"]
    fastest = min(medians.values())
    for name, seconds in sorted(medians.items(), key=lambda item: item[1]):
        rate = size_bytes / seconds / 1e9
        lines.append(f"| {name} | {1e3 * seconds:,.1f} | {rate:.2f} | {seconds / fastest:.1f} |")
    return lines


def read_rows(page: str, section: str) -> list[list[str]]:
    """Return the cells of all rows of the tables of a section, headers included.

    Raises:
        KeyError: the page has no such section.
    """
    return rows_of((HERE / page).read_text(), section, name=page)


def rows_of(text: str, section: str, *, name: str) -> list[list[str]]:
    """Return the cells of all rows of the tables of a section of a page's text.

    Raises:
        KeyError: the page, called `name`, has no such section.
    """
    heading = f"\n## {section}\n"
    if heading not in text:
        raise KeyError(f"{name} has no section {section}")
    lines = text.split(heading)[1].split("\n## ")[0].splitlines()
    return [
        [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]


def read_number(page: str, section: str, row: str, column: str) -> float:
    """Return the number in the row and column of the first table that has both.

    Raises:
        KeyError: no table of the section has such a row and column.
    """
    header, previous = [""], [""]
    for cells in read_rows(page, section):
        if set("".join(cells)) <= set("-:"):  # the line below a header
            header = previous
        previous = cells
        if cells[0] == row and column in header:
            text = cells[header.index(column)]
            return float(text.replace(",", "").removeprefix("+").removesuffix("%"))
    raise KeyError(f"{page}, {section}: no row {row!r} with a column {column!r}")


def read_environment(page: str) -> list[str]:
    """Return the lines of a page that name versions and hardware."""
    return environment_of((HERE / page).read_text())


def replace_section(page: Path, title: str, lines: Sequence[str]) -> None:
    """Write a section of a page, its heading first, over the old one or at the end."""
    before, _, after = page.read_text().partition(f"\n## {title}\n")
    _, following, others = after.partition("\n## ")
    page.write_text("\n".join([before.rstrip("\n") + "\n", *lines, ""]) + following + others)


def environment_of(text: str) -> list[str]:
    """Return the lines of a page's text that name versions and hardware."""
    lines = text.split("\n## ")[0].splitlines()
    return [line.removeprefix("- ") for line in lines if line.startswith("- ")]
