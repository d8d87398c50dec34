"""To add a format takes a package and a row of the table; then every verb works on it."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import cordwood
from cordwood.cli.main import main
from cordwood.errors import CorruptionError, IncompleteCheckpointError, NotACheckpointError
from cordwood.formats import table
from tests.formats.conformance import Check, Row, checks_of
from tests.formats.toy import ELEMENTS_NAME, INDEX_NAME, TOY

TREE = {"a": {"w": np.arange(6.0).reshape(2, 3), "b": np.arange(3)}, "step": 7, "l": [1, (2, None)]}
OPTIONS = {"format": "toy"}
ROW = Row(
    "toy",
    "toy",
    lambda path, tree: cordwood.save(path, tree, format="toy"),
    options=OPTIONS,
    has_metadata=True,
    has_structure=True,
)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the row of the toy to the table, for one test."""
    monkeypatch.setattr(table, "FORMATS", (*table.FORMATS, TOY))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    cordwood.save(tmp_path / "t", TREE, format="toy")
    return tmp_path / "t"


def run(*arguments: object) -> str:
    """Run the command; return what it prints."""
    output = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["cordwood", *map(str, arguments)]),
        contextlib.redirect_stdout(output),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    assert ended.value.code == 0
    return output.getvalue()


@pytest.mark.parametrize("check", checks_of(ROW), ids=lambda check: check.__name__)
def test_the_toy_format_passes_each_check(check: Check, tmp_path: Path) -> None:
    check(ROW, tmp_path)


def test_the_directory_decides_the_format_of_the_next_save(path: Path) -> None:
    cordwood.save(path, {"x": 1})
    assert cordwood.detect(path)[:2] == ("toy", "a toy of the tests")
    assert cordwood.load(path) == {"x": 1}
    with pytest.raises(NotACheckpointError, match="of the format 'toy'"):
        cordwood.save(path, TREE, format="packs")
    cordwood.save(path, {"x": 2}, format="toy")
    cordwood.save_async(path, {"x": 3}).wait()
    assert cordwood.load(path, format="toy") == {"x": 3}
    with pytest.raises(IncompleteCheckpointError, match=r"no cordwood\.json"):
        cordwood.load(path, format="packs")


def test_options_that_it_does_not_take(tmp_path: Path) -> None:
    for options in ({"compression": "zstd"}, {"max_shard_bytes": 1}, {"prefix": "p"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            cordwood.save(tmp_path / "t", TREE, format="toy", **options)


def test_verify_reports_what_the_items_do_not_show(path: Path) -> None:
    (path / "notes").write_text("x")
    with pytest.raises(CorruptionError) as raised:
        cordwood.verify(path)
    assert str(raised.value) == (
        f"{path}: 1 damaged range or file:\n  notes: the index does not refer to it"
    )


def test_two_indexes_are_refused(path: Path) -> None:
    (path / "cordwood.json").write_text("{}")
    with pytest.raises(NotACheckpointError, match=f"cordwood.json and {INDEX_NAME}"):
        cordwood.open(path)


def test_every_verb_and_command(path: Path, tmp_path: Path) -> None:
    assert cordwood.gc(path) == []
    assert cordwood.diff(path, TREE).equal
    for name in ("safetensors", "packs", "zarr"):
        cordwood.convert(path, tmp_path / name, format=name)
        cordwood.convert(tmp_path / name, tmp_path / f"{name}-back", format="toy")
        assert cordwood.diff(path, tmp_path / f"{name}-back").equal
    assert cordwood.convert(path, tmp_path / "c.msgpack", lossy=True).lost
    run("convert", path, tmp_path / "by-command", "--format", "toy")
    assert cordwood.detect(tmp_path / "by-command").format == "toy"
    assert "a/w" in run("ls", path)
    assert json.loads(run("info", path, "--json"))["format"] == "toy"
    assert "a/w" in run("show", path, "a/w")
    assert "no damage" in run("verify", path)
    run("gc", path)
    run("diff", path, tmp_path / "by-command")
    names = sorted(each.name for each in (tmp_path / "by-command").iterdir())
    assert names == [ELEMENTS_NAME, INDEX_NAME]


def test_steps_of_it_are_read_by_a_reader(tmp_path: Path) -> None:
    for step in (100, 200):
        cordwood.save(tmp_path / str(step), {"w": np.full(3, step)}, format="toy")
    assert cordwood.detect(tmp_path).steps == ("100", "200")
    reader = cordwood.StepReader(tmp_path)
    restored = reader.restore(like={"w": np.zeros(3, int)})
    assert restored is not None
    np.testing.assert_array_equal(restored.tree["w"], 200)


def test_a_file_format_that_is_only_read_keeps_its_suffix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save to a name with its suffix is refused, and does not make a directory of that name."""
    toy_file = table.Format("xyz", "a toy", reader=TOY.reader, suffixes=(".xyz",))
    monkeypatch.setattr(table, "FORMATS", (*table.FORMATS, toy_file))
    with pytest.raises(cordwood.errors.UnsupportedFormatError, match=r"a\.xyz"):
        cordwood.save(tmp_path / "a.xyz", TREE)
    assert list(tmp_path.iterdir()) == []
