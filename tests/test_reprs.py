"""Reprs of what cordwood returns: a few plain lines, in a notebook and in a log."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.errors import MismatchError
from cordwood.message_text import printable
from cordwood.results import Restored

HOSTILE = "a\x9b31m\u202eb\u2066"  # C1's CSI, and two bidirectional controls
SHOWN = "a\\x9b31m\\u202eb\\u2066"


def tree(count: int = 3) -> dict[str, Any]:
    return {f"layer{i}": {"w": np.zeros((100, 100), np.float32)} for i in range(count)}


def test_a_diff_is_shown_as_it_is_printed(tmp_path: Path) -> None:
    difference = cordwood.diff({"w": np.zeros(4)}, {"w": np.ones(4)})
    assert repr(difference) == str(difference)
    assert repr(difference).splitlines() == [
        "1 difference between a = the tree and b = the tree; 0 leaves equal:",
        "  w: float64[4]: 4 of 4 elements differ, max abs 1, max rel 1",
    ]


def test_a_verification_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    cordwood.save(path, tree())
    verification = cordwood.verify(path)
    assert repr(verification) == str(verification)
    assert repr(verification).startswith(f"{path}: no damage: 3 leaves, 121.2 KiB verified")
    assert "without a digest" not in repr(verification)
    part = verification._replace(unverified_bytes=4096, unstored_chunks=1, unstored_leaves=("w",))
    assert repr(part).endswith(
        ", 4.0 KiB not read or without a digest, 1 chunk not stored and read as zeros (w)"
    )


def test_a_conversion_tells_what_was_lost(tmp_path: Path) -> None:
    source, target = tmp_path / "a.safetensors", tmp_path / "b.msgpack"
    cordwood.save(source, {"w": [np.zeros(4, np.float32)]})
    done = cordwood.convert(source, target, lossy=True)
    assert repr(done) == str(done)
    lost, last = repr(done).splitlines()
    assert lost.startswith("lost: 1 list or tuple")
    assert last == f"{target}: 1 leaf, 16 B, from safetensors to msgpack"


def test_a_plan_has_a_line_for_each_step(tmp_path: Path) -> None:
    with cordwood.CheckpointManager(tmp_path, keep=1, background=False) as manager:
        assert repr(manager.plan()) == "no steps"
        manager.save(9, {"w": np.zeros(2)})
        manager.save(10, {"w": np.zeros(2)})
        plan = manager.plan()
    assert repr(plan) == str(plan)
    assert repr(plan).splitlines()[-1] == "10  keep    the newest; of the last 1"


def test_a_restored_step_shows_shapes_and_no_elements(tmp_path: Path) -> None:
    with cordwood.CheckpointManager(tmp_path, background=False) as manager:
        state = {**tree(20), "note": "x" * 1000, "step": 7}
        manager.save(300, state, metrics={"loss": 0.5}, extras={"text": "y" * 1000})
        shown = repr(manager.restore())
    first, second, *_, last = shown.splitlines()
    assert first.startswith("Restored(step=300, metrics={'loss': 0.5}, extras={'text': 'yyy")
    assert first.endswith("tree: 22 leaves")
    assert second == "  layer0/w  float32[100,100]"
    assert last == "  ... and 14 more)"
    assert len(shown) < 1000
    small = Restored(1, {"note": "x" * 1000, "n": None, "t": 2.5}, {}, None)
    assert [line.split()[0] for line in repr(small).splitlines()[1:]] == ["note", "t"]
    assert len(repr(small)) < 300
    assert repr(Restored(1, {object(): 1}, {}, None)).endswith("tree: dict)")


def test_a_checkpoint_shows_its_first_leaves_and_their_sizes(tmp_path: Path) -> None:
    path = tmp_path / "c"
    cordwood.save(path, {**tree(20), "step": 7})
    with cordwood.open(path) as checkpoint:
        first, second, *_, last = repr(checkpoint).splitlines()
        assert first == f"<packs checkpoint {path}: 21 leaves, 781.2 KiB"
        assert second == "  layer0/w  float32[100,100]  39.1 KiB"
        assert last == "  ... and 13 more>"
        assert repr(checkpoint["step"]) == "<step: int>"
        assert checkpoint._ipython_key_completions_() == list(checkpoint)


def test_reprs_and_errors_escape_what_a_terminal_would_act_on(tmp_path: Path) -> None:
    path = tmp_path / "c"
    saved = {HOSTILE: np.zeros(2, np.float32)}
    cordwood.save(path, saved)
    other = {HOSTILE: np.ones(2, np.float32)}
    with cordwood.open(path) as checkpoint:
        shown = [repr(checkpoint), repr(checkpoint[HOSTILE])]
    shown += [repr(cordwood.diff(path, other)), str(cordwood.diff(path, other).leaves[0])]
    shown.append(repr(Restored(1, saved, {}, None)))
    try:
        cordwood.load(path, like={HOSTILE: np.zeros(3, np.float32)})
    except MismatchError as e:
        shown.append(str(e))
    assert len(shown) == 6
    for text in shown:
        assert SHOWN in text
        assert printable(text) == text


def frames_of(error: BaseException) -> list[str]:
    """Return the functions of cordwood in the traceback of an error."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.name for frame in frames if "/src/cordwood/" in frame.filename]


def test_a_mismatch_shows_no_internal_frames(tmp_path: Path) -> None:
    like = {"w": np.zeros(3, np.float32)}
    cordwood.save(tmp_path / "a.safetensors", {"w": np.zeros(2, np.float32)})
    with pytest.raises(MismatchError) as caught:
        cordwood.load(tmp_path / "a.safetensors", like=like)
    assert frames_of(caught.value) == ["load"]
    with cordwood.CheckpointManager(tmp_path / "run", background=False) as manager:
        manager.save(1, {"w": np.zeros(2, np.float32)})
        with pytest.raises(MismatchError) as caught:
            manager.restore(like=like)
    assert frames_of(caught.value) == ["restore"]


def test_warnings_and_hints_escape_names_of_directories(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "root" / f"{HOSTILE}1", {"w": np.zeros(2, np.float32)})
    with pytest.warns(RuntimeWarning) as warned:
        assert cordwood.StepReader(tmp_path / "root").restore() is None
    with pytest.raises(FileNotFoundError) as missing:
        cordwood.load(tmp_path / "root" / "a31mb1")
    for text in (str(warned[0].message), str(missing.value.strerror)):
        assert SHOWN in text
        assert printable(text) == text
