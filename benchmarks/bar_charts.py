"""Charts of bars as SVG."""

from __future__ import annotations

import math
from textwrap import wrap
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.pages import HERE

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


def wrapped(sentences: list[str]) -> list[str]:
    """Return sentences, which lack their full stops, as lines of a footer."""
    return [part for sentence in sentences for part in wrap(f"{sentence}.", _MAX_LINE)]


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
