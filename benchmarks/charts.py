"""Charts of the benchmarks' tables, for the README and the documentation.

python -m benchmarks.charts    writes benchmarks/charts/*.svg, each light and dark

Every number comes from the pages that `make bench` writes, and the same pages give the same bytes.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import contender_names as directories
from benchmarks import manager_names as managers
from benchmarks.bar_charts import Bar, Chart, draw, wrapped
from benchmarks.pages import HERE, read_environment, read_number
from benchmarks.readme import ROWS, read_ratio, times_text

FOLDER = HERE / "charts"


def footer_of(pages: list[str], section: str = "") -> list[str]:
    """Return lines that name the pages, the versions and the hardware.

    Raises ValueError if the pages come from different hardware.
    """
    versions: dict[str, None] = {}
    machines: dict[str, None] = {}
    for page in pages:
        version_line, machine = read_environment(page)
        versions.update(dict.fromkeys(version_line.split(", ")))
        machines[machine] = None
    if len(machines) > 1:
        raise ValueError(f"the pages come from different machines: {', '.join(machines)}")
    names = ", ".join([f"benchmarks/{page}" for page in pages])
    where = f", section {section}" * bool(section)
    return wrapped([f"From {names}{where}", ", ".join(versions), *machines])


def speed_chart() -> Chart:
    """Return the chart of the README's table: the time of each peer divided by cordwood's."""
    bars, notes = [], []
    for row in ROWS:
        ratio = read_ratio(row)
        task, _, remark = row.task.replace("`", "").partition(" (")
        if remark:
            notes.append(f"* {remark.removesuffix(')')}")
        text = f"{times_text(ratio)}x"
        bars.append(Bar(f"{task}{' *' * bool(remark)}", row.peer, ratio, text, ratio >= 1))
    pages = list(dict.fromkeys([row.page for row in ROWS]))
    return Chart(
        "times-as-fast",
        "How many times as fast cordwood is",
        "The time of the other library divided by cordwood's. Above 1x cordwood is faster. "
        "The axis is logarithmic.",
        bars,
        [0.2, 0.5, 1, 2, 5, 10, 20, 50],
        "x",
        1,
        [*notes, *footer_of(pages)],
        420,
    )


def memory_chart() -> Chart:
    """Return the chart of the memory that a save and a load need besides the tree."""
    page, section = "directory.md", "gpt2-8-devices"
    names = [directories.PACKS, directories.ZARR, directories.ORBAX, directories.ORBAX_RAW]
    names += [directories.ORBAX_RAW_FILES, directories.EFORMER]
    bars = []
    for label, column in [("save", "extra memory, save, MiB"), ("load", "load, MiB")]:
        for name in names:
            number = read_number(page, section, name, column)
            ours = name.startswith("cordwood")
            bars.append(Bar(label, name, number, f"{number:,.0f} MiB", ours))
    return Chart(
        "memory",
        "Memory that a save or a load needs besides the tree",
        "GPT-2 with Adam's moments, each leaf cut over 8 devices. Less is better.",
        bars,
        [0, 500, 1000, 1500, 2000],
        " MiB",
        0,
        footer_of([page], section),
        340,
    )


def overhead_chart() -> Chart:
    """Return the chart of the time that a manager adds to a training loop."""
    page, section = "manager.md", "A loop with three saves"
    bars = []
    for name in managers.NAMES:
        number = read_number(page, section, name, "overhead")
        bars.append(Bar(name, "", number, f"+{number:.1f}%", name == managers.CORDWOOD))
    return Chart(
        "loop-overhead",
        "Time that a manager adds to a training loop",
        "A loop with three saves, compared with the same loop without saves. Less is better.",
        bars,
        [0, 25, 50, 75, 100, 125, 150],
        "%",
        0,
        footer_of([page], section),
        230,
    )


def charts() -> list[Chart]:
    """Return all charts."""
    return [speed_chart(), memory_chart(), overhead_chart()]


def files() -> dict[Path, str]:
    """Return the contents of each file, also of those of gpu.md if that was written."""
    from benchmarks import gpu_charts

    drawn = {
        FOLDER / f"{chart.name}-{theme}.svg": draw(chart, dark=theme == "dark")
        for chart in charts()
        for theme in ("light", "dark")
    }
    page = HERE / gpu_charts.PAGE
    return drawn | gpu_charts.files(page.read_text(), FOLDER) if page.exists() else drawn


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text)
