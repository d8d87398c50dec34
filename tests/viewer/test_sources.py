"""The sources: opened when they are used, a few at a time, and closed at the end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood.errors import FileChangedError
from cordwood.storage.locations import LocalPath
from cordwood.viewer.resources import Resources
from cordwood.viewer.sources import OpenArguments, Sources, open_sources
from tests.changing_files import rewrite
from tests.descriptors import open_descriptors
from tests.threads import in_threads

ARGUMENTS = OpenArguments()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for step in range(10, 110, 10):
        cordwood.save(tmp_path / "run" / str(step), {"w": np.full(4, step)})
    return tmp_path / "run"


def test_the_steps_of_a_run_are_opened_when_they_are_used(root: Path) -> None:
    sources = open_sources(str(root), None, ARGUMENTS)
    assert list(sources.paths) == [str(step) for step in range(10, 110, 10)]
    assert open_descriptors(root) == 0
    with sources.checkpoint("50") as checkpoint:
        assert checkpoint["w"][0] == 50
        assert open_descriptors(root) > 0
    sources.close()
    assert open_descriptors(root) == 0


def test_few_steps_stay_open(root: Path) -> None:
    sources = open_sources(str(root), None, ARGUMENTS)
    with sources.checkpoint("10"):
        one = open_descriptors(root)
    assert one > 0
    for name in sources.paths:
        with sources.checkpoint(name) as checkpoint:
            assert checkpoint["w"][0] == int(name)
    assert open_descriptors(root) <= 4 * one
    sources.close()


def test_a_checkpoint_in_use_is_not_closed(root: Path) -> None:
    sources = open_sources(str(root), None, ARGUMENTS)
    with sources.checkpoint("10") as oldest:
        for name in sources.paths:
            with sources.checkpoint(name):
                pass
        sources.close()
        assert oldest["w"][0] == 10
    sources.close()


def test_threads_share_one_open_checkpoint(root: Path) -> None:
    sources = open_sources(str(root), None, ARGUMENTS)
    opened = []

    def read(number: int) -> None:
        for name in list(sources.paths)[number % 3 :]:
            with sources.checkpoint(name) as checkpoint:
                assert checkpoint["w"][0] == int(name)
                opened.append(checkpoint)

    in_threads(read, 8)
    assert len(opened) == sum(10 - number % 3 for number in range(8))
    sources.close()


def test_a_checkpoint_stays_the_one_that_was_opened(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "c", {"w": np.zeros(4)})
    sources = open_sources(str(tmp_path / "c"), None, ARGUMENTS)
    cordwood.save(tmp_path / "c", {"other": np.ones(9)})
    resources = Resources(sources)
    assert json.loads(resources.answer_json("checkpoint/a"))["leaves"]["path"] == ["w"]
    assert resources.answer("statistics/a/0/all")["max"] == 0
    sources.close()


def test_a_step_that_cannot_be_opened_is_an_error_of_that_step(root: Path) -> None:
    for file in (root / "20").glob("*.json*"):
        file.write_bytes(b"damaged")
    sources = open_sources(str(root), None, ARGUMENTS)
    with pytest.raises((cordwood.CordwoodError, OSError)), sources.checkpoint("20"):
        pass
    with sources.checkpoint("30") as checkpoint:
        assert checkpoint["w"][0] == 30
    sources.close()


@pytest.mark.parametrize("name", ["", "a", "..", "110", "10/../20"])
def test_other_names_are_refused(root: Path, name: str) -> None:
    sources = open_sources(str(root), None, ARGUMENTS)
    with pytest.raises(KeyError, match="there is no source"), sources.checkpoint(name):
        pass


def test_start_names_the_command_that_shows_the_same(tmp_path: Path) -> None:
    sources = Sources("checkpoint", {"a": LocalPath("my run/5")}, None, OpenArguments("npz", "ema"))
    start = Resources(sources).answer("start")
    assert start["command"] == "cordwood view 'my run/5' --format npz --prefix ema"
    assert start["title"] == "my run/5"


def test_a_file_that_has_changed_is_opened_again_by_the_next_request(tmp_path: Path) -> None:
    path = tmp_path / "x.msgpack"
    cordwood.save(path, {"w": np.zeros(4)})
    other = tmp_path / "other.msgpack"
    cordwood.save(other, {"w": np.ones(4)})
    sources = open_sources(str(path), None, ARGUMENTS)
    (name,) = sources.paths
    with sources.checkpoint(name) as checkpoint:
        rewrite(path, other.read_bytes())
        with pytest.raises(FileChangedError):
            checkpoint["w"][0]
    with pytest.raises(FileChangedError), sources.checkpoint(name) as checkpoint:
        checkpoint["w"][0]
    with sources.checkpoint(name) as checkpoint:
        assert checkpoint["w"][0] == 1
    sources.close()
    assert open_descriptors(tmp_path) == 0
