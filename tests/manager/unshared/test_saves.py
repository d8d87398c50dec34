"""Saves into roots that the processes do not share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.manager.unshared.fake_run import (
    Run,
    every_device_is_a_process,
    in_the_foreground,
    packs,
)

__all__ = ["every_device_is_a_process", "in_the_foreground"]


def test_each_root_holds_the_packs_of_its_process_and_the_whole_index(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.save(3, [1, 2, 3], keep=2) == [[2, 3]] * 3
    indexes = {(run.root(process) / "3" / "cordwood.json").read_bytes() for process in range(3)}
    assert len(indexes) == 1
    for process in range(3):
        assert sorted(path.name for path in run.root(process).iterdir()) == ["2", "3"]
        writers = {pack.name.split("-")[2] for pack in packs(run.root(process) / "3")}
        assert writers == {str(process)}
    assert run.restore(3) == 3


def test_unchanged_files_are_hard_links_within_each_root(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(2, [1, 2])
    for process in range(2):
        links = {pack.name: pack.stat().st_nlink for pack in packs(run.root(process) / "2")}
        assert sorted(links.values()) == [1, 2]


def test_a_run_goes_on_with_fewer_processes(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(3, [1])
    # A replica, as a copied pack: the root of process 2 is not passed any longer.
    for pack in packs(run.root(2) / "1"):
        (run.root(0) / "1" / pack.name).write_bytes(pack.read_bytes())
    assert run.save(2, [2]) == [[1, 2]] * 2
    assert run.restore(2) == 2


@pytest.mark.filterwarnings("ignore:.*is passed over:RuntimeWarning")
@pytest.mark.parametrize("old", ["newer version", "damaged", "of one root only"])
def test_steps_whose_index_cannot_be_read_are_never_removed(tmp_path: Path, old: str) -> None:
    run = Run(tmp_path)
    run.save(2, [1, 2])
    for process in (0,) if old == "of one root only" else (0, 1):
        index = run.root(process) / "1" / "cordwood.json"
        text = index.read_text()
        changed = text.replace('"version":1', '"version":99') if "version" in old else text[:-9]
        assert changed != text
        index.write_text(changed)
    run.save(2, [3, 4], keep=1)
    for process in (0, 1):
        names = sorted(path.name for path in run.root(process).iterdir())
        stays = old != "of one root only" or process == 0
        assert names == (["1", "4"] if stays else ["4"])
        if stays:
            assert list(packs(run.root(process) / "1"))
