"""The options of commands for bulk work: workers, parts and journals."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import cordwood
from tests.cli.conftest import Run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for step in (1, 2, 3):
        cordwood.save(tmp_path / "run" / str(step), {"x": np.full(1 << 18, step)})
    return tmp_path / "run"


def test_worker_processes_verify_a_run(run: Run, root: Path) -> None:
    code, out, _ = run("verify", root, "--workers", "1")
    assert (code, out) == run("verify", root)[:2]


def test_jobs_of_an_array_verify_a_run_and_a_last_call_reports(
    run: Run, root: Path, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    for i in range(2):
        code, out, _ = run("verify", root, "--part", f"{i}/2", "--journal", journal)
        assert code == 0
        assert "3 steps: 3 without damage" in out
        assert f"this is part {i} of 2 alone" in out
    locks = sorted(each.name for each in journal.glob("tasks*"))
    assert locks == ["tasks-0-of-2.jsonl", "tasks-1-of-2.jsonl"]
    code, out, _ = run("verify", root, "--journal", journal)
    assert (code, out) == run("verify", root)[:2]
    assert not journal.exists()


def test_jobs_of_an_array_copy_a_run_and_a_last_call_commits(
    run: Run, root: Path, tmp_path: Path
) -> None:
    for i in range(2):
        code, out, _ = run("copy", root, tmp_path / "copy", "--part", f"{i}/2")
        assert code == 0
        assert f"copy: part {i}/2: {['1 file, 2.0', '2 files, 4.0'][i]} MiB copied, in" in out
        assert "; after all parts, the same command without --part writes" in out
        assert not list((tmp_path / "copy").glob("*/cordwood.json"))
    code, out, _ = run("copy", root, tmp_path / "copy", "--workers", "1")
    assert code == 0
    assert "copy: 3 steps, 3 files" in out
    assert run("verify", tmp_path / "copy").code == 0
    assert {each.name for each in tmp_path.iterdir()} == {"run", "copy"}


@pytest.mark.parametrize("remedy", ["another path", "delete"])
def test_the_journal_of_another_copy_does_not_stand_in_the_way(
    run: Run, root: Path, tmp_path: Path, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("copy", root / "1", "copy", "--part", "0/2").code == 0
    journal = tmp_path / ".copy.cordwood-journal"
    for options in ((), ("--journal", "other")):
        code, _, err = run("copy", root / "2", "copy", *options)
        assert code == 2
        assert f"{journal} is the journal of another call" in " ".join(err.split())
        assert "write to another path, or delete this journal" in " ".join(err.split())
    if remedy == "delete":
        shutil.rmtree(journal)
    path = "copy" if remedy == "delete" else "another"
    assert run("copy", root / "2", path).code == 0
    assert cordwood.load(path)["x"][0] == 2


@pytest.mark.parametrize("remedy", ["another", "delete"])
@pytest.mark.parametrize(
    "call",
    [
        ("verify", "run/2"),
        ("diff", "run/1", "run/3"),
        ("diff", "run/1", "run/2", "--select", "x"),
        ("diff", "run/1", "run/2", "--no-values"),
        ("convert", "run/1", "x"),
        ("copy", "run/1", "x"),
    ],
    ids=" ".join,
)
def test_the_journal_of_another_call_is_a_wrong_argument(
    run: Run, root: Path, monkeypatch: pytest.MonkeyPatch, call: tuple[str, ...], remedy: str
) -> None:
    monkeypatch.chdir(root.parent)
    run("diff", "run/1", "run/2", "--part", "0/2", "--journal", "j")
    code, _, err = run(*call, "--journal", "j")
    assert code == 2
    text = " ".join(err.split())
    assert "this is the journal of another call, 'diff " in text
    assert "name another directory by journal= (--journal), or delete this one" in text
    if remedy == "delete":
        shutil.rmtree("j")
    journal = "j" if remedy == "delete" else "other"
    assert run(*call, "--journal", journal).code == (
        call[0] == "diff" and "--no-values" not in call
    )


@pytest.mark.parametrize("part", ["4/4", "-1/4", "1", "a/b", "0/0", "1/4/2"])
def test_parts_are_counted_from_zero(run: Run, root: Path, part: str) -> None:
    code, _, err = run("verify", root, "--part", part)
    assert code == 2
    assert f"such as 0/16 to 15/16 (parts are counted from 0), found {part!r}" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--journal", "j", "--sample", "5%"), "--journal needs a full check"),
        (("--resume", "r", "--part", "0/2"), "--resume is for one process"),
        (("--workers", "0"), "0 is not in the range x>=1"),
    ],
)
def test_options_that_exclude_each_other(
    run: Run, root: Path, options: tuple[str, ...], message: str
) -> None:
    code, _, err = run("verify", root, *options)
    assert code == 2
    assert message in err


def test_jobs_of_an_array_convert_and_compare(run: Run, root: Path, tmp_path: Path) -> None:
    copy, journal = tmp_path / "copy", ("--journal", tmp_path / "journal")
    for i in range(2):
        code, out, _ = run("convert", root / "1", copy, "--part", f"{i}/2")
        assert code == 0
        amount = ["nothing falls to this part", "1 file, 2.0 MiB written"][i]
        assert f"copy: part {i}/2: {amount}, from packs to packs; after all parts, the same" in out
    assert not (copy / "cordwood.json").exists()
    code, _, err = run("info", copy)
    assert code == 3
    assert "once its parts have ended, the same call without part= (--part)" in err
    code, out, _ = run("convert", root / "1", copy)
    assert (code, "copy: 1 leaf, 2.0 MiB" in out) == (0, True)
    assert run("diff", root / "1", copy, "--workers", "1").code == 0
    codes = [run("diff", root / "1", root / "2", "--part", f"{i}/2", *journal).code for i in (0, 1)]
    assert sorted(codes) == [0, 1]
    assert run("diff", root / "1", root / "2", *journal) == run("diff", root / "1", root / "2")
    assert {each.name for each in tmp_path.iterdir()} == {"run", "copy"}
