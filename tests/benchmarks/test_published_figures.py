"""The published figures: tables, charts and verdicts agree with what was measured."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks import convert, resume, verify
from benchmarks.bar_charts import Chart, draw
from benchmarks.charts import FOLDER, charts, files
from benchmarks.in_turns import CONTENDERS as CONTENDERS_IN_TURNS
from benchmarks.pages import read_rows
from benchmarks.readme import README, make_table, replace_table

SVG = "{http://www.w3.org/2000/svg}"


def bars_of(svg: str) -> list[tuple[float, str]]:
    """Return the width of each bar, and the number beside it."""
    root = ElementTree.fromstring(svg)
    widths = [float(each.get("width", "")) for each in root.iterfind(f"{SVG}rect[@class='bar']")]
    numbers = [str(each.text) for each in root.iterfind(f"{SVG}text[@class='number']")]
    return list(zip(widths, numbers, strict=True))


def test_the_table_of_the_readme_agrees_with_the_pages() -> None:
    text = README.read_text()
    assert replace_table(text) == text, "run python -m benchmarks.readme"


def test_the_charts_agree_with_the_pages() -> None:
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
def test_lengths_of_bars_are_in_proportion_to_the_numbers(chart: Chart) -> None:
    bars = bars_of(draw(chart, dark=False))
    values = [abs(math.log(each.value)) if chart.base else each.value for each in chart.bars]
    scale = max(width for width, _ in bars) / max(values)
    for (width, _), value in zip(bars, values, strict=True):
        assert width == pytest.approx(value * scale, abs=0.2)
    assert chart.base == 1 or chart.ticks[0] == chart.base == 0


def test_the_page_of_conversions_names_those_that_miss_the_target() -> None:
    def page(name: str, seconds: float, memory_bytes: int) -> str:
        took, memory = {convert.BARE: 1.0, name: seconds}, {convert.BARE: 0, name: memory_bytes}
        return convert.as_markdown(took, memory, 10**9, 3, "ext4")

    assert "| a to b | 2.00 | 0.50 | 0.50 | 1 |" in page("a to b", 2.0, 1 << 20)
    assert "Not met by: a to b." in page("a to b", 2.0, 1 << 20)
    assert "All are met." in page("msgpack.gz to packs", 9.0, 0)
    assert "Not met by: msgpack.gz to packs." in page("msgpack.gz to packs", 9.0, 257 << 20)


def test_the_page_of_verify_names_those_that_miss_the_target() -> None:
    bare, hashed = {"warm": 0.5, "cold": 1.0}, {"warm": 0.8, "cold": 1.0}
    slow = verify.Measured(bare, hashed, {"warm": 1.0, "cold": 1.0}, 10**9, 10**9)
    page = verify.as_markdown({"packs": slow}, 3, "ext4")
    assert "| packs | warm | 0.500 | 0.800 | 1.000 | 1.00 | 0.50 | 100% |" in page
    assert "Not met by: packs (warm)." in page
    fast = slow._replace(bare={"warm": 0.9, "cold": 0.9})
    assert "All are met." in verify.as_markdown({"packs": fast}, 3, "ext4")


def test_the_page_of_loads_in_new_processes_marks_claims_that_are_not_met() -> None:
    equal = {mode: dict.fromkeys(resume.CONTENDERS_OF[mode], 1.0) for mode in resume.MODES}
    page = resume.page(equal, 1_500_000_000, 5, ["# Title"])
    for claim in resume.CLAIMS:
        met = "met" if claim.target <= 1 else "**not met**"
        assert f"| {claim.other} / {claim.ours} | 1.00 | {claim.target:g} | {met} |" in page
    in_turns = {what: dict.fromkeys(CONTENDERS_IN_TURNS, 1.0) for what in ("save", "load")}
    page = resume.page_in_turns(in_turns, 500_000_000, 5)
    for claim in resume.CLAIMS_IN_TURNS:
        met = "met" if claim.target <= 1 else "**not met**"
        row = f"{claim.mode}: {claim.other} / {claim.ours}"
        assert f"| {row} | 1.00 | {claim.target:g} | {met} |" in page
