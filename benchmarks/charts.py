"""Charts of the benchmarks' tables, for the README and the documentation.

python -m benchmarks.charts    writes benchmarks/charts/*.svg, each light and dark

Every number comes from the pages that `make bench` writes, and the same pages give the same bytes.
"""

from __future__ import annotations

import math
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks import contender_names as directories
from benchmarks import manager_names as managers
from benchmarks.pages import HERE, read_environment, read_number
from benchmarks.readme import ROWS, read_ratio, times_text

FOLDER = HERE / "charts"
WIDTH = 840
_LEFT, _RIGHT = 24, 90  # margins; the number of a bar lies in the right one
_TOP = 84
_ROW = 28
_BAR = 16
_MAX_LINE = 120  # characters of a line of the footer


class Bar(NamedTuple):
    """One bar.

    Attributes:
        label: what was measured.
        peer: what it is compared with, or ran with.
        value: its length, in units of the axis.
        text: the number that is shown.
        ours: True for cordwood's own, or where cordwood is faster.
    """

    label: str
    peer: str
    value: float
    text: str
    ours: bool


class Chart(NamedTuple):
    """One chart of horizontal bars.

    Attributes:
        name: of its files.
        title: one sentence that says what the bars are.
        note: how to read them.
        bars: from top to bottom.
        ticks: the numbers on the axis; the first is where it begins.
        unit: written after the numbers on the axis.
        base: where the bars begin; for a logarithmic axis 1, otherwise 0.
        footer: where the numbers come from, and what ran where.
        label_width: of the labels to the left of the bars, in pixels.
    """

    name: str
    title: str
    note: str
    bars: list[Bar]
    ticks: list[float]
    unit: str
    base: float
    footer: list[str]
    label_width: int


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


def wrapped(sentences: list[str]) -> list[str]:
    """Return sentences, which lack their full stops, as lines of a footer."""
    return [part for sentence in sentences for part in wrap(f"{sentence}.", _MAX_LINE)]


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


def position(chart: Chart, value: float) -> float:
    """Return the horizontal place of a value, in pixels."""
    low, high = chart.ticks[0], chart.ticks[-1]
    if chart.base:
        share = math.log(value / low) / math.log(high / low)
    else:
        share = (value - low) / (high - low)
    start = _LEFT + chart.label_width
    return round(start + share * (WIDTH - start - _RIGHT), 1)


def environment() -> Environment:
    """Return the environment of the templates in this folder."""
    return Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def draw(chart: Chart, *, dark: bool) -> str:
    """Return a chart as SVG.

    Raises ValueError if a bar does not fit on the axis.
    """
    for bar in chart.bars:
        if not chart.ticks[0] <= bar.value <= chart.ticks[-1]:
            raise ValueError(f"{chart.name}: {bar.value} is not on the axis: change its ticks")
    base = position(chart, chart.base)
    bottom = _TOP + _ROW * len(chart.bars)
    bars = [
        {
            "bar": bar,
            "y": _TOP + _ROW * number,
            "x": min(base, position(chart, bar.value)),
            "width": round(abs(position(chart, bar.value) - base), 1),
            "end": position(chart, bar.value),
            "is_left": bar.value < chart.base,
        }
        for number, bar in enumerate(chart.bars)
    ]
    ticks = [(position(chart, tick), f"{tick:,g}{chart.unit}") for tick in chart.ticks]
    return (
        environment()
        .get_template("chart.svg.jinja")
        .render(
            chart=chart,
            dark=dark,
            bars=bars,
            ticks=ticks,
            base=base,
            left=_LEFT,
            labels_end=_LEFT + chart.label_width - 10,
            top=_TOP,
            bottom=bottom,
            width=WIDTH,
            height=bottom + 50 + 16 * len(chart.footer),
            bar_height=_BAR,
        )
    )


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
