"""The command line of the benchmarks of one tree."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import trees
from benchmarks.one_tree import MakeTree, write_page


def page_of(make_tree: MakeTree, folder: Path, rounds: int) -> str:
    assert list(folder.iterdir()) == []
    return f"{sorted(make_tree())}, {rounds} rounds, in {folder.parent}"


@pytest.mark.parametrize(
    ("options", "keys"),
    [(["--tree", "smoke", "--rounds", "2"], ["large", "layers", "odd", "step"]), ([], ["gpt2"])],
)
def test_the_page_is_printed_and_that_of_gpt2_written(
    options: list[str],
    keys: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(trees, "gpt2_adam", lambda: {"gpt2": 0})
    monkeypatch.setattr(sys, "argv", ["benchmark", "--folder", str(tmp_path), *options])
    page = tmp_path / "page.md"
    write_page(page_of, description="What it is.\n\nMore.", output=page)
    expected = f"{keys}, {2 if options else 5} rounds, in {tmp_path}"
    assert capsys.readouterr().out == f"{expected}\n"
    if options:
        assert not page.exists()
    else:
        assert page.read_text() == expected
