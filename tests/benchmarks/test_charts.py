"""The charts of the benchmarks agree with the tables that they are drawn from."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks.bar_charts import Chart, draw
from benchmarks.charts import FOLDER, charts, files
from benchmarks.pages import read_number, read_rows
from benchmarks.readme import README, make_table

SVG = "{http://www.w3.org/2000/svg}"


def bars_of(svg: str) -> list[tuple[float, str]]:
    """Return the width of each bar, and the number beside it."""
    root = ElementTree.fromstring(svg)
    widths = [float(each.get("width", "")) for each in root.iterfind(f"{SVG}rect[@class='bar']")]
    numbers = [str(each.text) for each in root.iterfind(f"{SVG}text[@class='number']")]
    return list(zip(widths, numbers, strict=True))


def test_the_files_agree_with_the_pages() -> None:
    expected = files()
    assert sorted(FOLDER.iterdir()) == sorted(expected)
    for path, text in expected.items():
        assert path.read_text() == text, "run python -m benchmarks.charts"


def test_the_first_chart_shows_the_table_of_the_readme() -> None:
    table = [row.split("|")[3].strip() for row in make_table().splitlines()[2:]]
    speed, *_ = charts()
    assert [number for _, number in bars_of(draw(speed, dark=False))] == [
        f"{times}x" for times in table
    ]


@pytest.mark.parametrize("number", [1, 2])
def test_the_other_charts_show_cells_of_the_pages(number: int) -> None:
    chart = charts()[number]
    page, section = re.findall(r"benchmarks/([\w.]+), section (.*)\.", chart.footer[0])[0]
    cells = {cell for row in read_rows(page, section) for cell in row}
    shown = [text.removesuffix(" MiB") for _, text in bars_of(draw(chart, dark=True))]
    assert set(shown) <= cells
    assert len(shown) == len(chart.bars) > 2


@pytest.mark.parametrize("chart", charts(), ids=lambda chart: chart.name)
def test_lengths_are_in_proportion_to_the_numbers(chart: Chart) -> None:
    bars = bars_of(draw(chart, dark=False))
    values = [abs(math.log(each.value)) if chart.base else each.value for each in chart.bars]
    scale = max(width for width, _ in bars) / max(values)
    for (width, _), value in zip(bars, values, strict=True):
        assert width == pytest.approx(value * scale, abs=0.2)
    assert chart.base == 1 or chart.ticks[0] == chart.base == 0


def test_each_chart_names_its_source_its_versions_and_its_machine() -> None:
    for chart in charts():
        svg = draw(chart, dark=False)
        for words in ("benchmarks/", "cordwood 0.", "orbax-checkpoint 0.", "cores (", "memory"):
            assert words in svg


def test_a_number_off_the_axis_is_an_error() -> None:
    chart = charts()[2]
    with pytest.raises(ValueError, match="not on the axis"):
        draw(chart._replace(ticks=[0, 10]), dark=False)


def test_numbers_are_read_from_the_first_table_with_the_row_and_the_column(tmp_path: Path) -> None:
    assert read_number("manager.md", "A loop with three saves", "no saving", "overhead") == 0
    with pytest.raises(KeyError, match="no row 'nobody'"):
        read_number("manager.md", "A loop with three saves", "nobody", "overhead")


def test_the_readme_shows_charts_in_both_themes() -> None:
    shown = re.findall(r'srcset="([^"]+)"|src="([^"]+)"', README.read_text())
    paths = {dark or light for dark, light in shown}
    for name in ("times-as-fast", "loop-overhead"):
        assert {f"benchmarks/charts/{name}-{theme}.svg" for theme in ("light", "dark")} <= paths
    assert all((README.parent / path).is_file() for path in paths)
