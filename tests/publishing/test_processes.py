"""Several processes publish, and other numbers of them follow."""

from __future__ import annotations

from pathlib import Path

import cordwood as cw
from cordwood.testing import assert_trees_equal
from tests.processes.group import Group
from tests.processes.published import tree_of


def test_two_processes_publish_and_three_follow(tmp_path: Path) -> None:
    path = str(tmp_path / "weights")
    alone = cw.WeightFollower(path, to="numpy")
    with Group(2) as trainers, Group(3) as samplers:
        for version in range(1, 7):
            trainers.run("published.publish", path=path, version=version)
            if version != 3:
                held = samplers.run("published.follow", path=path, version=version)
            assert_trees_equal(alone.update(), tree_of(version))
    assert alone._held is not None
    whole = len(alone._held._tiles)
    assert all(count < whole for count in held)  # each holds its share of the rows
    kinds = []
    for version in range(1, 7):
        with cw.open(f"{path}/{version}") as checkpoint:
            kinds.append("digests" in list(checkpoint))
        assert cw.verify(f"{path}/{version}").unverified_bytes == 0
    assert kinds == [False, True, True, True, False, True]


def test_one_process_publishes_and_two_follow(tmp_path: Path) -> None:
    path = str(tmp_path / "weights")
    publisher = cw.WeightPublisher(path)
    with Group(2) as samplers:
        for version in (1, 2, 3):
            publisher.publish(version, tree_of(version)).wait()
            assert min(samplers.run("published.follow", path=path, version=version)) > 0
