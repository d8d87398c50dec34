"""The charts of benchmarks/gpu.md, drawn from its tables: bars of the rates, a curve of memory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from benchmarks.bar_charts import WIDTH, Bar, Chart, draw, environment, wrapped
from benchmarks.gpu_parts.contenders import COLD, CONTENDERS, SAVE, WARM
from benchmarks.gpu_report import LOADS, REPEATED, SAVES
from benchmarks.pages import environment_of, rows_of

PAGE = "gpu.md"
_HEIGHT = 260  # of the area of the curve
_LEFT, _RIGHT, _TOP = 80, 40, 84


class Curve(NamedTuple):
    """A curve of numbers, one after another.

    Attributes:
        name: of its files.
        title: one sentence that says what the curve is.
        note: how to read it.
        values: the numbers.
        unit: of the numbers.
        footer: where the numbers come from, and what ran where.
    """

    name: str
    title: str
    note: str
    values: list[float]
    unit: str
    footer: list[str]


def files(text: str, folder: Path) -> dict[Path, str]:
    """Return the contents of each file that the tables of a page's text allow."""
    drawn: dict[Path, str] = {}
    for dark in (False, True):
        theme = "dark" if dark else "light"
        bars, curve = speeds(text), memory(text)
        if bars.bars:
            drawn[folder / f"{bars.name}-{theme}.svg"] = draw(bars, dark=dark)
        if len(curve.values) > 1:
            drawn[folder / f"{curve.name}-{theme}.svg"] = draw_curve(curve, dark=dark)
    return drawn


def speeds(text: str) -> Chart:
    """Return the chart of the rates of saves and loads."""
    bars = []
    for section, kind in ((SAVES, SAVE), (LOADS, WARM), (LOADS, COLD)):
        rates = _rates(rows_of(text, section, name=PAGE), kind)
        for name in CONTENDERS:
            if name in rates:
                rate = rates[name]
                bars.append(Bar(kind, name, rate, f"{rate:.2f} GB/s", name.startswith("cordwood")))
    return Chart(
        "gpu-speeds",
        "Saves and loads of arrays on a GPU",
        "Medians of rounds in which the contenders took turns. More is better.",
        bars,
        ticks_to(max([bar.value for bar in bars], default=1.0)),
        " GB/s",
        0,
        _footer(text, f"sections {SAVES} and {LOADS}"),
        400,
    )


def memory(text: str) -> Curve:
    """Return the curve of the resident memory."""
    rows = rows_of(text, REPEATED, name=PAGE)
    cells = [cell for row in rows if row[0].startswith("after save ") for cell in row[1:] if cell]
    return Curve(
        "gpu-memory",
        "Resident memory after each asynchronous save",
        "A loop that donates its state right after each call. A flat line: nothing grows.",
        [float(cell) for cell in cells],
        " MiB",
        _footer(text, f"section {REPEATED}"),
    )


def _rates(rows: list[list[str]], kind: str) -> dict[str, float]:
    """Return the rates (GB/s) by contender of the table whose first header is `kind`."""
    rates: dict[str, float] = {}
    is_inside = False
    for row in rows:
        if "GB/s" in row:
            is_inside = row[0] == kind
        elif is_inside and row[0] in CONTENDERS and row[1]:
            rates[row[0]] = float(row[1])
    return rates


def _footer(text: str, sections: str) -> list[str]:
    return wrapped([f"From benchmarks/{PAGE}, {sections}", *environment_of(text)])


def ticks_to(value: float) -> list[float]:
    """Return round numbers from zero to a number that is at least the value."""
    magnitude = 10.0 ** math.floor(math.log10(max(value, 1e-9) / 4))
    step = next(each * magnitude for each in (1, 2, 2.5, 5, 10) if each * magnitude * 5 >= value)
    return [round(step * number, 9) for number in range(math.ceil(value / step) + 1)]


def draw_curve(curve: Curve, *, dark: bool) -> str:
    """Return a curve as SVG."""
    ticks = ticks_to(max(curve.values))
    right, bottom = WIDTH - _RIGHT, _TOP + _HEIGHT

    def x_of(number: float) -> float:
        return round(_LEFT + (number - 1) / (len(curve.values) - 1) * (right - _LEFT), 1)

    def y_of(value: float) -> float:
        return round(bottom - value / ticks[-1] * _HEIGHT, 1)

    count = len(curve.values)
    numbers = [1, *[count * n // 6 for n in range(1, 7) if count * n // 6 > 1]]
    return (
        environment()
        .get_template("curve.svg.jinja")
        .render(
            curve=curve,
            dark=dark,
            points=" ".join(f"{x_of(n)},{y_of(v)}" for n, v in enumerate(curve.values, 1)),
            first=f"{curve.values[0]:,.0f}{curve.unit}",
            last=f"{curve.values[-1]:,.0f}{curve.unit}",
            rows=[(y_of(tick), f"{tick:,g}") for tick in ticks],
            columns=[(x_of(number), number) for number in dict.fromkeys(numbers)],
            left=_LEFT,
            right=right,
            top=_TOP,
            bottom=bottom,
            width=WIDTH,
            height=bottom + 50 + 16 * len(curve.footer),
        )
    )
