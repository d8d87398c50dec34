"""A mirror of two real processes: process 0 copies, and both restore the same step from it."""

from __future__ import annotations

import shutil
from pathlib import Path

from cordwood import StepReader
from tests.processes.group import Group


def test_two_processes_lose_the_root_and_go_on_from_the_mirror(tmp_path: Path, two: Group) -> None:
    path, mirror = str(tmp_path / "run"), str(tmp_path / "mirror")
    first, other = two.run("managers.train_mirrored", path=path, mirror=mirror, steps=2)
    assert first == (0, 2, [])
    assert other == (0, None, [])
    assert StepReader(mirror).steps() == [1, 2]
    shutil.rmtree(path)
    first, other = two.run("managers.train_mirrored", path=path, mirror=mirror, steps=3)
    assert first == (2, 3, [])
    assert other == (2, None, [])
    for pack in (tmp_path / "run" / "3").glob("data-*-1-*"):  # of process 1
        data = bytearray(pack.read_bytes())
        data[-1] ^= 1
        pack.write_bytes(data)
    first, other = two.run("managers.train_mirrored", path=path, mirror=mirror, steps=4)
    assert first == (3, 4, [])
    assert other == (3, None, [])
    assert StepReader(mirror).steps() == [1, 2, 3, 4]
