"""Pure functions of the scripts, called in Chromium: texts, addresses, sorting, layout."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

import cordwood
from cordwood.message_text import size_text
from tests.browser import Browser, server_of


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("functions") / "model"
    cordwood.save(path, {"w": np.ones(3)})
    with server_of(path) as url:
        yield url


@pytest.fixture
def opened(browser: Browser, url: str) -> Browser:
    browser.open(url)
    return browser


def test_texts_are_shown_printable_and_short(opened: Browser) -> None:
    texts = {
        "plain text é 漢 🙂": "plain text é 漢 🙂",
        "tab\tline\nnull\0": "tab\\u{9}line\\u{a}null\\u{0}",
        "bidi\u202e\u2066\u200f": "bidi\\u{202e}\\u{2066}\\u{200f}",
        "lone\ud800": "lone\\u{d800}",
        "nbsp\u00a0zero\u200b": "nbsp\\u{a0}zero\\u{200b}",
        "x" * 250: "x" * 200 + "… (50 more characters)",
        "🙂" * 150: "🙂" * 100 + "… (100 more characters)",
    }
    for text, expected in texts.items():
        pieces = opened.run("return cordwood.printable(JSON.parse(arguments[0]))", json.dumps(text))
        assert pieces == expected


def test_numbers_are_short_and_sizes_are_those_of_the_command(opened: Browser) -> None:
    numbers = {
        "0": "0",
        "12345": "12,345",
        "0.0123456": "0.01235",
        "-1.5e-7": "-1.5e-7",
        "6.02214e23": "6.022e23",
        "1e-300": "1e-300",
        "1000000": "1e6",
        "NaN": "NaN",
        "-Infinity": "-inf",
    }
    for text, expected in numbers.items():
        assert opened.run("return cordwood.formatNumber(arguments[0])", text) == expected
    for size in (0, 1023, 1024, 5_000_000, 123 << 30, 1 << 50):
        assert opened.run("return cordwood.formatBytes(arguments[0])", size) == size_text(size)


@pytest.mark.parametrize(
    "parts", [["a", "params/w"], ["step/1", ""], ["a", "%2F?#&"], ["a", "漢 字"], ["a", ".."]]
)
def test_an_address_leads_back_to_its_parts(opened: Browser, parts: list[str]) -> None:
    script = "return cordwood.parseRoute(cordwood.link(arguments[0], arguments[1], {q: '?#/'}))"
    route = opened.run(
        f"const r = (() => {{ {script} }})(); r.q = r.query.get('q'); return r", "leaf", parts
    )
    assert (route["name"], route["parts"], route["q"]) == ("leaf", parts, "?#/")
    both = ["a", *parts]
    route = opened.run(script, "diff-leaf", both)
    assert (route["name"], route["parts"]) == ("diff-leaf", both)


def test_rows_sort_in_small_parts_as_at_once(opened: Browser) -> None:
    values = [float(x) for x in np.random.default_rng(0).integers(0, 50, 5000)]
    for descending in (False, True):
        order = opened.driver.execute_async_script(
            """
            const [values, descending, done] = arguments;
            const rows = values.map((value, i) => ({ value: i % 100 ? value : null, i }));
            cordwood
              .inTasks(cordwood.sortedRows(rows, (row) => row.value, descending))
              .then((sorted) => done(sorted.map((row) => row.i)));
            """,
            values,
            descending,
        )
        sign = -1 if descending else 1
        numbered = sorted(range(5000), key=lambda i: (i % 100 == 0, i % 100 and sign * values[i]))
        assert order == numbered, "equal values keep their order, missing ones are last"


def test_the_area_of_a_rectangle_is_its_share_of_the_bytes(opened: Browser) -> None:
    items = opened.driver.execute_async_script(
        """
        const done = arguments[0];
        const rows = [];
        for (let i = 1; i <= 40; i++) rows.push({ path: `w${i}`, size_bytes: i * 1000 });
        const tree = cordwood.treeOf(rows, (row) => [row.path], (row) => row.size_bytes);
        cordwood
          .inTasks(tree)
          .then((root) => cordwood.inTasks(cordwood.layoutTreemap(root, 800, 300)))
          .then((items) => done(items.map(({ node, ...rest }) => [node.size, rest])));
        """
    )
    assert len(items) == 40
    total = sum(size for size, _ in items)
    for size, box in items:
        assert box["width"] * box["height"] == pytest.approx(800 * 300 * size / total)
        assert 0 <= box["x"] <= box["x"] + box["width"] <= 800 + 1e-6
        assert 0 <= box["y"] <= box["y"] + box["height"] <= 300 + 1e-6
        assert max(box["width"] / box["height"], box["height"] / box["width"]) < 4


def test_equal_values_are_all_values_only_where_all_were_read(opened: Browser) -> None:
    script = """
        const [count, size] = arguments;
        return cordwood.charts.histogram({ counts: [count], low: 2, high: 2, size }).textContent;
    """
    assert opened.run(script, 4, 4) == "Every value is 2."
    assert opened.run(script, 3, 4) == "Every finite value that was read is 2."
    assert opened.run(script, 3, None) == "Every finite value that was read is 2."


def test_a_chart_that_was_removed_is_not_drawn_again(opened: Browser) -> None:
    themes = opened.driver.execute_async_script(
        """
        const done = arguments[0];
        const box = cordwood.element("div");
        const frames = async (count) => {
          for (; count; count--) await new Promise((next) => requestAnimationFrame(next));
        };
        let widths = 0;
        let themes = 0;
        cordwood.onWidth(box, () => widths++, () => themes++);
        (async () => {
          await frames(3); // the browser reports an element also before it is on the page
          document.body.append(box);
          while (!widths) await frames(1);
          cordwood.themeChanged();
          const before = themes;
          box.remove();
          await frames(3);
          cordwood.themeChanged();
          done([before, themes]);
        })();
        """
    )
    assert themes == [1, 1]
